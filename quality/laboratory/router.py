"""The router over a fixed set of prompts: predictions once per artefact, then tiers by the policy's own rule."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classifier.fallback import fallback_of
from classifier.outcome_model import OutcomeModel
from classifier.training.encoded_rows import EncodedRows
from classifier.training.routing import choose
from classifier.training.row_sets import BATCH

Float = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Rule:
    """The lambda rule at the prices that are in force."""

    lambda_: float
    prices: tuple[float, ...]


@dataclass(frozen=True)
class Predictions:
    """An artefact's word on n prompts: `p_ok` [n, tiers], the last column 1; `novelty` [n]; where the novel ones go."""

    p_ok: Float
    novelty: Float
    threshold: float
    safe_tier: int

    @classmethod
    def of(cls, model: OutcomeModel, rows: EncodedRows) -> "Predictions":
        """What `model` predicts for prompts that are not in its memory as rows of their own."""
        parts = [rows.take(np.arange(i, min(i + BATCH, len(rows)))) for i in range(0, len(rows), BATCH)]
        found = [model.outcomes(part.features, part.embedding, part.word_logits) for part in parts]
        weaker = np.concatenate([one.p for one in found])[:, : model.manifest.tiers - 1].astype(np.float64)
        fallback = fallback_of(model.manifest)
        return cls(
            p_ok=np.hstack([weaker, np.ones((len(rows), 1))]),
            novelty=np.concatenate([one.novelty for one in found]).astype(np.float64),
            threshold=fallback.threshold,
            safe_tier=fallback.tier,
        )

    def tiers(self, rule: Rule, p_ok: Float | None = None) -> npt.NDArray[np.intp]:
        """Numbers of the tiers [n] that `classifier.policy.decide` gives; `p_ok` in place of the artefact's own."""
        p = self.p_ok if p_ok is None else p_ok
        prices = np.asarray(rule.prices)
        tiers = choose(p, prices, "lambda", rule.lambda_) + 1
        safe = self.safe_tier + choose(p[:, self.safe_tier - 1 :], prices[self.safe_tier - 1 :], "lambda", rule.lambda_)
        return np.where(self.novelty >= self.threshold, safe, tiers)


def lambda_for_cost(predictions: Predictions, prices: tuple[float, ...], mean_cost: float) -> float:
    """The least lambda at which a prompt costs `mean_cost` at most, to three digits."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        cheap = np.asarray(prices)[predictions.tiers(Rule(middle, prices)) - 1].mean() <= mean_cost
        low, high = (low, middle) if cheap else (middle, high)
    return float(f"{high:.3g}")
