"""How well the text of recorded answers separates good ones from bad ones, compared with the prompt alone.

A file holds prompts with the answers of several models and a judge's marks (as replay_arena.jsonl.gz). An answer is
good from a mark of 7 on. Judged are the answers of every tier but the strongest, by logistics that were fitted without
the prompt's fold; pairs of answers are compared within one category of prompts. Agreement is with the answer of the
nearest cheaper tier, or for the cheapest of the next one, all of other families, where the prompt has one right answer
to check. Nothing here knows token log-probabilities, which recorded answers do not have. The cascade is of the tier
and the strongest one at the declared prices: answers are handed over, the least likely to be good first, until 95% of
the strongest tier's good answers are reached; what was read is paid for.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from benchmarks.replay.figures import Figure
from benchmarks.replay.ladder import Ladder
from classifier.evidence.features import evidence_features
from classifier.evidence.model import logit
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import encode_turns
from classifier.prediction.class_predictor import ClassPredictor
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.data.outcome_folder import row_of
from classifier.training.fitting.probes import Examples, is_better, unseen_logits
from classifier.training.metrics.cascade import Pair, Way, cascade_curves
from classifier.training.metrics.metrics import auc, interval, resamples
from tiers.final_answer.agreement import agreement

Floats = npt.NDArray[np.floating]

GOOD_MARK = 7.0
TIMES = 1000
ALONE, FITTED, EVIDENCE = "p alone", "p and the prompt's features, fitted here", "p and evidence"
AGREEMENT, SHUFFLED = "p, evidence and agreement", "p and shuffled evidence"
WAYS = (ALONE, FITTED, SHUFFLED, EVIDENCE, AGREEMENT)


class Judged(NamedTuple):
    """One way to judge the answers of `tier` (0: the mean over the tiers): AUC within a category, and how much more
    that is than by the prompt alone, paired; `cost` of the cascade, as a share of the strongest tier's alone, None for
    the mean and for agreement, whose other answer has a price of its own."""

    tier: int
    way: str
    auc: Figure
    more: Figure
    cost: Figure | None


class TierRows(NamedTuple):
    """A tier's answers: the share that is good, how many have an answer to check, and whether evidence passes the gate
    that serving has."""

    tier: int
    model: str
    good: float
    checkable: int
    is_better: bool


def evidence_table(ladder: Ladder, seed: int) -> tuple[list[TierRows], list[Judged]]:
    """What is known of each tier's answers, and every way to judge them; the last lines are the mean over the tiers."""
    # Hundreds of small fits, each of them slower on several threads.
    with threadpool_limits(1, user_api="blas"):
        return _measured(ladder, seed)


def _measured(ladder: Ladder, seed: int) -> tuple[list[TierRows], list[Judged]]:
    model = load_artefact(default_artefact())
    predictor = ClassPredictor(model)
    given = [routing_input_of_text(prompt.text) for prompt in ladder.prompts]
    turns = encode_turns(model.encoder, given)
    p_ok = np.asarray([predictor.prediction(one, turn).p_ok for one, turn in zip(given, turns, strict=True)])
    features = np.stack([turn.features for turn in turns]).astype(np.float32)
    row = np.asarray([row_of(prompt.text) for prompt in ladder.prompts], np.int64)
    kinds = np.unique([prompt.kind for prompt in ladder.prompts], return_inverse=True)[1]
    weights = np.concatenate([np.ones((1, len(row)), np.float32), resamples(len(row), TIMES, seed)])
    tiers, drawn, costs = [], {}, {}
    for tier in range(1, len(ladder.prompts[0].answers)):
        other = tier - 1 if tier > 1 else 2
        texts, others = ([prompt.answers[k - 1].text for prompt in ladder.prompts] for k in (tier, other))
        asked = zip(ladder.prompts, texts, others, strict=True)
        agreements = [agreement(prompt.text, text, other) for prompt, text, other in asked]
        good = np.asarray([prompt.answers[tier - 1].mark >= GOOD_MARK for prompt in ladder.prompts], np.float64)
        prompt_logits = np.asarray([[logit(float(p))] for p in p_ok[:, tier - 1]], np.float32)
        examples = Examples(
            np.stack([evidence_features(text) for text in texts]), prompt_logits, good[:, None], row, np.ones(len(row))
        )
        agreed = np.stack([evidence_features(t, agreement=a) for t, a in zip(texts, agreements, strict=True)])
        logits = _unseen(examples, features, agreed, seed)
        drawn[tier] = {way: auc(good, z, kinds, weights) for way, z in logits.items()}
        costs[tier] = _cascade(ladder, tier, good, logits, seed)
        checkable = sum(one is not None for one in agreements)
        passed = is_better(examples, seed)
        tiers.append(TierRows(tier, ladder.tiers[tier - 1].model, float(good.mean()), checkable, passed))
    drawn[0] = {way: np.mean([of[way] for of in drawn.values()], axis=0) for way in WAYS}
    lines = [
        Judged(tier, way, _figure(of[way]), _figure(of[way] - of[ALONE]), costs.get(tier, {}).get(way))
        for tier, of in drawn.items()
        for way in WAYS
    ]
    return tiers, lines


def _unseen(examples: Examples, features: Floats, agreed: Floats, seed: int) -> dict[str, Floats]:
    shuffled = np.random.default_rng(seed).permutation(examples.evidence)
    inputs = {FITTED: features, SHUFFLED: shuffled, EVIDENCE: examples.evidence, AGREEMENT: agreed}
    found = {way: unseen_logits(examples._replace(evidence=given), seed)[:, 0] for way, given in inputs.items()}
    return {ALONE: examples.prompt[:, 0]} | found


def _cascade(ladder: Ladder, tier: int, good: Floats, logits: dict[str, Floats], seed: int) -> dict[str, Figure]:
    pair = Pair(good, (ladder.marks[:, -1] >= GOOD_MARK).astype(float), ladder.costs[:, tier - 1], ladder.costs[:, -1])
    read = np.ones(len(good))
    ways = {way: Way(-z, 0 * read if way in (ALONE, FITTED) else read) for way, z in logits.items() if way != AGREEMENT}
    curves = cascade_curves(pair, ways, ALONE, seed)
    return {curve.name: Figure(curve.parity_cost, *curve.parity_cost_interval) for curve in curves}


def _figure(draws: Floats) -> Figure:
    return Figure(float(draws[0]), *interval(draws[1:]))
