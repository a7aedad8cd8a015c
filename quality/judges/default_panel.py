"""The default panel of judges, and the stored reliability of its members."""

import asyncio
from collections.abc import Sequence

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events
from quality.judges.calibration import Calibration, GradedPair, calibrate
from quality.judges.code import CodeJudge
from quality.judges.exact import ExactJudge
from quality.judges.json_validity import JsonValidityJudge
from quality.judges.judge import Judge
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.real_pairs import in_use, real_pairs
from quality.judges.similarity import Embed, SimilarityJudge
from quality.judges.synthetic_calls import calibrate_calls
from quality.judges.synthetic_pairs import graded_pairs

_CALIBRATED = "judge.calibrated"
# With this many verdicts per outcome, a catalogue's own answers replace generated pairs.
ENOUGH = 20


def rule_based_judges() -> list[Judge]:
    """Return the judges that ask no model, in order of authority."""
    return [JsonValidityJudge(), CodeJudge(), ExactJudge()]


async def standing_panel(
    engine: AsyncEngine,
    pairwise: PairwiseJudge | None = None,
    embed: Embed | None = None,
    catalogue: str = "",
    judging: str = "",
) -> Panel:
    """Return the rule-based judges and similarity, then `pairwise` if its stored calibration is significant.

    The calibrations are those stored for `catalogue`, a fingerprint. A rule-based judge without one is measured at once
    on generated pairs, in milliseconds. An untrusted pairwise judge is left out: it would cost money without making
    labels. `judging`: the fingerprint that its own test is stored under; a calibration of the catalogue by hand counts
    before it.
    """
    judges = rule_based_judges()
    generated = graded_pairs()
    calibrations = {
        judge.name: await stored_calibration(engine, judge.name, catalogue) or await calibrate(judge, generated)
        for judge in judges
    }
    calls = calibrate_calls()
    calibrations[calls.judge] = calls
    judges.append(SimilarityJudge(embed))
    if pairwise is not None:
        stored = await known_calibration(engine, pairwise.name, catalogue, judging)
        if stored is not None and stored.trusted:
            pairwise.padded = stored.prefers_a_length
            judges.append(pairwise)
            calibrations[pairwise.name] = stored
    return Panel(judges, calibrations)


async def known_calibration(engine: AsyncEngine, judge: str, catalogue: str, judging: str) -> Calibration | None:
    """Return the calibration that counts: that of the catalogue by hand, else that of the judge's own test; with what
    real pairs since then say of the judge of the fingerprint `judging`."""
    stored = await _stored(engine, judge, catalogue) or (await _stored(engine, judge, judging) if judging else None)
    if stored is None or not judging:
        return None if stored is None else stored[0]
    pairs = await real_pairs(engine, judge, judging, since=stored[1])
    found = await asyncio.to_thread(in_use, stored[0], pairs)
    return msgspec.structs.replace(stored[0], in_use=found)


async def measure(judge: Judge, answered: Sequence[GradedPair]) -> Calibration:
    """Calibrate `judge` on `answered` pairs, or on generated pairs if it judges too few of those."""
    own = await calibrate(judge, answered, "answered")
    return own if is_enough(own) else await calibrate(judge, graded_pairs())


def is_enough(own: Calibration) -> bool:
    """Return whether a catalogue's own answers say enough of a judge, in both outcomes."""
    return min(own.true_no_worse + own.false_worse, own.true_worse + own.false_no_worse) >= ENOUGH


async def store_calibration(
    engine: AsyncEngine, calibration: Calibration, catalogue: str, now: float, actor: str
) -> None:
    """Store `calibration` for `catalogue`, a fingerprint; the latest one counts."""
    row = {
        "created_at": now,
        "actor": actor,
        "action": _CALIBRATED,
        "subject": _subject(calibration.judge, catalogue),
        "reason": f"balanced accuracy {calibration.balanced_accuracy:.3f}, lower bound {calibration.lower_bound:.3f}",
        "details": calibration,
    }
    async with engine.begin() as connection:
        await connection.execute(insert(audit_events).values(row))


async def stored_calibration(engine: AsyncEngine, judge: str, catalogue: str) -> Calibration | None:
    """Return the latest stored calibration of `judge` for `catalogue`; None without one."""
    stored = await _stored(engine, judge, catalogue)
    return None if stored is None else stored[0]


async def _stored(engine: AsyncEngine, judge: str, catalogue: str) -> tuple[Calibration, float] | None:
    """Return it with the time when it was stored."""
    query = (
        select(audit_events.c.details, audit_events.c.created_at)
        .where(audit_events.c.action == _CALIBRATED, audit_events.c.subject == _subject(judge, catalogue))
        .order_by(audit_events.c.audit_event_id.desc())
        .limit(1)
    )
    async with engine.connect() as connection:
        row = (await connection.execute(query)).first()
    return None if row is None else (msgspec.convert(row.details, Calibration), row.created_at)


def _subject(judge: str, catalogue: str) -> str:
    return f"{judge}/{catalogue}"
