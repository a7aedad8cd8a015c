"""Routing between the cheapest and the strongest tier of a subset: gap recovered, saving at 95 % of the quality."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.training.dataset import TIERS
from classifier.training.routing import Estimate, estimate
from classifier.training.subsets import Subset

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
QUALITY = 0.95
# Price of a call of the cheapest tier over one of the strongest: as the public baselines assume them, by tier.
WEAK_PRICE = {1: 1 / 30, 2: 1 / 20, 3: 1 / 3}
GAIN, WEAK = "gain", "P(weak right)"
RANKINGS = (GAIN, WEAK)


class PairRouting(msgspec.Struct, frozen=True, kw_only=True):
    """One predictor and ranking between two tiers, scored by `correct`.

    `apgr`: mean gap recovered over all shares of strong calls, 0.5 is random (Ong et al. 2024, RouteLLM). `saving`:
    cost saved against always calling the strongest at the fewest calls that reach 95 % of its quality, the threshold
    read off the same rows (as public baselines do, which flatters every row alike). `valid_*`: the threshold was chosen
    on the valid rows, so both what is saved and the share of the strongest's quality are found out.
    `over_shuffled`: quality at half strong calls minus that of the same choices dealt out at random, which cost the
    same. `*_over_domain`: minus the domain-label row, paired; None for that row.
    """

    subset: str
    predictor: str
    ranking: str
    weak: float
    strong: float
    apgr: Estimate
    saving: Estimate
    saving_over_domain: Estimate | None
    valid_saving: Estimate | None
    valid_quality: Estimate | None
    valid_saving_over_domain: Estimate | None
    over_shuffled: Estimate


def need(p: Float64, one: Subset, ranking: str) -> Float64:
    """How much each prompt [n] wants the strongest tier, from head probabilities [n, heads]."""
    weak, strong = p[:, TIERS - 2 + one.tiers[0]], p[:, TIERS - 2 + one.tiers[-1]]
    # The second term orders prompts of equal gain.
    return strong - weak - 1e-6 * weak if ranking == GAIN else -weak


def pair_routing(
    one: Subset, p: Mapping[str, Float64], tuned: Subset | None, p_tuned: Mapping[str, Float64], domain_label: str
) -> list[PairRouting]:
    """Every predictor, ranked both ways. `p`, `p_tuned`: name → head probabilities of the rows of `one` and of `tuned`,
    the valid rows on which thresholds are chosen (None: there are none)."""
    found = []
    for ranking in RANKINGS:
        reference: tuple[Float64, Float64 | None] | None = None
        names = sorted(p, key=lambda name: name != domain_label)
        rows: dict[str, PairRouting] = {}
        for name in names:
            order = _order(need(p[name], one, ranking))
            savings = _savings(one, order)
            at_threshold = None
            if tuned is not None and tuned.tiers[:1] + tuned.tiers[-1:] == one.tiers[:1] + one.tiers[-1:]:
                threshold = _threshold(tuned, need(p_tuned[name], tuned, ranking))
                at_threshold = _at_threshold(one, need(p[name], one, ranking) >= threshold)
            row = _row(one, name, ranking, order, savings, at_threshold, reference)
            rows[name] = row
            if name == domain_label:
                reference = savings, None if at_threshold is None else at_threshold[0]
        found += [rows[name] for name in p]
    return found


def _order(wanted: Float64, seed: int = 0) -> Indices:
    """Rows by falling need; ties in a fixed random order, so that the order of the file decides nothing."""
    return np.lexsort((np.random.default_rng(seed).random(len(wanted)), -wanted))


def _gap(one: Subset) -> tuple[Float64, Float64]:
    correct = one.correct()
    return correct[:, 0], correct[:, -1]


def _savings(one: Subset, order: Indices) -> Float64:
    """Cost saved at 95 % of the strongest's quality, on the rows and on every draw: [1 + b]."""
    weak, strong = _gap(one)
    w = one.weights[:, order]
    n = w.sum(axis=1)
    gained = np.cumsum(w * (strong - weak)[order], axis=1)
    wanted = QUALITY * (w @ strong[order]) - w @ weak[order]
    calls = np.cumsum(w, axis=1)
    reached = gained >= wanted[:, None] - 1e-9
    first = reached.argmax(axis=1)
    share = np.where(reached.any(axis=1), calls[np.arange(len(w)), first], n) / n
    share = np.where(wanted <= 0, 0.0, share)
    return _saving(share, one)


def _saving(strong_share: Float64, one: Subset) -> Float64:
    saved: Float64 = (1 - strong_share) * (1 - WEAK_PRICE[one.tiers[0]])
    return saved


def _threshold(tuned: Subset, wanted: Float64) -> float:
    """Need from which the strongest tier is called so that the valid rows reach 95 % of its quality at fewest calls."""
    weak, strong = _gap(tuned)
    order = _order(wanted)
    quality = np.append(0.0, np.cumsum((strong - weak)[order])) + weak.sum()
    calls = int((quality >= QUALITY * strong.sum() - 1e-9).argmax())
    return float("inf") if calls == 0 else float(wanted[order][calls - 1])


def _at_threshold(one: Subset, go: npt.NDArray[np.bool_]) -> tuple[Float64, Float64]:
    """(saving, share of the strongest's quality) of the choices `go` [n], on the rows and on every draw."""
    weak, strong = _gap(one)
    w = one.weights
    quality = (w @ np.where(go, strong, weak)) / np.maximum(w @ strong, 1e-9)
    return _saving(w @ go / w.sum(axis=1), one), quality


def _apgr(one: Subset, order: Indices) -> Float64:
    """APGR on the rows and on every draw: a row drawn w times stands w times in a row in the order."""
    weak, strong = _gap(one)
    w, gap = one.weights[:, order], (strong - weak)[order]
    before = np.cumsum(w * gap, axis=1) - w * gap
    area = (w * before + gap * w * (w + 1) / 2).sum(axis=1)
    n, total = w.sum(axis=1), w @ gap
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total != 0, area / (n + 1) / total, np.nan)


def _over_shuffled(one: Subset, order: Indices) -> Float64:
    """Quality at half strong calls over the same share of calls at random (the mean of all permutations, exactly)."""
    weak, strong = _gap(one)
    go = np.zeros(len(order))
    go[order[: len(order) // 2]] = 1.0
    w = one.weights
    n = w.sum(axis=1)
    share = w @ go / n
    over: Float64 = (w @ (go * (strong - weak))) / n - share * (w @ (strong - weak)) / n
    return over


def _row(
    one: Subset,
    name: str,
    ranking: str,
    order: Indices,
    savings: Float64,
    at_threshold: tuple[Float64, Float64] | None,
    reference: tuple[Float64, Float64 | None] | None,
) -> PairRouting:
    weak, strong = _gap(one)
    over_valid = None
    if at_threshold is not None and reference is not None and reference[1] is not None:
        over_valid = spread(at_threshold[0] - reference[1])
    return PairRouting(
        subset=one.name,
        predictor=name,
        ranking=ranking,
        weak=round(float(weak.mean()), 4),
        strong=round(float(strong.mean()), 4),
        apgr=spread(_apgr(one, order)),
        saving=spread(savings),
        saving_over_domain=None if reference is None else spread(savings - reference[0]),
        valid_saving=None if at_threshold is None else spread(at_threshold[0]),
        valid_quality=None if at_threshold is None else spread(at_threshold[1]),
        valid_saving_over_domain=over_valid,
        over_shuffled=spread(_over_shuffled(one, order)),
    )


def spread(values: npt.NDArray[np.floating[Any]]) -> Estimate:
    """The first value with the percentile interval of the others; NaN draws are left out."""
    return estimate(float(values[0]), values[1:][~np.isnan(values[1:])])
