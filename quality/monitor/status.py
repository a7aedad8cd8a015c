"""What the monitor tells of itself, and the drift of inputs and of calibration, with intervals, which is shown next to
the alarms."""

import asyncio
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import Row, select, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.decision import LEARNED_KINDS
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import requests, routing_decisions
from quality.estimates.verified_sample import (
    ENOUGH_ANSWERS,
    KindShare,
    Share,
    UpgradeRate,
    by_a_judge,
    effective_interval,
    sampled_as_served,
    sampling_weights,
)
from quality.judges.calibration import Calibration
from quality.monitor.watches import judged_worse
from quality.records.record import predicted_of
from quality.verification.job import Depth
from quality.verification.judging import OpinionsGiven
from quality.verification.sampling import Reason, Spending
from quality.verification.training_rows import vector_of

Float = npt.NDArray[np.floating]

# The newest prompts are compared with this many times as many before them.
WINDOW, BEFORE = 1000, 4
# There are fewer vectors of verified prompts, and they are larger.
VECTORS = 500
# Verified answers of a tier that are compared with the predictions.
VERDICTS = 500
_LEAST = 50
_RESAMPLES = 200
_Z95 = 1.959963984540054


_NOTHING = np.zeros((0, 1))

# With the bare condition SQLite would read and sort all vectors of these sources.
_VERIFIED = training_rows.c.source.in_(("verification", "probe")).is_(true())


class InputDrift(msgspec.Struct, frozen=True, kw_only=True):
    """The last `prompts` against the `before` ones before them; None for too few.

    "novelty": the rise of its mean. "embedding": the squared distance of the mean vectors of verified prompts,
    corrected (linear-kernel MMD of Gretton et al. 2012). [`low`, `high`]: 95%.
    """

    of: Literal["novelty", "embedding"]
    prompts: int
    before: int
    value: float | None
    low: float | None
    high: float | None
    drifted: bool
    """Whether the interval lies above 0."""


class CalibrationDrift(msgspec.Struct, frozen=True, kw_only=True):
    """The last verified `answers` of `tier`: the share no worse as `predicted` and as `verified`, and the 95% interval
    [`low`, `high`] of `verified - predicted`.
    """

    tier: int
    answers: int
    predicted: float
    verified: float
    low: float
    high: float
    drifted: bool
    """Whether the interval excludes 0."""

    @property
    def in_words(self) -> str:
        """What differs."""
        return f"{self.predicted:.0%} expected, {self.verified:.0%} verified as good, of {self.answers:,} answers."


class InputWatch:
    """Drift of novelty over all requests and of the vectors of verified prompts, computed on demand.

    Vectors are read and resampled only after another prompt was verified.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._newest: Row[Any, Any] | None = None
        self._embedding = _unknown("embedding", _NOTHING, _NOTHING)

    async def look(self) -> list[InputDrift]:
        """Return the current drift."""
        decisions = (
            select(routing_decisions.c.novelty)
            .join(requests, requests.c.request_id == routing_decisions.c.request_id)
            .where(routing_decisions.c.prediction_kind.in_(LEARNED_KINDS))
            .order_by(requests.c.created_at.desc())
            .limit(WINDOW * (1 + BEFORE))
        )
        shown = training_rows.c.training_row_id, training_rows.c.feature_spec
        newest = select(*shown).where(_VERIFIED).order_by(training_rows.c.created_at.desc()).limit(1)
        async with self._engine.connect() as connection:
            novelty = np.array((await connection.scalars(decisions)).all(), np.float64)
            row = (await connection.execute(newest)).first()
            vectors = None
            if row is not None and row != self._newest:
                vectors = await verified_vectors(connection, row.feature_spec)
        if vectors is not None:
            self._embedding = await asyncio.to_thread(embedding_drift, vectors[:VECTORS], vectors[VECTORS:])
            self._newest = row
        return [novelty_drift(novelty[:WINDOW], novelty[WINDOW:]), self._embedding]


async def verified_vectors(connection: AsyncConnection, feature_spec: str) -> Float:
    """Return the newest vectors of that feature spec, [at most VECTORS * (1 + BEFORE), dim]."""
    verified = (
        select(training_rows.c.embedding)
        .where(training_rows.c.feature_spec == feature_spec, _VERIFIED)
        .order_by(training_rows.c.created_at.desc())
        .limit(VECTORS * (1 + BEFORE))
    )
    blobs = (await connection.scalars(verified)).all()
    # One encoder made them, so they have one length.
    return vector_of(b"".join(blobs)).reshape(len(blobs), -1) if blobs else _NOTHING


def novelty_drift(now: Float, before: Float) -> InputDrift:
    """Compare mean novelty [n] with that before [m], by their standard errors."""
    if min(len(now), len(before)) < _LEAST:
        return _unknown("novelty", now, before)
    rise = float(now.mean() - before.mean())
    half = _Z95 * float(np.sqrt(now.var(ddof=1) / len(now) + before.var(ddof=1) / len(before)))
    return _drift("novelty", now, before, rise, rise - half, rise + half)


def embedding_drift(now: Float, before: Float, seed: int = 0) -> InputDrift:
    """Compare vectors [n, dim] with those before [m, dim], by resampling both."""
    if min(len(now), len(before)) < _LEAST:
        return _unknown("embedding", now, before)
    rng = np.random.default_rng(seed)
    chance = sum(float(part.var(axis=0, ddof=1).sum()) / len(part) for part in (now, before))

    def means(part: Float) -> Float:
        # Counts of a uniform multinomial, several times faster than numpy's `multinomial`.
        n = len(part)
        drawn = rng.integers(n, size=(_RESAMPLES, n)) + n * np.arange(_RESAMPLES)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=_RESAMPLES * n).reshape(_RESAMPLES, n)
        return counts.astype(part.dtype) @ part / n

    value = float(((now.mean(axis=0) - before.mean(axis=0)) ** 2).sum()) - chance
    # A resample has the sampling error twice: the sample's own, and that of drawing from it.
    draws = ((means(now) - means(before)) ** 2).sum(axis=1) - 2 * chance
    low, high = np.quantile(draws, [0.025, 0.975]).tolist()
    return _drift("embedding", now, before, value, low, high)


async def calibration_drift(engine: AsyncEngine, tiers: list[int]) -> list[CalibrationDrift]:
    """Return the drift by tier over its last `VERDICTS` sampled answers; tiers with too few are left out."""
    drifts = []
    async with engine.connect() as connection:
        for tier in tiers:
            query = (
                select(
                    verifications.c.label,
                    verifications.c.judge_reliability,
                    verifications.c.sampled_probability,
                    verifications.c.sampled_reason,
                    routing_decisions.c.decision,
                )
                .join(routing_decisions, routing_decisions.c.request_id == verifications.c.request_id)
                .where(
                    *sampled_as_served(),
                    by_a_judge(),
                    verifications.c.tier == tier,
                    routing_decisions.c.prediction_kind.in_(LEARNED_KINDS),
                )
                .order_by(verifications.c.finished_at.desc(), verifications.c.verification_id.desc())
                .limit(VERDICTS)
            )
            rows = (await connection.execute(query)).all()
            if len(rows) >= ENOUGH_ANSWERS:
                good = np.array([row.label != "worse" for row in rows], np.float64)
                expected = np.array([_expected(row.decision, tier, row.judge_reliability) for row in rows])
                weights = sampling_weights(
                    [row.sampled_probability for row in rows], [row.sampled_reason for row in rows]
                )
                drifts.append(held_against(tier, good, expected, np.array(weights)))
    return drifts


def held_against(tier: int, good: Float, expected: Float, weights: Float) -> CalibrationDrift:
    """Compare verdicts [n] of 0 and 1 with predicted probabilities [n], weighted by their sampling weights [n]."""
    share = weights / weights.sum()
    predicted, verified = float(share @ expected), float(share @ good)
    difference = verified - predicted
    if len(good) < _LEAST:
        # The spread of a few equal verdicts is nothing, which says nothing of their share.
        interval = effective_interval(verified, 1.0 / float(share @ share))
        low, high = interval.low - predicted, interval.high - predicted
    else:
        half = _Z95 * float(np.sqrt(share**2 @ (good - expected - difference) ** 2))
        low, high = difference - half, difference + half
    return CalibrationDrift(
        tier=tier,
        answers=len(good),
        predicted=round(predicted, 6),
        verified=round(verified, 6),
        low=round(low, 6),
        high=round(high, 6),
        drifted=low > 0 or high < 0,
    )


def _expected(decision: bytes, tier: int, reliability: float | None) -> float:
    """Return how often such a judge says "no worse" if the version's probability for the tier is right."""
    return 1.0 - judged_worse(1.0 - predicted_of(decision).p_ok[tier - 1], reliability)


def _drift(
    of: Literal["novelty", "embedding"], now: Float, before: Float, value: float, low: float, high: float
) -> InputDrift:
    return InputDrift(
        of=of,
        prompts=len(now),
        before=len(before),
        value=round(value, 6),
        low=round(low, 6),
        high=round(high, 6),
        drifted=low > 0,
    )


def _unknown(of: Literal["novelty", "embedding"], now: Float, before: Float) -> InputDrift:
    return InputDrift(of=of, prompts=len(now), before=len(before), value=None, low=None, high=None, drifted=False)


class MonitorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state shown by the API."""

    queue: Depth
    offered: int
    sampled: int
    dropped: int
    """Offers lost because more than `max_offered` were waiting."""
    no_judge: int
    """Drawn answers that no trusted judge can label, for which nothing was bought."""
    held: int
    """The newest of them, which are verified once a judge can."""
    not_sampled: dict[Reason, int] = {}
    """Numbers of answers by the reason why they are not verified (`quality.verification.sampling.WHY_NOT`)."""
    second_opinions: OpinionsGiven
    """Second opinions since start."""
    spending: Spending
    """Spending, at most `poll_seconds` old."""
    budget_usd: float
    upgrade_rates: list[UpgradeRate]
    """Rates by the rule of SPEC QM-04."""
    evidence_of_shift: dict[str, float]
    """Evidence of the sequential test, by stream."""
    acceptance: dict[int, Share]
    """Shares of the sample."""
    acceptance_by_kind: list[KindShare]
    """Shares of the whole traffic, by tier and kind of prompts."""
    input_drift: list[InputDrift]
    calibration_drift: list[CalibrationDrift]
    calibrations: list[Calibration]
