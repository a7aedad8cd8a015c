"""What a gateway has learned from each key's prompts: labels, and the learning curve.

The curve predicts the newest labels from growing prefixes of the earlier ones. At each point the serving estimator is
fitted on the labels that were stored when the key had that many, starting from the estimate that AIO ships with, and is
tested on later labels. All points of a curve are tested on the same labels, so they differ by what was learned and not
by what was asked."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.local.cells import Labels
from classifier.local.estimator import LocalEstimator
from classifier.local.own import LabelledRow, as_labels
from classifier.model.outcome_model import OutcomeModel
from migrations.tables.quality import training_rows
from migrations.tables.tenancy import api_keys
from quality.learning.own_labels import OwnLabels

Float = npt.NDArray[np.floating]

CHECKPOINTS = (0, 25, 50, 100, 200, 400)
# The newest third of the labels is predicted, up to a limit; with too few labels there is no curve.
TESTED_SHARE, MOST_TESTED, LEAST_LABELS = 1 / 3, 150, 15
# The keys with the most labels are shown, and get a curve each.
MOST_KEYS = 8
# From about this many labels on, a key's own outcomes predict better than those of all keys together.
ENOUGH_LABELS = 100
# The newest labels are read up to this number.
MOST_LABELS = 2048
_RESAMPLES, _SEED = 400, 7


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a curve, at `labels` labels."""

    labels: int
    error: float
    """The mean squared error of P(as good) on the tested labels (Brier score)."""
    low: float
    high: float
    """Of its 95% interval, by resampling prompts (percentile bootstrap, Efron 1979)."""


class LearningCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The curve of one key's labels, or of all (`key` None; "": requests without a key)."""

    key: str | None
    tested: int
    """How many labels were predicted."""
    rate_error: float
    """The error of each tier's own rate among the tested labels, the best prediction that ignores the prompt."""
    points: list[CurvePoint]


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned from one key."""

    key_id: str | None
    """None: from requests without a key, or from all keys together."""
    name: str
    labels: int
    curve: LearningCurve | None = None
    """None while there are too few labels."""


class Learning(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned from all keys, and from those with the most labels, most first."""

    together: Learned
    keys: list[Learned]


class LabelSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which labels count."""

    model: OutcomeModel
    """Labels in its encoding."""
    tiers: tuple[str, ...]
    """Fingerprints of the tiers whose outcomes count."""
    prior: npt.NDArray[np.float32]
    """[4, tiers - 1]: the estimate by class without labels."""
    keys_are_tenants: bool = False
    """As for `OwnLabels`."""


def learning_curves(rows: Sequence[LabelledRow], table: Float) -> list[LearningCurve]:
    """Return the curve of all labels, then those of the keys with the most labels.

    `rows`: oldest first. `table` [4, tiers - 1]: the estimate by class without labels. Pure; takes seconds of a core.
    """
    if len(rows) < LEAST_LABELS:
        return []
    labels, keys = as_labels(rows)
    shipped = table.astype(np.float32)
    curves = [_curve(None, labels, np.arange(len(labels)), shipped)]
    counts = np.bincount(labels.key)
    largest = [key for key in np.argsort(-counts, kind="stable")[:MOST_KEYS] if counts[key] >= LEAST_LABELS]
    return curves + [_curve(keys[key], labels, np.flatnonzero(labels.key == key), shipped) for key in largest]


def checkpoints(count: int) -> list[int]:
    """Return the numbers of labels at which a curve is drawn, given `count` labels before the tested ones."""
    return [*(n for n in CHECKPOINTS if n < 0.8 * count), count]


def _curve(key: str | None, labels: Labels, own: npt.NDArray[np.intp], table: Float) -> LearningCurve:
    """Compute one curve; `own`: indices of the key's labels among all."""
    tested = own[-min(int(len(own) * TESTED_SHARE), MOST_TESTED) :]
    test = labels.take(tested)
    weights, scores = test.told.astype(np.float64), np.nan_to_num(test.scores).astype(np.float64)
    rate = (weights * scores).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-9)
    even = np.full(len(test), 1 / len(test))
    draws = np.random.default_rng(_SEED).multinomial(len(test), even, _RESAMPLES).astype(np.float64)
    points = []
    for count in checkpoints(len(own) - len(tested)):
        predicted = _predicted(labels.take(np.arange(own[count])), test, table)
        errors = weights * (predicted - scores) ** 2
        points.append(_point(count, errors.sum(axis=1), weights.sum(axis=1), draws))
    return LearningCurve(
        key=key,
        tested=len(test),
        rate_error=round(float((weights * (rate - scores) ** 2).sum() / max(weights.sum(), 1e-9)), 4),
        points=points,
    )


def _predicted(before: Labels, test: Labels, table: Float) -> Float:
    """Return P(as good) [n, tiers - 1] of the prompts of `test`, as served with the labels `before`."""
    if not len(before):
        return np.clip(test.classes @ table.astype(np.float32), 0.0, 1.0)
    keys = {int(key) for key in np.unique(test.key)}
    estimator = LocalEstimator(before, table.astype(np.float32), keys=keys, apart=True)
    p_ok = np.zeros(test.scores.shape)
    for key, context, tenant in {*zip(test.key.tolist(), test.context.tolist(), test.tenant.tolist(), strict=True)}:
        at = (test.key == key) & (test.context == context)
        mine = test.take(at)
        p_ok[at] = estimator.score(mine.classes, mine.embedding, mine.surface, key, context, tenant, mine.whole)
    return np.clip(p_ok, 0.0, 1.0)


def _point(count: int, errors: Float, weights: Float, draws: Float) -> CurvePoint:
    """Return the ratio of two sums over prompts, with its interval over `draws` [resamples, n]."""
    below = draws @ weights
    drawn = (draws @ errors)[below > 0] / below[below > 0]
    error = float(errors.sum() / weights.sum()) if weights.sum() > 0 else 0.0
    low, high = np.percentile(drawn, (2.5, 97.5)) if len(drawn) else (error, error)
    return CurvePoint(labels=count, error=round(error, 4), low=round(float(low), 4), high=round(float(high), 4))


class LearningRecord:
    """What was learned, from a database; labels are read again only after a change."""

    def __init__(self, engine: AsyncEngine, redraw_seconds: float = 60.0) -> None:
        """`redraw_seconds`: the least time between two computations of the curves."""
        self._engine, self._redraw_seconds = engine, redraw_seconds
        self._drawn_at = -math.inf
        self._of: tuple[Any, ...] | None = None
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[Learning] | None = None
        self._last: Learning | None = None

    async def of(self, source: LabelSource) -> Learning:
        """Return what was learned by now."""
        async with self._turn:
            depends_on = source.model.version, source.tiers, await self._newest_labels()
            fresh = time.monotonic() < self._drawn_at + self._redraw_seconds
            if self._last is None or (depends_on != self._of and not fresh):
                self._last = await self._read(source)
                self._of, self._drawn_at = depends_on, time.monotonic()
            return self._last

    async def at_hand(self, source: LabelSource, wait_seconds: float) -> Learning | None:
        """Return `of` if it is quick, else the last result, or None without one. The computation continues."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self.of(source))
        await asyncio.wait((self._running,), timeout=wait_seconds)
        return await self._running if self._running.done() else self._last

    async def close(self) -> None:
        """Cancel the running computation."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def _newest_labels(self) -> tuple[Any, ...]:
        """Return a value that changes with each insertion or deletion among the newest labels."""
        number = training_rows.c.training_row_id
        newest = select(number).order_by(number.desc()).limit(MOST_LABELS).subquery()
        ends = func.count(), func.min(newest.c.training_row_id), func.max(newest.c.training_row_id)
        async with self._engine.connect() as connection:
            return tuple((await connection.execute(select(*ends))).one())

    async def _read(self, source: LabelSource) -> Learning:
        key = training_rows.c.key_id
        async with self._engine.connect() as connection:
            groups = await connection.execute(select(key, func.count()).group_by(key))
            counts: dict[str | None, int] = {key_id: int(count) for key_id, count in groups}
            most = sorted(counts, key=lambda key_id: (-counts[key_id], key_id or ""))[:MOST_KEYS]
            owners = await connection.execute(
                select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(most))
            )
            names = {row.key_id: row.name for row in owners}
        own = OwnLabels(
            self._engine,
            source.model,
            source.prior,
            lambda: source.tiers,
            keys_are_tenants=source.keys_are_tenants,
        )
        rows = await own.newest(MOST_LABELS)
        curves = {curve.key: curve for curve in await asyncio.to_thread(learning_curves, rows, source.prior)}
        return Learning(
            together=Learned(
                key_id=None, name="all keys together", labels=sum(counts.values()), curve=curves.get(None)
            ),
            keys=[
                Learned(
                    key_id=key_id,
                    name="requests without a key" if key_id is None else names.get(key_id, key_id),
                    labels=counts[key_id],
                    curve=curves.get(key_id or ""),
                )
                for key_id in most
            ],
        )


def in_words(learned: Learned) -> str:
    """Return how many labels there are, how many a model of the key's own still needs, and what they changed."""
    count = learned.labels
    if learned.key_id is None:
        labels = "1 label" if count == 1 else f"{count:,} labels"
    elif count >= ENOUGH_LABELS:
        labels = f"{count:,} labels, so that the key has its own model"
    else:
        labels = f"{count} of {ENOUGH_LABELS} labels; from about {ENOUGH_LABELS} on, the key has its own model"
    sentence = f"{learned.name}: {labels}."
    return sentence if learned.curve is None else f"{sentence} {_curve_in_words(learned.curve)}"


def _curve_in_words(curve: LearningCurve) -> str:
    first, last = curve.points[0], curve.points[-1]
    newest = f"{last.error:.3f} [{last.low:.3f}, {last.high:.3f}] with {last.labels}"
    if last.error < first.error:
        change = f"fell from {first.error:.3f} without labels of its own to {newest}"
    else:
        change = f"has not fallen yet: it is {newest}, and {first.error:.3f} without labels of its own"
    return (
        f"On its {curve.tested} newest labels, the prediction error {change}; each tier's own rate alone gives "
        f"{curve.rate_error:.3f}."
    )
