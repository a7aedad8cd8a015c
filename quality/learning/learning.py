"""What a gateway has learned from each key's prompts: labels, traffic, savings, prediction quality, and the learning
curve.

The curve predicts the newest labels from growing prefixes of the earlier ones. At each point the serving estimator is
fitted on the labels that were stored when the key had that many, starting from the estimate that AIO ships with, and is
tested on later labels. All points of a curve are tested on the same labels, so they differ by what was learned and not
by what was asked."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.local.cells import Labels
from classifier.local.estimator import LocalEstimator
from classifier.local.own import LabelledRow, as_labels
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.utility import highest_utility, reference_prices, utility
from migrations.tables.quality import training_rows
from migrations.tables.tenancy import api_keys
from quality.estimates.traffic import RoutedRequest, Traffic, expected_in_words, newest_requests, traffic
from quality.estimates.traffic import in_words as traffic_in_words
from quality.learning.own_labels import OwnLabels

Float = npt.NDArray[np.floating]

CHECKPOINTS = (0, 25, 50, 100, 200, 400)
# The newest third of the labels is predicted, up to a limit; with too few labels there is no curve.
TESTED_SHARE, MOST_TESTED, LEAST_LABELS = 1 / 3, 150, 15
# Money and quality need prompts for which every tier's answer is labelled.
LEAST_LADDERS = 5
# The keys with the most labels get a curve each.
MOST_KEYS = 8
_RESAMPLES, _SEED = 400, 7


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its 95% interval, by resampling prompts (percentile bootstrap, Efron 1979)."""

    value: float
    low: float
    high: float


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a curve, at `labels` labels. All figures but the error cover the tested prompts with labels of all
    tiers, and are None if these are too few.
    """

    labels: int
    error: Measured
    """The mean squared error of P(as good) on the tested labels (Brier score)."""
    no_worse: Measured | None = None
    """Share of the chosen tiers' answers that were as good as the strongest's."""
    saving: Measured | None = None
    """The share of the strongest tier's cost that is saved."""
    utility: Measured | None = None
    """The utility of every decision."""
    of_oracle: Measured | None = None
    """The share of the oracle's gain in utility over the strongest tier alone."""


class LearningCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The curve of one key's labels, or of all (`key` None; "": requests without a key)."""

    key: str | None
    tested: int
    """How many labels were predicted."""
    ladders: int
    """How many prompts have labels of all tiers."""
    rate_error: float
    """The error of each tier's own rate among the tested labels, the best prediction that ignores the prompt."""
    points: list[CurvePoint]


def learning_curves(rows: Sequence[LabelledRow], table: Float, exchange: float, prices: Float) -> list[LearningCurve]:
    """Return the curve of all labels, then those of the keys with the most labels.

    `rows`: oldest first. `table` [4, tiers - 1]: the estimate by class without labels. `exchange`: what a strongest
    answer is worth, in shares of answers as good. `prices` [tiers]: of an answer. Pure; takes seconds of a core.
    """
    if len(rows) < LEAST_LABELS:
        return []
    labels, keys = as_labels(rows)
    shipped = table.astype(np.float32)
    curves = [_curve(None, labels, np.arange(len(labels)), shipped, exchange, prices)]
    counts = np.bincount(labels.key)
    largest = [key for key in np.argsort(-counts, kind="stable")[:MOST_KEYS] if counts[key] >= LEAST_LABELS]
    curves += [
        _curve(keys[key], labels, np.flatnonzero(labels.key == key), shipped, exchange, prices) for key in largest
    ]
    return curves


def checkpoints(known: int) -> list[int]:
    """Return the numbers of labels at which a curve is drawn, given `known` labels before the tested ones."""
    return [*(n for n in CHECKPOINTS if n < 0.8 * known), known]


def _curve(
    key: str | None, labels: Labels, own: npt.NDArray[np.intp], table: Float, exchange: float, prices: Float
) -> LearningCurve:
    """Compute one curve; `own`: indices of the key's labels among all."""
    tested = own[-min(int(len(own) * TESTED_SHARE), MOST_TESTED) :]
    test, known = labels.take(tested), len(own) - len(tested)
    told, scores = test.told.astype(np.float64), np.nan_to_num(test.scores).astype(np.float64)
    rate = (told * scores).sum(axis=0) / np.maximum(told.sum(axis=0), 1e-9)
    ladders = (test.told > 0).all(axis=1)
    even = np.full(len(test), 1 / len(test))
    draws = np.random.default_rng(_SEED).multinomial(len(test), even, _RESAMPLES).astype(np.float64)
    points = []
    for count in checkpoints(known):
        predicted = _predicted(labels.take(np.arange(own[count])), test, table)
        errors = told * (predicted - scores) ** 2
        point = CurvePoint(labels=count, error=_ratio(errors.sum(axis=1), told.sum(axis=1), draws))
        if ladders.sum() >= LEAST_LADDERS:
            point = _with_utility(point, predicted[ladders], scores[ladders], exchange, prices, draws[:, ladders])
        points.append(point)
    return LearningCurve(
        key=key,
        tested=len(test),
        ladders=int(ladders.sum()),
        rate_error=round(float((told * (rate - scores) ** 2).sum() / max(told.sum(), 1e-9)), 4),
        points=points,
    )


def _predicted(known: Labels, test: Labels, table: Float) -> Float:
    """Return P(as good) [n, tiers - 1] of the prompts of `test`, as served with the labels `known`."""
    asked = {int(key) for key in np.unique(test.key)}
    if not len(known):
        return np.clip(test.classes @ table.astype(np.float32), 0.0, 1.0)
    estimator = LocalEstimator(known, table.astype(np.float32), keys=asked, apart=True)
    found = np.zeros(test.scores.shape)
    for key, context, tenant in {*zip(test.key.tolist(), test.context.tolist(), test.tenant.tolist(), strict=True)}:
        at = (test.key == key) & (test.context == context)
        mine = test.take(at)
        found[at] = estimator.score(mine.classes, mine.embedding, mine.surface, key, context, tenant, mine.whole)
    return np.clip(found, 0.0, 1.0)


def _with_utility(
    point: CurvePoint, p_ok: Float, scores: Float, exchange: float, prices: Float, draws: Float
) -> CurvePoint:
    """Return `point` with the results of the default rule on prompts with labels of all tiers."""
    each, ones = np.arange(len(p_ok)), np.ones(len(p_ok))
    quality = np.column_stack((scores, ones))
    share = prices / prices[-1]
    utilities = utility(quality, prices, prices[-1], exchange)
    chosen = highest_utility(np.column_stack((p_ok, ones)), prices, exchange)
    gained = utilities[each, chosen] - utilities[:, -1]
    possible = utilities.max(axis=1) - utilities[:, -1]
    return msgspec.structs.replace(
        point,
        no_worse=_ratio(quality[each, chosen], ones, draws),
        saving=_ratio(1 - share[chosen], ones, draws),
        utility=_ratio(utilities[each, chosen], ones, draws),
        of_oracle=_ratio(gained, possible, draws) if possible.sum() > 0 else None,
    )


def _ratio(part: Float, whole: Float, draws: Float) -> Measured:
    """Return the ratio of two sums over prompts, with its interval over `draws` [resamples, n]."""
    below = draws @ whole
    drawn = (draws @ part)[below > 0] / below[below > 0]
    value = float(part.sum() / whole.sum()) if whole.sum() > 0 else 0.0
    low, high = np.percentile(drawn, (2.5, 97.5)) if len(drawn) else (value, value)
    return Measured(value=round(value, 4), low=round(float(low), 4), high=round(float(high), 4))


# From about this many labels on, a key's own outcomes predict better than those of all keys together.
ENOUGH_LABELS = 100
# The newest requests and labels are read up to these numbers.
MOST_REQUESTS, MOST_LABELS = 2000, 2048
# The number of times at which labels are counted.
_TIMES = 25
# With more keys than this, names are not read and ids are shown.
_MOST_NAMES = 1000


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned from one key."""

    key_id: str | None
    """None for requests without a key, or for all keys together."""
    name: str
    labels: int
    """The number of all labels."""
    labels_at: list[int]
    """The number of labels at each of `Learning.times`."""
    traffic: Traffic | None = None
    """The newest requests, None without any."""
    curve: LearningCurve | None = None
    """None while there are too few labels."""


class Learning(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned, by key."""

    times: list[float]
    """Epoch seconds, evenly spaced since the first of the newest labels."""
    together: Learned
    keys: list[Learned]
    """Sorted by requests, then by labels, descending."""


class LabelSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which labels count: those in `model`'s encoding with outcomes of `tiers` (fingerprints)."""

    model: OutcomeModel
    tiers: tuple[str, ...]
    prior: npt.NDArray[np.float32]
    """[4, tiers - 1]: the estimate by class without labels."""
    exchange: float
    """What a strongest answer is worth, in shares of answers as good."""
    keys_are_tenants: bool = False
    """As for `OwnLabels`."""


class _LabelCounts(NamedTuple):
    """Label counts by key: totals, and the counts at `times`."""

    counts: dict[str | None, int]
    times: list[float]
    at: dict[str | None, list[int]]


class LearningRecord:
    """What was learned, from a database; labels are read again only after a change."""

    def __init__(self, engine: AsyncEngine, redraw_seconds: float = 60.0) -> None:
        """`redraw_seconds`: the least time between two computations of the curves."""
        self._engine, self._redraw_seconds = engine, redraw_seconds
        self._drawn_at = -math.inf
        self._of: tuple[Any, ...] | None = None
        self._labels = _LabelCounts({}, [], {})
        self._curves: list[LearningCurve] = []
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[Learning] | None = None
        self._last: Learning | None = None

    async def of(self, source: LabelSource, since: float = 0.0) -> Learning:
        """Return what was learned by now; requests are read from `since` (epoch seconds) on."""
        async with self._turn:
            routed = await newest_requests(self._engine, since, MOST_REQUESTS)
            known_of = source.model.version, source.tiers, source.exchange, await self._newest_labels()
            if known_of != self._of and time.monotonic() >= self._drawn_at + self._redraw_seconds:
                self._labels = await _label_counts(self._engine)
                own = OwnLabels(
                    self._engine,
                    source.model,
                    source.prior,
                    lambda: source.tiers,
                    keys_are_tenants=source.keys_are_tenants,
                )
                rows = await own.newest(MOST_LABELS)
                prices = _prices(routed, source.prior.shape[1] + 1)
                self._curves = await asyncio.to_thread(learning_curves, rows, source.prior, source.exchange, prices)
                self._of, self._drawn_at = known_of, time.monotonic()
            found = await self._put_together(routed)
        self._last = found
        return found

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

    async def _put_together(self, routed: Sequence[RoutedRequest]) -> Learning:
        by_key: dict[str | None, list[RoutedRequest]] = defaultdict(list)
        for one in routed:
            by_key[one.key_id].append(one)
        curves = {curve.key: curve for curve in self._curves}
        counts, times, at = self._labels
        keys = {**by_key, **counts}
        names = await _names(self._engine, [key for key in keys if key is not None])
        found = [
            Learned(
                key_id=key,
                name="requests without a key" if key is None else names.get(key, key),
                labels=counts.get(key, 0),
                labels_at=at.get(key, [counts.get(key, 0)] * len(times)),
                traffic=traffic(by_key[key]) if key in by_key else None,
                curve=curves.get(key or ""),
            )
            for key in keys
        ]
        found.sort(key=lambda one: (-(one.traffic.requests if one.traffic else 0), -one.labels, one.key_id or ""))
        together = Learned(
            key_id=None,
            name="all keys together",
            labels=sum(counts.values()),
            labels_at=[sum(column) for column in zip(*(one.labels_at for one in found), strict=True)],
            traffic=traffic(routed) if routed else None,
            curve=curves.get(None),
        )
        return Learning(times=times, together=together, keys=found)


def in_words(one: Learned) -> str:
    """Return a paragraph that sums up one key."""
    sentences = [f"{one.name}: {labels_in_words(one)}."]
    if one.traffic is not None:
        sentences += [*traffic_in_words(one.traffic), expected_in_words(one.traffic, one.labels)]
    if one.curve is not None:
        sentences += curve_in_words(one.curve)
    return " ".join(sentence for sentence in sentences if sentence)


def labels_in_words(one: Learned) -> str:
    """Return a sentence on the number of labels, and how many a model of the key's own still needs."""
    if one.key_id is None:
        return "1 label" if one.labels == 1 else f"{one.labels:,} labels"
    if one.labels >= ENOUGH_LABELS:
        return f"{one.labels:,} labels, so that the key has its own model"
    return f"{one.labels} of {ENOUGH_LABELS} labels; from about {ENOUGH_LABELS} on, the key has its own model"


def curve_in_words(curve: LearningCurve) -> list[str]:
    """Return a sentence on what the labels changed, tested on the newest of them."""
    first, last = curve.points[0], curve.points[-1]
    found = [
        f"On its {curve.tested} newest labels, the prediction error fell from {first.error.value:.3f} without labels "
        f"of its own to {last.error.value:.3f} [{last.error.low:.3f}, {last.error.high:.3f}] with {last.labels}; each "
        f"tier's own rate alone gives {curve.rate_error:.3f}."
        if last.error.value < first.error.value
        else f"On its {curve.tested} newest labels, the prediction error is {last.error.value:.3f} "
        f"[{last.error.low:.3f}, {last.error.high:.3f}] with {last.labels} labels, and {first.error.value:.3f} without "
        f"labels of its own: it has not fallen yet. Each tier's own rate alone gives {curve.rate_error:.3f}."
    ]
    if last.saving is not None and last.no_worse is not None and last.utility is not None:
        text = (
            f"Against the {curve.ladders} labels of all tiers among them, the default setting saves "
            f"{_measured(last.saving)} with {_measured(last.no_worse)} of the answers as good; utility "
            f"{last.utility.value:.3f} [{last.utility.low:.3f}, {last.utility.high:.3f}]"
        )
        if last.of_oracle is not None and last.of_oracle.value < 0:
            text += ", which is less than the strongest tier alone would have"
        elif last.of_oracle is not None:
            text += f", {_measured(last.of_oracle)} of what the best possible choice gains"
        found.append(text + ".")
    return found


async def _label_counts(engine: AsyncEngine) -> _LabelCounts:
    """Count labels. Totals are exact; times are known of the newest labels, and all others came before."""
    key, created = training_rows.c.key_id, training_rows.c.created_at
    newest = select(key, created).order_by(training_rows.c.training_row_id.desc()).limit(MOST_LABELS)
    async with engine.connect() as connection:
        total = await connection.execute(select(key, func.count()).group_by(key))
        counts: dict[str | None, int] = {one: int(count) for one, count in total}
        rows = (await connection.execute(newest)).all()
    if not rows:
        return _LabelCounts({}, [], {})
    first, last = min(when for _, when in rows), max(when for _, when in rows)
    times = [first + (last - first) * n / (_TIMES - 1) for n in range(_TIMES)]
    came: dict[str | None, list[float]] = defaultdict(list)
    for one, when in rows:
        came[one].append(when)
    return _LabelCounts(
        counts,
        times,
        {one: [counts[one] - sum(at > time for at in mine) for time in times] for one, mine in came.items()},
    )


async def _names(engine: AsyncEngine, keys: Sequence[str]) -> dict[str, str]:
    known = select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(keys[:_MOST_NAMES]))
    async with engine.connect() as connection:
        rows = (await connection.execute(known)).all()
    return {key: name for key, name in rows}  # noqa: C416 (rows are no pairs to mypy)


def _prices(routed: Sequence[RoutedRequest], tiers: int) -> npt.NDArray[np.float64]:
    """Return the price [tiers] of an answer: the mean prediction for the newest requests, else reference prices."""
    costs = [one.costs for one in routed if len(one.costs) == tiers]
    mean = np.mean(costs, axis=0) if costs else np.zeros(tiers)
    return mean if mean[-1] > 0 else np.asarray(reference_prices(tiers), np.float64)


def _measured(one: Measured) -> str:
    return f"{one.value:.0%} [{one.low:.0%}, {one.high:.0%}]"
