"""Pieces of work of agents' sessions, from the stored steps: on which tier each ran, what it cost, how it ended, and
which tier did it again after a bad end."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import and_, desc, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import session_steps
from quality.estimates.verified_sample import PEOPLE

NEWEST_STEPS = 20_000
"""So many of the newest steps are read, which an index finds."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work that one `tier` did from a user's turn on, for `usd` US dollars."""

    client: str
    tier: int
    usd: float
    good: bool
    """How it ended."""
    again: "Work | None" = None
    """Where it ended badly and a dearer tier was asked next, that tier's work, if its end is known."""


async def last_step(engine: AsyncEngine, sessions: Sequence[str]) -> str | None:
    """Return the id of the request that is the newest stored step of any of `sessions` (digests); None without one."""
    s = session_steps.c
    newest = select(s.request_id).where(s.session.in_(sessions)).order_by(desc(s.created_at)).limit(1)
    async with engine.connect() as connection:
        request_id: str | None = await connection.scalar(newest)
    return request_id


async def finished_work(engine: AsyncEngine) -> list[Work]:
    """Return the work among the newest steps whose end is known, by the next turn or by feedback on one of its steps.

    Work that several tiers did is left out, and so is what a session does on the tier that a bad end moved it to.
    """
    s, v = session_steps.c, verifications.c
    rated = and_(v.request_id == s.request_id, v.tier == s.tier, v.judge == PEOPLE)
    columns = (s.session, s.client, s.at, s.rule, s.tier, s.cost_usd, s.ended, v.label)
    query = select(*columns).select_from(session_steps.outerjoin(verifications, rated))
    async with engine.connect() as connection:
        rows = (await connection.execute(query.order_by(desc(s.created_at)).limit(NEWEST_STEPS))).mappings().all()
    # One session's steps stay in their order: the sort is stable.
    steps = sorted((dict(row) for row in reversed(rows)), key=itemgetter("session"))
    return [work for _, of_session in groupby(steps, key=itemgetter("session")) for work in _work(list(of_session))]


def _work(steps: list[dict[str, Any]]) -> list[Work]:
    """The finished work of one session's `steps`, oldest first."""
    pieces: list[list[dict[str, Any]]] = []
    for step in steps:
        if step["at"] in ("start", "turn"):
            pieces.append([step])
        elif pieces:
            pieces[-1].append(step)
    finished: list[Work] = []
    followed = [*pairwise(pieces), *([(pieces[-1], [])] if pieces else [])]
    done = [_piece(piece, after) for piece, after in followed]
    for index, (piece, work) in enumerate(zip(pieces, done, strict=True)):
        if work is None or piece[0]["rule"] in ("up", "keep"):
            continue
        after = pieces[index + 1] if index + 1 < len(pieces) else None
        again = done[index + 1] if after is not None and after[0]["rule"] == "up" else None
        finished.append(msgspec.structs.replace(work, again=None if work.good else again))
    return finished


def _piece(piece: list[dict[str, Any]], after: list[dict[str, Any]]) -> Work | None:
    """What became of one piece of work; `after`: the next one, which says how it ended. None where nothing does."""
    tiers = {step["tier"] for step in piece}
    labels = [step["label"] for step in piece if step["label"] in ("no_worse", "worse")]
    ended = after[0]["ended"] if after else None
    if len(tiers) > 1 or (ended is None and not labels):
        return None
    good = ended == "good" if ended is not None else labels[-1] == "no_worse"
    return Work(client=piece[0]["client"], tier=tiers.pop(), usd=sum(step["cost_usd"] for step in piece), good=good)
