"""The rows of an evaluation as arrays, and the subsets that tables report: each source, each family, all together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from classifier.training.dataset import HEADS, RIGHT, TIER_MODELS, TIERS, OutcomeRow, outcome_labels, tier_scores
from classifier.training.metrics import resamples
from classifier.training.per_source import families

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
POOLED = "all sources"
MIN_ROWS = 50  # fewer rows give intervals that mean nothing
RESAMPLES = 500


@dataclass(frozen=True)
class Outcomes:
    """n rows of known outcomes: `labels` float64 [n, heads], NaN unobserved; `domain` and `source` str [n]."""

    labels: Float64
    domain: npt.NDArray[np.str_]
    source: npt.NDArray[np.str_]
    family: npt.NDArray[np.str_]

    @classmethod
    def of(cls, rows: Sequence[OutcomeRow]) -> "Outcomes":
        """Rows of a source that `TIER_MODELS` does not know count if two models answered: the one that is right less
        often stands for tier 2, the other for tier 4, as in RouteLLM. Other rows of such sources have no labels."""
        labels = np.full((len(rows), len(HEADS)), np.nan)
        family = np.full(len(rows), "", dtype=object)
        for name, members in families(rows).items():
            family[members] = name
            chosen = [rows[i] for i in members]
            scores = tier_scores(chosen) if name in TIER_MODELS else _two_models(chosen)
            labels[members] = outcome_labels(scores)
        return cls(
            labels,
            np.array([row.domain for row in rows], dtype=np.str_),
            np.array([row.source for row in rows], dtype=np.str_),
            family.astype(np.str_),
        )

    def __len__(self) -> int:
        return len(self.labels)


def _two_models(rows: Sequence[OutcomeRow]) -> npt.NDArray[np.float32]:
    """Scores [n, 4] of the two models that answered most rows, in columns 2 and 4; NaN elsewhere."""
    scores = np.full((len(rows), TIERS), np.nan, np.float32)
    models = sorted({model for row in rows for model in row.outcomes})
    answered = {model: [row.outcomes[model] for row in rows if model in row.outcomes] for model in models}
    if len(models) != 2:
        return scores
    weak, strong = sorted(models, key=lambda model: float(np.mean(np.array(answered[model]) >= RIGHT)))
    for i, row in enumerate(rows):
        scores[i, 1], scores[i, 3] = row.outcomes.get(weak, np.nan), row.outcomes.get(strong, np.nan)
    return scores


@dataclass(frozen=True)
class Subset:
    """Rows reported together. `tiers`: those with an outcome in every row, the strongest last; `domain` int [n] codes;
    `labels` [n, heads]; `draws` float32 [b, n] are the bootstrap weights that everything on this subset shares, so that
    differences are paired."""

    name: str
    at: Indices
    tiers: tuple[int, ...]
    labels: Float64
    domain: Indices
    draws: npt.NDArray[np.float32]

    @cached_property
    def weights(self) -> Float64:
        """The rows as they are, then each draw: [1 + b, n]; so a figure and its interval are one computation."""
        return np.vstack([np.ones((1, len(self.at))), self.draws])

    def heads(self) -> list[int]:
        """Heads observed in every row with outcomes of both kinds."""
        whole: list[int] = np.flatnonzero(np.isfinite(self.labels).all(axis=0)).tolist()
        return [h for h in whole if self.labels[:, h].min() < self.labels[:, h].max()]

    def correct(self) -> Float64:
        """Whether each of `tiers` was right, [n, tiers]."""
        return self.labels[:, [TIERS - 2 + tier for tier in self.tiers]]

    def no_worse(self) -> Float64:
        """Whether each of `tiers` was no worse than the strongest, [n, tiers]; the last column is 1."""
        weaker = self.labels[:, [tier - 1 for tier in self.tiers[:-1]]]
        return np.hstack([weaker, np.ones((len(weaker), 1))])


def subset(outcomes: Outcomes, name: str, at: Indices, *, draws: int = RESAMPLES, seed: int = 0) -> Subset:
    """The rows `at` under a name; the tiers are those that every one of them has an outcome of."""
    labels = outcomes.labels[at]
    known = np.isfinite(labels[:, TIERS - 1 :]).all(axis=0) & bool(len(at))
    return Subset(
        name=name,
        at=at,
        tiers=tuple(int(k) + 1 for k in np.flatnonzero(known)),
        labels=labels,
        domain=_codes(outcomes.domain[at]),
        draws=resamples(len(at), draws, seed),
    )


def _codes(names: npt.NDArray[np.str_]) -> Indices:
    """The names numbered in alphabetical order."""
    return np.searchsorted(np.unique(names), names)


def subsets(outcomes: Outcomes, *, by_domain: bool = False, draws: int = RESAMPLES, seed: int = 0) -> list[Subset]:
    """All rows, each family, each source of a family with several, and (`by_domain`) each domain; those with fewer
    than `MIN_ROWS` rows or no two tiers in common are left out."""
    chosen: dict[str, Indices] = {}
    usable = np.flatnonzero(~np.isnan(outcomes.labels[:, TIERS - 1 :]).all(axis=1))
    family = outcomes.family[usable]
    names = list(dict.fromkeys(family.tolist()))
    if len(names) > 1:
        chosen[POOLED] = usable
    for name in names:
        members = usable[family == name]
        chosen[name] = members
        sources = list(dict.fromkeys(outcomes.source[members].tolist()))
        if len(sources) > 1:
            chosen |= {source: members[outcomes.source[members] == source] for source in sources}
    if by_domain:
        for domain in dict.fromkeys(outcomes.domain[usable].tolist()):
            for name in names:
                at = usable[(outcomes.domain[usable] == domain) & (family == name)]
                chosen[f"{name}: {domain}"] = at
    found = [subset(outcomes, name, at, draws=draws, seed=seed) for name, at in chosen.items() if len(at) >= MIN_ROWS]
    return [one for one in found if len(one.tiers) > 1]
