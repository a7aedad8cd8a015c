"""A back-test: what routing would have done with past requests, the cost, and the quality.

Prompts are decided without a server, with the classifier, probes and knobs of a data folder. Estimates have 95%
intervals by the delta method: one pass over any number of rows, no resampling.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from classifier.decision import Exclusion
from classifier.training.data.dataset import RIGHT
from gateway.base.inference_request import Caller, InferenceRequest
from gateway.base.settings import Settings
from gateway.inference.class_prior import class_prior
from gateway.inference.classifier_versions import ActiveClassifier, choice_at, rule_of
from gateway.inference.escalation import ActiveProbes
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.planning.backtests.log import BacktestLogError, LogRow, TierNames
from gateway.tenancy.keys.directory import INFERENCE, KnownKeys
from gateway.tenancy.keys.key_commands import name_of_team, shown_key
from gateway.tenancy.keys.key_secrets import keys_of
from inference_core.protocol import SamplingParams
from quality.estimates.verified_sample import Share, wilson_interval
from quality.learning.own_labels import OwnLabels
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.catalog.load import load_catalog
from tiers.catalog.pricing import request_cost_usd
from tiers.conversation import Turn
from tiers.tier import GenerationRequest


def dry_routing(settings: Settings) -> RoutingService:
    """Without tiers: none is down and nothing is queued, so that the prompt alone decides."""
    catalog = load_catalog(settings.catalog)
    classifier = ActiveClassifier(
        settings.registry_path,
        catalog.fingerprint,
        prior=class_prior(catalog, settings.data_path),
        class_encoder=settings.classifier_encoder,
    )
    classifier.load()
    knobs = RoutingKnobFile(settings.routing_knobs_path)
    ActiveProbes(settings.probes_path, CatalogInUse(catalog), knobs, classifier.use_lengths).load()
    return RoutingService(catalog, {}, classifier, settings.quality_target, knobs)


async def follow_labels(routing: RoutingService, engine: AsyncEngine, keys_are_tenants: bool) -> None:
    """Let the version of `routing` follow the labels in the database, as those of a server do."""
    if not isinstance(routing.classifier, ActiveClassifier) or (serving := routing.classifier.serving_or_none) is None:
        return
    for version in serving.versions:
        labels = OwnLabels(
            engine,
            version.model,
            version.table,
            lambda: routing.served.catalog.tier_fingerprints,
            version.head,
            keys_are_tenants,
        )
        version.own = await labels.catch_up(time.time())


async def caller_named(settings: Settings, catalog: Catalog, engine: AsyncEngine, key: str) -> Caller:
    """Return the caller with the key of this id or name, of the settings or stored. Raises `UnknownSubjectError`."""
    keys = keys_of(settings).answers
    if key in keys.names:
        return keys.caller(key, INFERENCE)
    row = await shown_key(engine, key)
    return KnownKeys(catalog, {}).caller_of(row | {"team_name": await name_of_team(engine, row["team_id"])})


def dry_request(messages: Iterable[Turn], max_tokens: int | None = None, **fields: Any) -> InferenceRequest:
    """A request for `auto` that is not sent; `fields` are those of the InferenceRequest."""
    return InferenceRequest(
        api="chat",
        requested_model="auto",
        generation=GenerationRequest(
            request_id="dry-run",
            sampling=SamplingParams(),
            arrival=time.monotonic(),
            messages=list(messages),
            max_tokens=max_tokens,
        ),
        created_at=time.time(),
        **fields,
    )


Float = npt.NDArray[np.float64]
Choice = npt.NDArray[np.intp]

_Z = 1.959963984540054


class Interval(msgspec.Struct, frozen=True):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float


def saving(costs: Float, baseline: Float) -> Interval:
    """1 - the ratio of sums of `costs` [n] and `baseline` [n]; paired, so that common variation cancels."""
    ratio = float(costs.sum() / baseline.sum())
    return _interval(1 - ratio, (costs - ratio * baseline) / baseline.mean())


def gain_over_shuffled(worth: Float, chosen: Choice, group: Choice) -> Interval:
    """Mean value of the chosen tiers minus that of the same choices assigned at random within each group.

    `worth` [n, tiers], NaN where unknown, which is never chosen; `group` [n]: rows with the same known tiers. The
    difference is the router's information, at equal cost.
    """
    n = len(worth)
    gains, influence = np.zeros(n), np.zeros(n)
    for number in np.unique(group):
        rows = np.flatnonzero(group == number)
        known_tiers = np.flatnonzero(~np.isnan(worth[rows[0]]))
        values = worth[np.ix_(rows, known_tiers)]
        picked = (known_tiers[None, :] == chosen[rows, None]).astype(np.float64)
        got = (values * picked).sum(axis=1)
        share, mean = picked.mean(axis=0), values.mean(axis=0)
        gains[rows] = got.mean() - share @ mean
        influence[rows] = (got - got.mean()) - (picked - share) @ mean - (values - mean) @ share
    value = float(gains.mean())
    return _interval(value, influence + gains - value)


def _interval(value: float, influence: Float) -> Interval:
    """`influence` [n]: how much each row moves the estimate, times n."""
    half = _Z * float(np.sqrt(np.mean(influence**2) / len(influence)))
    return Interval(value, value - half, value + half)


TARGETS = tuple(QUALITY_SETTINGS.values())
"""Those that have names."""

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]


class Labelled(msgspec.Struct, frozen=True, kw_only=True):
    """Measured on labelled rows, choosing among the labelled tiers of each."""

    no_worse: Share
    """Share of answers no worse than the strongest tier's."""
    gain: Interval
    """Improvement over assigning the same choices at random, at the same cost; an uninformed router has 0."""
    saving: Interval


class TargetResult(msgspec.Struct, frozen=True, kw_only=True):
    """One quality target."""

    quality_target: float
    split: list[float]
    """Share of the requests by tier. `cost_usd` of all of them."""
    cost_usd: float
    """Cost of all requests."""
    cost_per_request_usd: float
    saving: Interval
    """Saving against the strongest tier alone."""
    predicted_no_worse: float
    """The classifier's prediction for its choices."""
    labelled: Labelled | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a backtest."""

    classifier: str
    kind: str
    rows: int
    estimated_answers: int
    """Number of rows without `answer_tokens`, which are priced at the catalogue's expected answer."""
    priced: int
    paid_usd: float
    """Actual cost of the `priced` rows that give it."""
    strongest_cost_usd: float
    """Cost of all requests on the strongest tier."""
    labelled: int
    """Number of rows with labels of the strongest tier and another."""
    tiers_labelled: list[int]
    """Number of labels of each tier."""
    targets: list[TargetResult]


class Backtest:
    """Takes rows one by one and keeps only numbers, some hundred bytes a row. Rows do not influence each other.

    `routing` decides as it would now, without load: every tier is up and nothing waits.
    """

    def __init__(self, routing: RoutingService, names: TierNames, targets: Sequence[float] = TARGETS) -> None:
        self._routing, self._names = routing, names
        self._rules = [rule_of(routing.classifier, "backtest", target) for target in targets]
        self._chosen: list[list[int]] = []
        self._chosen_labelled: list[list[int]] = []
        self._p_ok: list[list[float]] = []
        self._costs: list[list[float]] = []
        self._scores: list[list[float]] = []
        self._paid: list[float] = []
        self._estimated = 0
        self._said_by: tuple[str, str] = ("", "")

    def add(self, row: LogRow) -> None:
        """Decide about one row at every target. Raises `BacktestLogError` for a score of an unknown tier."""
        scores = self._names.scores(row)
        turns = [Turn.of(turn.role, turn.text) for turn in row.turns]
        inputs = self._routing.route(dry_request(turns, max_tokens=row.max_tokens)).inputs
        self._said_by = inputs.prediction.classifier_version, inputs.prediction.kind
        chosen = [choice_at(inputs, rule) for rule in self._rules]
        self._chosen.append(chosen)
        self._p_ok.append([inputs.prediction.p_ok[tier - 1] for tier in chosen])
        self._costs.append(self._costs_of(row))
        self._scores.append([np.nan if score is None else score for score in scores])
        unlabelled = [k for k, score in enumerate(scores, start=1) if score is None]
        if not unlabelled or scores[-1] is None:
            self._chosen_labelled.append(chosen)
        else:
            barred = [Exclusion(tier=k, reason="the log has no label") for k in unlabelled]
            among = msgspec.structs.replace(inputs, exclusions=[*inputs.exclusions, *barred])
            self._chosen_labelled.append([choice_at(among, rule) for rule in self._rules])
        if row.cost_usd is not None:
            self._paid.append(row.cost_usd)

    def report(self) -> Report:
        """Return the results of all rows. Raises `BacktestLogError` if there are none."""
        if not self._chosen:
            raise BacktestLogError("the log has no rows.")
        costs, scores = np.array(self._costs), np.array(self._scores)
        no_worse = _no_worse(scores)
        labelled = np.flatnonzero((~np.isnan(no_worse)).sum(axis=1) > 1)
        chosen, among = np.array(self._chosen) - 1, np.array(self._chosen_labelled) - 1
        p_ok = np.array(self._p_ok)
        return Report(
            classifier=self._said_by[0],
            kind=self._said_by[1],
            rows=len(costs),
            estimated_answers=self._estimated,
            priced=len(self._paid),
            paid_usd=sum(self._paid),
            strongest_cost_usd=float(costs[:, -1].sum()),
            labelled=len(labelled),
            tiers_labelled=(~np.isnan(scores)).sum(axis=0).tolist(),
            targets=[
                TargetResult(
                    quality_target=rule.quality_target,
                    split=(np.bincount(chosen[:, i], minlength=costs.shape[1]) / len(costs)).tolist(),
                    cost_usd=float(_taken(costs, chosen[:, i]).sum()),
                    cost_per_request_usd=float(_taken(costs, chosen[:, i]).mean()),
                    saving=saving(_taken(costs, chosen[:, i]), costs[:, -1]),
                    predicted_no_worse=float(p_ok[:, i].mean()),
                    labelled=_measured(no_worse[labelled], among[labelled, i], costs[labelled]),
                )
                for i, rule in enumerate(self._rules)
            ],
        )

    def _costs_of(self, row: LogRow) -> list[float]:
        """Return the US dollars of this request on each tier; an answer is as long as the logged one."""
        prompt = row.prompt_tokens
        if prompt is None:
            prompt = sum(len(turn.text) for turn in row.turns) // 4 + 4 * len(row.turns)
        self._estimated += row.answer_tokens is None
        return [
            request_cost_usd(
                spec.price,
                prompt,
                spec.expected_answer_tokens
                if row.answer_tokens is None
                else row.answer_tokens * spec.samples_per_choice,
            )
            for spec in self._routing.served.catalog.tiers
        ]


def _taken(values: Floats, tiers: Numbers) -> Floats:
    """Return, from `values` [n, tiers], those of the chosen tiers."""
    taken: Floats = values[np.arange(len(values)), tiers]
    return taken


def _measured(no_worse: Floats, chosen: Numbers, costs: Floats) -> Labelled | None:
    """Return None without labelled rows."""
    if not len(no_worse):
        return None
    _, group = np.unique(np.isnan(no_worse), axis=0, return_inverse=True)
    return Labelled(
        no_worse=wilson_interval(int(_taken(no_worse, chosen).sum()), len(no_worse)),
        gain=gain_over_shuffled(no_worse, chosen, group.ravel()),
        saving=saving(_taken(costs, chosen), costs[:, -1]),
    )


def _no_worse(scores: Floats) -> Floats:
    """Return [n, tiers] from scores [n, tiers]: right, or the strongest is wrong (docs/classifier.md), or unknown."""
    right = np.where(np.isnan(scores), np.nan, scores >= RIGHT)
    unknown = np.isnan(right) | np.isnan(right[:, -1:])
    return np.where(unknown, np.nan, np.maximum(right, 1 - right[:, -1:]))
