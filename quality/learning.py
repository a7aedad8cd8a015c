"""What a gateway has learned of each key's prompts: labels, classes of what is asked, and what routing saves."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from migrations.tables import requests, routing_decisions, training_rows

# Where a key's head has learned what a hundred labels teach; below it the catalogue's cells say as much.
ENOUGH_LABELS = 100
# The newest decisions that are looked at.
MOST_DECISIONS = 5000
_TWO_SIDED = 1.96


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """One key's, None for requests without a key. `labels` of all time; the rest is of the newest `decisions`.

    `classes`: share of each complexity class among the prompts, by name; `saving`: of what the strongest tier would
    have cost, by predicted costs, with its 95% interval; `p_ok`: how likely the chosen tiers' answers are as good as
    the strongest's, in the mean.
    """

    key_id: str | None
    labels: int
    decisions: int
    classes: dict[str, float]
    saving: float | None
    saving_low: float | None
    saving_high: float | None
    p_ok: float | None


async def learned_by_key(engine: AsyncEngine, since: float) -> list[Learned]:
    """By key, those with most decisions since then (epoch seconds) first."""
    labelled = select(training_rows.c.key_id, func.count()).group_by(training_rows.c.key_id)
    decided = (
        select(requests.c.key_id, routing_decisions.c.tier, routing_decisions.c.inputs)
        .join(requests, requests.c.request_id == routing_decisions.c.request_id)
        .where(routing_decisions.c.created_at >= since)
        .order_by(routing_decisions.c.created_at.desc())
        .limit(MOST_DECISIONS)
    )
    async with engine.connect() as connection:
        labels = {key: int(count) for key, count in await connection.execute(labelled)}
        rows = (await connection.execute(decided)).mappings().all()
    by_key: dict[str | None, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_key[row["key_id"]].append(dict(row))
    found = [_learned(key, labels.get(key, 0), by_key.get(key, [])) for key in {**by_key, **labels}]
    return sorted(found, key=lambda one: (-one.decisions, -one.labels, one.key_id or ""))


def _learned(key: str | None, labels: int, rows: Sequence[Mapping[str, Any]]) -> Learned:
    classes = [row["inputs"]["prediction"].get("classes") for row in rows]
    known = np.array([one for one in classes if one], np.float64).reshape(-1, len(Complexity))
    saving, low, high = _saving(rows)
    p_ok = [row["inputs"]["prediction"]["p_ok"][row["tier"] - 1] for row in rows]
    return Learned(
        key_id=key,
        labels=labels,
        decisions=len(rows),
        classes={one.name: round(float(known[:, one - 1].mean()), 4) for one in Complexity} if len(known) else {},
        saving=saving,
        saving_low=low,
        saving_high=high,
        p_ok=round(sum(p_ok) / len(p_ok), 4) if p_ok else None,
    )


def _saving(rows: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None, float | None]:
    """One less the ratio of two sums, with the interval of a ratio estimate (Cochran, Sampling Techniques, 6.4)."""
    paid = np.array([row["inputs"]["costs"][row["tier"] - 1] for row in rows], np.float64)
    dearest = np.array([row["inputs"]["costs"][-1] for row in rows], np.float64)
    if not len(rows) or dearest.sum() <= 0:
        return None, None, None
    ratio = float(paid.sum() / dearest.sum())
    if len(rows) == 1:
        return round(1 - ratio, 4), None, None
    spread = (paid - ratio * dearest).std(ddof=1) / (math.sqrt(len(rows)) * dearest.mean())
    half = _TWO_SIDED * float(spread)
    return round(1 - ratio, 4), round(1 - ratio - half, 4), round(1 - ratio + half, 4)


def in_words(one: Learned) -> str:
    """A paragraph that says what is known of one key."""
    whose = "requests without a key" if one.key_id is None else f"key {one.key_id}"
    if one.labels >= ENOUGH_LABELS:
        labels = f"{one.labels} labels: routing follows its own outcomes"
    else:
        labels = f"{one.labels} of {ENOUGH_LABELS} labels collected"
    text = f"{whose}: {labels}."
    if one.classes:
        mix = ", ".join(f"{share:.0%} {name}" for name, share in one.classes.items())
        text += f" Its prompts are {mix}."
    if one.saving is not None and one.p_ok is not None:
        interval = "" if one.saving_low is None else f" [{one.saving_low:.0%}, {one.saving_high:.0%}]"
        text += (
            f" Its last {one.decisions} decisions save {one.saving:.0%}{interval} of the strongest tier's cost; "
            f"{one.p_ok:.0%} of the answers are expected to be as good."
        )
    return text
