"""What simple routers do on the same prompts: fixed tiers, random mixing, shuffled choices, length, nearest labels."""

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from benchmarks.replay.figures import Float, Tiers, chosen
from benchmarks.replay.ladder import Ladder, Prompt
from classifier.features.routing_input import routing_input
from classifier.policy.utility import DEFAULT_EXCHANGE
from classifier.registry.artefact import default_artefact, load_artefact
from quality.verification.training_rows import outcomes_of, vector_of

_NEIGHBOURS = 10
# So many labels of the tier's overall rate count in addition to a prompt's own neighbours.
_PRIOR = 2.0

Experience = Sequence[tuple[bytes, list[bool | None]]]


def fixed(ladder: Ladder, tier: int) -> Float:
    """Everything by one tier."""
    return chosen(np.full(len(ladder.prompts), tier), len(ladder.tiers))


def mixing(ladder: Ladder, served: Float) -> Float:
    """The best lottery between two tiers, the same for every prompt, that costs what `served` does."""
    return _lottery(ladder, served, combinations([fixed(ladder, tier) for tier in _tiers(ladder)], 2))


def at_equal_cost(ladder: Ladder, before: Float, served: Float) -> Float:
    """`before`, made as dear or as cheap as `served` by the best lottery with one tier: what spending otherwise would
    have bought without knowing more about the prompts."""
    return _lottery(ladder, served, ((before, fixed(ladder, tier)) for tier in _tiers(ladder)))


def _lottery(ladder: Ladder, served: Float, pairs: Iterable[tuple[Float, Float]]) -> Float:
    budget = float((served * ladder.costs).sum())
    mixes: list[tuple[float, Float]] = []
    nearest: list[tuple[float, Float]] = []
    for left, right in pairs:
        low, high = (float((side * ladder.costs).sum()) for side in (left, right))
        share = 0.0 if high == low else (budget - low) / (high - low)
        mixed = (1 - share) * left + share * right
        if 0.0 <= share <= 1.0:
            mixes.append((float((mixed * ladder.no_worse).sum()), mixed))
        nearest += [(abs(budget - low), left), (abs(budget - high), right)]
    # Where long answers make a cheap tier dear, choosing by prompt can cost less than each tier alone does.
    return max(mixes, key=lambda pair: pair[0])[1] if mixes else min(nearest, key=lambda pair: pair[0])[1]


def _tiers(ladder: Ladder) -> range:
    return range(1, len(ladder.tiers) + 1)


def shuffled(served: Float) -> Float:
    """The same choices dealt out at random: the mean over all permutations."""
    return np.broadcast_to(served.mean(axis=0), served.shape).copy()


def by_length(ladder: Ladder, served: Float) -> Float:
    """The same shares of the tiers, the shorter prompts to the cheaper ones."""
    order = np.argsort([len(prompt.text) for prompt in ladder.prompts], kind="stable")
    tiers = np.sort(np.argmax(served, axis=1) + 1)
    placed = np.zeros(len(order), np.intp)
    placed[order] = tiers
    return chosen(placed, len(ladder.tiers))


def embedded(prompts: Sequence[Prompt]) -> Float:
    """The prompts [n, dim] by the shipped encoder, as stored labels are."""
    model = load_artefact(default_artefact())
    return np.array(
        [model.encode(routing_input([{"role": "user", "content": prompt.text}])).embedding for prompt in prompts],
        np.float64,
    )


def nearest_labels(ladder: Ladder, experience: Experience) -> Tiers:
    """kNN: by tier the mean label of the nearest prompts that have one; then the greatest expected utility."""
    tiers = len(ladder.tiers)
    if not experience:
        return np.full(len(ladder.prompts), tiers)
    embeddings = np.array([vector_of(embedding) for embedding, _ in experience], np.float64)
    labels = np.array([outcomes_of(no_worse) for _, no_worse in experience])
    near = embedded(ladder.prompts) @ embeddings.T
    p = np.ones((len(ladder.prompts), tiers))
    for tier in range(tiers - 1):
        seen = ~np.isnan(labels[:, tier])
        if not seen.any():
            p[:, tier] = 0.5
            continue
        neighbours = np.argsort(-near[:, seen], axis=1)[:, :_NEIGHBOURS]
        values = labels[seen, tier]
        p[:, tier] = (values[neighbours].sum(axis=1) + _PRIOR * values.mean()) / (neighbours.shape[1] + _PRIOR)
    share = ladder.costs.mean(axis=0) / ladder.costs[:, -1].mean()
    picked: Tiers = np.argmax(p - DEFAULT_EXCHANGE * share, axis=1) + 1
    return picked
