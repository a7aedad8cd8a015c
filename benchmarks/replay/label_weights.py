"""What it is worth to weigh labels by the inverse of their chance of being drawn: simulated lives of a customer's own
labels, each with and without these weights on the same prompts, draws and errors of the judge.

Requests are routed by what is known so far, drawn as the monitor draws them, and their labels learned as the gateway
learns them; there is no gateway. Two ways to draw: `dense`, as in a replay: every cheap answer is a sample and the
first requests with checkable answers are probes; `steady`, by the default rates, eight times as high.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.replay.ladder import Ladder, tokens_of, uniform
from classifier.class_predictor import ClassPredictor
from classifier.complexity.classes import adequacies, like_of
from classifier.complexity.model import shipped_complexity, standardised
from classifier.features.routing_input import routing_input
from classifier.local.cells import Labels
from classifier.local.estimator import LocalEstimator
from classifier.policy.utility import DEFAULT_EXCHANGE, ENOUGH, utility
from classifier.registry.artefact import default_artefact, load_artefact
from quality.verification.sampling import doubt
from quality.verification.training_rows import by_chance, chances, without_errors

Float = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

PROMPTS, _BATCH, _EVERY_HELD = 1000, 25, 5
_NOISE = 0.08
_INFORMED = 1 - 2 * _NOISE
# The weaker tiers that are judged where a tier served.
_JUDGED = {1: [1], 2: [2], 3: [2, 3], 4: [3]}
# Of prompts that are new to the labels by half.
_NOVELTY, _LEAST_ATTENTION = 0.5, 0.25


class Drawing(NamedTuple):
    """Rates of samples by tier and of probes; of the `first` requests all are probes."""

    name: str
    rates: tuple[float, float, float, float]
    probes: float
    first: int = 0


DENSE, STEADY = Drawing("dense", (1.0, 1.0, 0.2, 0.2), 0.01), Drawing("steady", (0.4, 0.4, 0.08, 0.08), 0.08)
FIRST = 30


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prompts that were never asked: share no worse, cost as a share of the strongest tier's, utility, and the
    squared error of P; and how many labels were learned from."""

    quality: float
    cost: float
    utility: float
    error: float
    labels: int


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One life twice."""

    seed: int
    drawing: str
    weighed: Lived
    alike: Lived


def pairs(ladder: Ladder, drawings: Sequence[tuple[Drawing, int]], seeds: Sequence[int]) -> Iterator[Pair]:
    """Live with each of `drawings` until so many labels, once by seed and way to weigh."""
    for seed in seeds:
        known = _Encoded(ladder, seed)
        for drawing, labels in drawings:
            lived = [_Life(known, drawing, is_weighed).lived(labels) for is_weighed in (True, False)]
            yield Pair(seed=seed, drawing=f"{drawing.name}, {labels}", weighed=lived[0], alike=lived[1])


class _Encoded:
    """At most `PROMPTS` of a ladder in the order of a seed, as the classifier sees them, with what is random."""

    def __init__(self, ladder: Ladder, seed: int) -> None:
        ordered = sorted(ladder.prompts, key=lambda one: uniform("sim", seed, one.prompt_id))
        self.ladder = ladder.of(ordered[:PROMPTS])
        prompts = self.ladder.prompts
        model, shipped = load_artefact(default_artefact()), shipped_complexity()
        given = [routing_input([{"role": "user", "content": one.text}]) for one in prompts]
        turns = [model.encode(one) for one in given]
        predictor = ClassPredictor(model)
        self.classes = np.array([predictor.classes(*one) for one in zip(given, turns, strict=True)], np.float32)
        self.embedding = np.stack([turn.embedding for turn in turns]).astype(np.float32)
        self.surface = standardised(np.stack([turn.features for turn in turns]), shipped.centre, shipped.scale)
        price = np.array([terms.price for terms in ladder.tiers]) / 1e6
        answer = np.array([[one.tokens for one in prompt.answers] for prompt in prompts]).mean(axis=0)
        asked = np.array([tokens_of(one.text) for one in prompts])
        self.expected = (asked[:, None] + answer) * price
        self.reference = float(self.expected[:, -1].mean())
        self.random = {
            name: np.array([uniform(name, seed, one.prompt_id) for one in prompts])
            for name in ("probe", "sample", "n1", "n2", "n3")
        }

    def said(self, row: int, tier: int) -> bool:
        """The judge's word on an answer."""
        return bool(self.ladder.no_worse[row, tier - 1]) ^ bool(self.random[f"n{tier}"][row] < _NOISE)


class _Life:
    def __init__(self, known: _Encoded, drawing: Drawing, is_weighed: bool) -> None:
        self._known, self._drawing, self._is_weighed = known, drawing, is_weighed
        self._table = adequacies(like_of(4))[:, :-1].astype(np.float32)
        self._rows: list[int] = []
        self._scores: list[Float] = []
        self._told: list[list[float]] = []
        self._chance: list[list[float]] = []
        self._estimator: LocalEstimator | None = None
        self._probed = 0

    def lived(self, labels: int) -> Lived:
        """Ask until so many labels, or until no prompt is left."""
        known = self._known
        held = np.arange(len(known.classes)) % _EVERY_HELD == 0
        traffic, asked = np.flatnonzero(~held), np.flatnonzero(held)
        for start in range(0, len(traffic), _BATCH):
            batch = traffic[start : start + _BATCH]
            for row, tier, p in zip(batch.tolist(), *self._routed(batch), strict=True):
                self._draw(row, int(tier), p)
            if self._rows:
                self._estimator = self._fitted()
            if self._labels >= labels:
                break
        tiers, p = self._routed(asked)
        good, costs = known.ladder.no_worse[asked], known.ladder.costs[asked]
        quality = float(good[np.arange(len(asked)), tiers - 1].mean())
        cost = float(costs[np.arange(len(asked)), tiers - 1].sum() / costs[:, -1].sum())
        return Lived(
            quality=quality,
            cost=cost,
            utility=quality - DEFAULT_EXCHANGE * cost,
            error=float(((p[:, :3] - good[:, :3]) ** 2).mean()),
            labels=self._labels,
        )

    @property
    def _labels(self) -> int:
        return int(np.sum(~np.isnan(self._scores)))

    def _routed(self, rows: Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.floating]]:
        """The tiers, from 1 on, and P(no worse) [n, 4]."""
        known = self._known
        classes = known.classes[rows]
        if self._estimator is None:
            scores = classes @ self._table
        else:
            scores = self._estimator.score(classes, known.embedding[rows], known.surface[rows], 0, -1)
        p = np.hstack([np.clip(scores, 0, 1), np.ones((len(rows), 1))])
        counted = p if self._estimator else np.where(p >= ENOUGH, 1.0, p)
        return utility(counted, known.expected[rows], known.reference, DEFAULT_EXCHANGE).argmax(axis=1) + 1, p

    def _draw(self, row: int, tier: int, p: npt.NDArray[np.floating]) -> None:
        known, drawing = self._known, self._drawing
        probes = 1.0 if self._probed < drawing.first else drawing.probes
        is_probe = bool(known.random["probe"][row] < probes)
        if is_probe:
            probability, judged = probes, [1, 2, 3]
            self._probed += 1
        else:
            rate = drawing.rates[tier - 1]
            attention = _LEAST_ATTENTION + (1 - _LEAST_ATTENTION) * doubt(float(p[min(tier, 3) - 1]), _NOVELTY)
            probability, judged = rate * attention if rate < 1 else 1.0, _JUDGED[tier]
            if known.random["sample"][row] >= probability:
                return
        said = [float(known.said(row, one)) if one in judged else np.nan for one in (1, 2, 3)]
        self._rows.append(row)
        self._scores.append(without_errors(np.array(said, np.float32), np.full(3, _INFORMED, np.float32)))
        self._told.append([_INFORMED**2 * (one in judged) for one in (1, 2, 3)])
        self._chance.append(chances(probability, is_probe, judged, _JUDGED[tier], 4)[:3])

    def _fitted(self) -> LocalEstimator:
        known, rows, n = self._known, self._rows, len(self._rows)
        weights = np.array(self._told, np.float32)
        if self._is_weighed:
            weights = weights * by_chance(np.array(self._chance, np.float32), weights, np.zeros(n, np.int32))
        labels = Labels(
            classes=known.classes[rows],
            embedding=known.embedding[rows],
            surface=known.surface[rows],
            scores=np.array(self._scores, np.float32),
            weights=weights,
            key=np.zeros(n, np.int32),
            context=np.full(n, -1, np.int32),
            tenant=np.full(n, -1, np.int32),
            private=np.zeros(n, np.bool_),
        )
        return LocalEstimator(labels, self._table)
