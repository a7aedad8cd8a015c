"""Domains never trained on: whether novelty tells them, what falling back costs and saves, and what labels add."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.manifest import NoveltyFallback
from classifier.memory import Memory
from classifier.outcome_model import OutcomeModel
from classifier.training import metrics
from classifier.training.artefact_predictor import ArtefactPredictor
from classifier.training.dataset import HEADS, OutcomeRow
from classifier.training.ladder_routing import Label, chances
from classifier.training.pair_routing import spread
from classifier.training.routing import COST_WEIGHT, PRICES, Estimate, choose, utility
from classifier.training.row_sets import predicted
from classifier.training.subsets import MIN_ROWS, Outcomes, Subset, subset

Float = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
LABELLED, REPETITIONS = 100, 20
WAYS = ("never", "novel prompts to the safe tier", "always")


class NoveltyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """AUC of novelty between unseen and seen test prompts; `caught`: share of each at or above the
    artefact's threshold."""

    subset: str
    seen: int
    unseen: int
    auc: Estimate
    threshold: float
    caught_seen: float
    caught_unseen: float


class FallbackMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Routing with one way of falling back, of `WAYS`; `over_never`: utility minus never falling back, paired."""

    subset: str
    seen: bool
    label: str
    way: str
    quality: Estimate
    cost_share: float
    utility: Estimate
    over_never: Estimate
    fallback_share: float


class LabelledMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Brier score of one head on one unseen domain, mean over `REPETITIONS` draws of `LABELLED` verified rows, measured
    on the others.

    `without`: the model as it is; `with_labels`: the rows put in its memory; `base_rate`: the same rows' mean for every
    prompt. `difference`: with_labels - base_rate, below 0 is better; the interval is over the draws.
    """

    domain: str
    head: str
    rows: int
    without: float
    with_labels: float
    base_rate: float
    difference: Estimate


def novelty_metrics(
    seen: Outcomes, unseen: Outcomes, novelty_seen: Float, novelty_unseen: Float, threshold: float
) -> list[NoveltyMetrics]:
    """Over all rows and within each family: two benchmarks' formats are easy to tell apart, two subjects are not."""
    found = []
    names = ["all sources", *dict.fromkeys(unseen.family.tolist())]
    for name in names:
        old = novelty_seen if name == names[0] else novelty_seen[seen.family == name]
        new = novelty_unseen if name == names[0] else novelty_unseen[unseen.family == name]
        if min(len(old), len(new)) < MIN_ROWS:
            continue
        y = np.repeat([0.0, 1.0], [len(old), len(new)])
        score = np.concatenate([old, new]).astype(np.float64)
        weights = np.vstack([np.ones((1, len(y)), np.float32), metrics.resamples(len(y), 200, 0)])
        found.append(
            NoveltyMetrics(
                subset=name,
                seen=len(old),
                unseen=len(new),
                auc=spread(metrics.auc(y, score, weights=weights)),
                threshold=round(threshold, 4),
                caught_seen=round(float((old >= threshold).mean()), 4),
                caught_unseen=round(float((new >= threshold).mean()), 4),
            )
        )
    return found


def fallback_metrics(
    one: Subset, p: Float64, novelty: Float, fallback: NoveltyFallback, *, seen: bool
) -> list[FallbackMetrics]:
    """The three ways on one subset under the lambda rule at the yardstick's own price of cost (lambda 0.1)."""
    prices = np.array([PRICES[tier - 1] for tier in one.tiers])
    n = len(one.at)
    safe = int(np.searchsorted(one.tiers, min(fallback.tier, one.tiers[-1])))
    weights, found = one.weights, []
    labels: tuple[Label, ...] = ("no_worse", "correct")
    for label in labels:
        score = one.correct() if label == "correct" else one.no_worse()
        worth = utility(score, prices)
        own = choose(chances(p, one, label), prices, "lambda", COST_WEIGHT)
        masks = (np.zeros(n, bool), novelty >= fallback.threshold, np.ones(n, bool))
        never: Float64 | None = None
        for way, mask in zip(WAYS, masks, strict=True):
            pick = np.where(mask, np.maximum(own, safe), own)
            means = weights @ worth[np.arange(n), pick] / n
            never = means if never is None else never
            found.append(
                FallbackMetrics(
                    subset=one.name,
                    seen=seen,
                    label=label,
                    way=way,
                    quality=spread(weights @ score[np.arange(n), pick] / n),
                    cost_share=round(float(prices[pick].mean() / prices[-1]), 4),
                    utility=spread(means),
                    over_never=spread(means - never),
                    fallback_share=round(float(mask.mean()), 4),
                )
            )
    return found


def labelled_metrics(
    predictor: ArtefactPredictor, rows: Sequence[OutcomeRow], outcomes: Outcomes, seed: int = 0
) -> list[LabelledMetrics]:
    """For each domain of these unseen rows: what `LABELLED` verified rows in the model's memory are worth."""
    found = []
    for domain in dict.fromkeys(outcomes.domain.tolist()):
        at = np.flatnonzero(outcomes.domain == domain)
        if len(at) < LABELLED + MIN_ROWS:
            continue
        one = subset(outcomes, domain, at, draws=1)
        encoded = predictor.encoded([rows[i] for i in at.tolist()], one.labels.astype(np.float32))
        before = predicted(predictor.model, encoded).p
        heads = [head for head in one.heads() if HEADS[head].endswith(f"_{one.tiers[0]}")]
        errors: dict[int, list[tuple[float, float, float]]] = {head: [] for head in heads}
        rng = np.random.default_rng(seed)
        for _ in range(REPETITIONS):
            drawn = rng.permutation(len(at))
            known, rest = drawn[:LABELLED], drawn[LABELLED:]
            model = with_experience(predictor.model, encoded.embedding[known], one.labels[known].astype(np.float32))
            after = predicted(model, encoded.take(rest)).p
            for head in heads:
                y = one.labels[rest, head]
                rate = (one.labels[known, head].sum() + 0.5) / (LABELLED + 1)
                errors[head].append(
                    (
                        metrics.brier(y, before[rest, head]),
                        metrics.brier(y, after[:, head]),
                        metrics.brier(y, np.full(len(y), rate)),
                    )
                )
        for head in heads:
            table = np.array(errors[head])
            difference = table[:, 1] - table[:, 2]
            mean = np.append(difference.mean(), difference)
            found.append(
                LabelledMetrics(
                    domain=domain,
                    head=HEADS[head],
                    rows=len(at),
                    without=round(float(table[:, 0].mean()), 4),
                    with_labels=round(float(table[:, 1].mean()), 4),
                    base_rate=round(float(table[:, 2].mean()), 4),
                    difference=spread(mean),
                )
            )
    return found


def with_experience(model: OutcomeModel, vectors: Float, labels: Float) -> OutcomeModel:
    """The model with verified rows added to its memory and nothing else changed."""
    old = model.memory
    memory = Memory.build(
        np.vstack([old.vectors, vectors]),
        np.vstack([old.labels, labels]),
        np.append(old.weights, np.ones(len(vectors), np.float32)),
        old.base_rates,
    )
    return OutcomeModel(model.manifest, model.encoder, model.heads, memory)
