"""What a verification tells the loop: labels of the judged tiers by a judge who may err. The only door to the truth."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quality.judges.calibration import Calibration
from quality.laboratory.truth import Truth
from quality.sampling import Purpose
from quality.verification import judged_tiers

# Pairs of known outcome on which a judge is measured before it may judge.
_CALIBRATION_PAIRS = 1000


class Verdict(NamedTuple):
    """`no_worse` float32 [tiers - 1], NaN where not judged; `cost` of all answers asked for, in scenario units."""

    purpose: Purpose
    no_worse: npt.NDArray[np.float32]
    cost: float


class Judge:
    """Compares recorded outcomes; each verdict is wrong with probability `error`."""

    def __init__(self, truth: Truth, error: float, rng: np.random.Generator) -> None:
        self._no_worse, self._error, self._rng = truth.no_worse, error, rng
        self._tiers = list(range(1, truth.right.shape[1] + 1))
        self.reliability = self._calibrated().balanced_accuracy

    def see(self, truth: Truth) -> None:
        """From now on the tiers answer as in `truth`."""
        self._no_worse = truth.no_worse

    def verify(self, prompt: int, purpose: Purpose, served: int, prices: Sequence[float]) -> Verdict:
        """The verdict on an answer of tier `served` to a prompt, by its row."""
        labels = np.full(len(self._tiers) - 1, np.nan, np.float32)
        for tier in judged_tiers(purpose, served, self._tiers):
            wrong = self._error > 0 and self._rng.random() < self._error
            labels[tier - 1] = self._no_worse[prompt, tier - 1] != wrong
        return Verdict(purpose, labels, verification_cost(purpose, served, prices))

    def _calibrated(self) -> Calibration:
        right, wrong = ((self._rng.random(_CALIBRATION_PAIRS // 2) >= self._error).sum() for _ in range(2))
        return Calibration(
            judge="recorded outcomes",
            true_no_worse=int(right),
            false_worse=_CALIBRATION_PAIRS // 2 - int(right),
            true_worse=int(wrong),
            false_no_worse=_CALIBRATION_PAIRS // 2 - int(wrong),
            abstained=0,
        )


def verification_cost(purpose: Purpose, served: int, prices: Sequence[float]) -> float:
    """The price of the answers that a verification asks for: the strongest tier's, and those judged but not served."""
    strongest = len(prices)
    asked = {strongest, *judged_tiers(purpose, served, range(1, strongest + 1))} - {served}
    return float(sum(prices[tier - 1] for tier in asked))
