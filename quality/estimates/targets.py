"""What every quality target would come to: the expected cost and quality of the newest routed requests or, before the
first of them, of an even mix of the complexity classes at the catalogue's prices."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import likeliest
from classifier.decision import PolicyInputs, exchange_of
from classifier.policy.utility import enough_of, utility
from migrations.tables.requests import requests, routing_decisions
from quality.records.record import inputs_reader

Float = npt.NDArray[np.floating]

NEWEST = 300
"""Requests whose predictions are summed up: more take longer than a page may."""
PROMPT_TOKENS = 400
"""Of a prompt of the even mix: about a page."""
TARGETS = tuple(np.linspace(0.0, 1.0, 41).round(3).tolist())


class TargetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What one quality target comes to."""

    target: float
    no_worse: float
    """Expected share of answers no worse than the strongest tier's."""
    cost_share: float
    """Of what the strongest tier alone would cost."""
    split: list[float]
    """Share of the requests by tier."""


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """Every target on the same requests."""

    requests: int
    """0: an even mix of the classes."""
    classes: dict[str, int]
    """Requests by their likeliest complexity class."""
    active: TargetPoint
    previewed: TargetPoint | None
    points: list[TargetPoint]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What was predicted for prompts."""

    p_ok: Float
    """P(no worse) [n, tiers]."""
    usd: Float
    """[n, tiers]."""
    reference: Float
    """Price [n] of a strongest answer, by which a decision counts costs."""
    enough: Float
    """P [n] that counts as certain (`classifier.policy.utility`)."""
    classes: dict[str, int] = {}


def at_target(predicted: Predicted, target: float) -> TargetPoint:
    """Return what the target comes to if every prompt goes to the tier that `decide` picks without constraints."""
    each, strongest = np.arange(len(predicted.p_ok)), float(predicted.usd[:, -1].sum())
    counted = np.where(predicted.p_ok >= predicted.enough[:, None], 1.0, predicted.p_ok)
    chosen = utility(counted, predicted.usd, predicted.reference[:, None], exchange_of(target)).argmax(axis=1)
    return TargetPoint(
        target=target,
        no_worse=round(float(predicted.p_ok[each, chosen].mean()), 6),
        cost_share=round(float(predicted.usd[each, chosen].sum()) / strongest, 6) if strongest else 1.0,
        split=(np.bincount(chosen, minlength=predicted.p_ok.shape[1]) / len(chosen)).tolist(),
    )


def even_mix(table: Float, usd: Sequence[float], enough: float) -> Predicted:
    """Return one prompt of each class, by P(good enough) `table` [4, tiers - 1] and the price of each tier."""
    p_ok = np.hstack([table, np.ones((len(table), 1))])
    prices = np.tile(np.asarray(usd, np.float64), (len(table), 1))
    return Predicted(p_ok=p_ok, usd=prices, reference=prices[:, -1], enough=np.full(len(table), enough))


async def predicted_requests(engine: AsyncEngine, tiers: int) -> Predicted | None:
    """Return the predictions of the newest requests whose tier routing chose among so many `tiers`; None without."""
    query = (
        select(routing_decisions.c.decision)
        .join(requests, requests.c.request_id == routing_decisions.c.request_id)
        .where(requests.c.status == "ok", requests.c.tier.is_not(None))
        .order_by(requests.c.created_at.desc())
        .limit(NEWEST)
    )
    async with engine.connect() as connection:
        decisions = (await connection.scalars(query)).all()
    return await asyncio.to_thread(_predicted, decisions, tiers)


async def read_targets(engine: AsyncEngine, mix: Predicted, active: float, previewed: float | None) -> Targets:
    """Return the targets on the newest requests, without any on `mix`."""
    newest = await predicted_requests(engine, mix.p_ok.shape[1])
    predicted = mix if newest is None else newest
    return Targets(
        requests=0 if newest is None else len(newest.p_ok),
        classes=predicted.classes,
        active=at_target(predicted, active),
        previewed=None if previewed is None else at_target(predicted, previewed),
        points=await asyncio.to_thread(lambda: [at_target(predicted, target) for target in TARGETS]),
    )


_read_inputs = inputs_reader(PolicyInputs)


def _predicted(decisions: Iterable[bytes], tiers: int) -> Predicted | None:
    routed = [inputs for inputs in map(_routed_inputs, decisions) if inputs is not None and len(inputs.costs) == tiers]
    if not routed:
        return None
    classes = Counter(likeliest(inputs.prediction.classes).name for inputs in routed if inputs.prediction.classes)
    return Predicted(
        p_ok=np.array([inputs.prediction.p_ok for inputs in routed]),
        usd=np.array([inputs.costs for inputs in routed]),
        reference=np.array([inputs.reference for inputs in routed]),
        enough=np.array([enough_of(inputs.prediction) for inputs in routed]),
        classes=dict(classes),
    )


def _routed_inputs(decision: bytes) -> PolicyInputs | None:
    """Return the inputs of a decision; None where the request or a rule named the tier, where no utility decided, and
    where another version of this program wrote them and they cannot be read."""
    try:
        inputs = _read_inputs(decision)
    except msgspec.ValidationError:
        return None
    named = inputs.pinned_tier is not None or (inputs.rules is not None and inputs.rules.tier is not None)
    return None if named or inputs.objective != "utility" else inputs
