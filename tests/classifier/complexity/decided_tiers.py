"""The tier of a request by the shipped classifier and by its length alone, and the share of rows that a tier suits."""

from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.class_predictor import ClassPredictor, threshold_of
from classifier.decision import PolicyInputs
from classifier.features.routing_input import routing_input
from classifier.policy.decide import decide
from classifier.policy.utility import reference_prices
from classifier.registry.artefact import default_artefact, load_artefact
from gateway.inference.clients import recognised
from tests.classifier.complexity.held_out import Message, Row, rated
from tiers.conversation import Turn

Tiers = npt.NDArray[np.integer]
Hits = npt.NDArray[np.bool_]
TIERS = (1, 2, 3, 4)
FOLDS = 5
# A set of hard requests alone would part nothing.
SHARING_LENGTHS = {"short_hard": ("short_hard", "languages")}
# The quantile of the normal distribution for an interval of 95%.
Z = 1.96


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The share `hits` of `n` rows, and what controls reach; None where a control says nothing of the measure.

    `length`: tiers by the length alone; `one_tier`: the best constant in hindsight; `others`: by their names.
    """

    set: str
    measure: str
    hits: int
    n: int
    length: float | None = None
    one_tier: float | None = None
    others: dict[str, float] = {}

    @property
    def share(self) -> float:
        return self.hits / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's of 95%."""
        p, n, of_z = self.share, self.n, Z * Z
        half = Z * (p * (1 - p) / n + of_z / (4 * n * n)) ** 0.5
        return (p + of_z / (2 * n) - half) / (1 + of_z / n), (p + of_z / (2 * n) + half) / (1 + of_z / n)


@cache
def _predictor() -> ClassPredictor:
    return ClassPredictor(load_artefact(default_artefact()), None)


def tiers_of(requests: Iterable[Sequence[Message]]) -> Tiers:
    """Return the tier [n] of each request's newest turn: of a cold start, at the default target and prices."""
    predictor, target, found = _predictor(), threshold_of(None), []
    costs = reference_prices(predictor.tiers).tolist()
    for messages in requests:
        prediction, _ = predictor.read(routing_input(messages))
        inputs = PolicyInputs(
            prediction=prediction, costs=costs, quality_target=target, tau=target, objective="utility"
        )
        found.append(decide(inputs).tier)
    return np.array(found)


def gateway_tiers_of(requests: Sequence[Sequence[Message]]) -> Tiers:
    """Return the tiers as the gateway chooses them: housekeeping of a client that it recognises goes to tier 1."""
    found = tiers_of(requests)
    for n, messages in enumerate(requests):
        client = recognised({}, None, [Turn.of(one["role"], one["content"]) for one in messages])
        if client is not None and client.kind == "housekeeping":
            found[n] = 1
    return found


def shares_of(tiers: Tiers) -> list[float]:
    """Return the share of each tier."""
    return [float(np.mean(tiers == tier)) for tier in TIERS]


def within(rows: Sequence[Row], tiers: Tiers) -> Hits:
    """Return whose tier is an accepted one."""
    least, most = np.array([(row.lo, row.hi) for row in rows]).T
    found: Hits = (least <= tiers) & (tiers <= most)
    return found


def best_constant(rows: Sequence[Row]) -> float:
    """Return the share of rows that the one tier accepted most often suits."""
    return max(float(within(rows, np.full(len(rows), tier)).mean()) for tier in TIERS)


def by_length(name: str, rows: Sequence[Row], texts: Sequence[str]) -> Tiers:
    """Return tiers by the lengths of `texts` alone, parted where rows of the set outside the fold of a text's row are
    parted best."""
    cuts = [_cuts(name, _fold(row)) for row in rows]
    return np.array([1 + sum(len(text) >= cut for cut in own) for own, text in zip(cuts, texts, strict=True)])


def _fold(row: Row) -> int:
    return int(row.id.partition("-")[2]) % FOLDS


@cache
def _cuts(name: str, fold: int) -> tuple[int, ...]:
    """Return three lengths, chosen one after the other on the newest turns of the set's rows outside `fold`."""
    known = [row for own in SHARING_LENGTHS.get(name, (name,)) for row in rated(own) if _fold(row) != fold]
    texts = [(row, text) for row in known for text in row.texts.values() or [row.messages[-1]["content"]]]
    rows, length = [row for row, _ in texts], np.array([len(text) for _, text in texts])
    cuts: list[int] = []
    for _ in range(len(TIERS) - 1):
        candidates = sorted({0, *length.tolist(), int(length.max()) + 1})
        hits = [within(rows, 1 + np.sum(length[:, None] >= [*cuts, cut], axis=1)).sum() for cut in candidates]
        cuts.append(candidates[int(np.argmax(hits))])
    return tuple(cuts)
