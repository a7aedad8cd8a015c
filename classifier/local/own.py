"""A catalogue's own labels with keys and system prompts by name, and features as stored.

What tenants teach each other is bounded in decisions. Each decision is made either by the labels of the caller's tenant
alone, or by those of all tenants; the latter at most where `RoutingInput.from_others` says so, which the gateway sets
for a share of the requests. The labels of other tenants thus change no more than that share of a tenant's decisions,
however many tenants teach the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.complexity.model import shipped_complexity, standardised
from classifier.features.routing_input import RoutingInput
from classifier.local.cells import Labels
from classifier.local.estimator import LEAST_FOR_HEAD, Estimate, LocalEstimator
from classifier.model.learned import LearnedHead
from classifier.model.outcome_model import EncodedTurn

Float = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LabelledRow:
    """One labelled prompt as stored."""

    classes: Sequence[float]
    embedding: Float
    features: Float
    scores: Sequence[float]
    """By tier, its answer compared with the strongest tier's: 1 as good, 0 worse, NaN unobserved."""
    weights: Sequence[float]
    key: str
    """The caller's key; "" for none."""
    app: str
    """The system prompt; "" for none."""
    at: float
    """Epoch seconds."""
    tenant: str = ""
    """The tenant whose labels count fully for each other; "" for all."""
    private: bool = False
    """Whether the label counts for `key` alone."""
    whole: Sequence[float] = ()
    """P of the classes of the whole turn, empty where it brings no material or the row is of an earlier release."""


class OwnOutcomes:
    """Immutable, thread-safe."""

    def __init__(
        self, rows: Sequence[LabelledRow], table: Float, known_until: float = 0.0, head: LearnedHead | None = None
    ) -> None:
        """`rows` oldest first, at least one. `table` [4, tiers - 1]: the estimate for the tiers by class, and `head`:
        one that replaces it; either already includes labels until `known_until` (epoch seconds)."""
        model = shipped_complexity()
        self._centre, self._scale = model.centre, model.scale
        self._keys, self._contexts = _numbers(rows)
        self._tenants = _tenant_numbers(rows)
        self.labels = len(rows)
        num_included = sum(row.at <= known_until for row in rows)
        labels = _columns(rows, self._keys, self._contexts, self._tenants)
        self._estimator = LocalEstimator(labels, table, num_included, head=head, apart=True)
        # The tenants that teach others; without any, or for the only one, there is no other estimate.
        self._teachers = frozenset(row.tenant for row in rows[num_included:] if row.tenant and not row.private)
        self._from_all = None
        if self._teachers:
            few = [key for key in self._keys.values() if self._estimator.labels_of(key) < LEAST_FOR_HEAD]
            self._from_all = LocalEstimator(labels, table, num_included, few, head)

    def labels_of(self, key: str) -> int:
        """Return the number of labels of the caller's `key` that count."""
        return self._estimator.labels_of(self._keys.get(key, -1))

    def uses_others(self, prompt: RoutingInput) -> bool:
        """Return whether labels of other tenants count for `prompt`: it is drawn, others have labels, and its key has
        too few for a head of its own."""
        if not prompt.from_others or len(self._teachers) == (prompt.tenant in self._teachers):
            return False
        return self.labels_of(prompt.key) < LEAST_FOR_HEAD

    def estimate(
        self, prompt: RoutingInput, turn: EncodedTurn, classes: Sequence[float], whole: Sequence[float] = ()
    ) -> Estimate:
        """Estimate every weaker tier on `prompt`, encoded as `turn`, of these `classes`; `whole` as in
        `LabelledRow`."""
        estimator = self._from_all if self._from_all is not None and self.uses_others(prompt) else self._estimator
        surface = standardised(turn.features, self._centre, self._scale)
        key = self._keys.get(prompt.key, -1)
        context = self._contexts.get((prompt.key, prompt.app), -1)
        tenant = self._tenants.get(prompt.tenant, -1)
        of_whole = np.array(whole, np.float32) if whole else None
        of_request = np.array(classes, np.float32)
        return estimator.estimate(of_request, turn.embedding, surface, key, context, tenant, of_whole)


def as_labels(rows: Sequence[LabelledRow]) -> tuple[Labels, list[str]]:
    """Return `rows`, at least one, as the estimator's columns, and the name of each key by its number."""
    keys, contexts = _numbers(rows)
    return _columns(rows, keys, contexts, _tenant_numbers(rows)), list(keys)


def _numbers(rows: Sequence[LabelledRow]) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Number the keys, and the system prompts of each key."""
    keys: dict[str, int] = {}
    contexts: dict[tuple[str, str], int] = {}
    apps_of: dict[str, int] = {}
    for row in rows:
        keys.setdefault(row.key, len(keys))
        if row.app and (row.key, row.app) not in contexts:
            contexts[row.key, row.app] = apps_of[row.key] = apps_of.get(row.key, -1) + 1
    return keys, contexts


def _tenant_numbers(rows: Sequence[LabelledRow]) -> dict[str, int]:
    """Number the tenants from 0 on; labels without one have -1."""
    tenants = {"": -1}
    for row in rows:
        tenants.setdefault(row.tenant, len(tenants) - 1)
    return tenants


def _columns(
    rows: Sequence[LabelledRow], keys: dict[str, int], contexts: dict[tuple[str, str], int], tenants: dict[str, int]
) -> Labels:
    model = shipped_complexity()
    return Labels(
        classes=np.array([row.classes for row in rows], np.float32),
        whole=np.array([row.whole or row.classes for row in rows], np.float32),
        embedding=np.stack([row.embedding for row in rows]),
        surface=standardised(np.stack([row.features for row in rows]), model.centre, model.scale),
        scores=np.array([row.scores for row in rows], np.float32),
        weights=np.array([row.weights for row in rows], np.float32),
        key=np.array([keys[row.key] for row in rows], np.int32),
        context=np.array([contexts.get((row.key, row.app), -1) for row in rows], np.int32),
        tenant=np.array([tenants[row.tenant] for row in rows], np.int32),
        private=np.array([row.private for row in rows], np.bool_),
    )
