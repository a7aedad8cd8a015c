"""What stage 3 looks at: how sure a model was of the tokens of its answer, as a few numbers (DESIGN §4)."""

import math

import numpy as np
import numpy.typing as npt

from classifier.opening import FIRST_TOKENS

Float = npt.NDArray[np.float32]

OPENING_NAMES = (
    "first_logprob",
    "first_entropy",
    "first_margin",
    "opening_mean_logprob",
    "opening_least_logprob",
    "opening_mean_entropy",
    "opening_most_entropy",
    "opening_mean_margin",
    "opening_least_margin",
)
WHOLE_NAMES = (
    *OPENING_NAMES,
    "mean_logprob",
    "least_logprob",
    "mean_entropy",
    "most_entropy",
    "mean_margin",
    "least_margin",
    "log_tokens",
    "cut_off",
)


class TokenSummary:
    """Takes an answer's tokens one by one; log-probability, entropy and margin in nats, as `TokenEvidence` has them.

    `opening` is of the first `FIRST_TOKENS` tokens, or of as many as there are; `whole` of all of them.
    """

    __slots__ = ("_first", "_opening", "_whole")

    def __init__(self) -> None:
        self._first = (0.0, 0.0, 0.0)
        self._opening = _Extremes()
        self._whole = _Extremes()

    def __len__(self) -> int:
        return self._whole.count

    def add(self, logprob: float, entropy: float, margin: float) -> None:
        """Take one more token."""
        if not self._whole.count:
            self._first = (logprob, entropy, margin)
        if self._whole.count < FIRST_TOKENS:
            self._opening.add(logprob, entropy, margin)
        self._whole.add(logprob, entropy, margin)

    def opening(self) -> Float:
        """Float32 [len(OPENING_NAMES)]; zeros before the first token."""
        return np.asarray((*self._first, *self._opening.values()), np.float32)

    def whole(self, *, cut_off: bool) -> Float:
        """Float32 [len(WHOLE_NAMES)] of an answer that has ended, `cut_off` by its limit or by itself."""
        ending = (math.log1p(self._whole.count), float(cut_off))
        return np.asarray((*self._first, *self._opening.values(), *self._whole.values(), *ending), np.float32)


class _Extremes:
    """Means, and the values that speak most against the answer."""

    __slots__ = ("count", "entropy", "least_logprob", "least_margin", "logprob", "margin", "most_entropy")

    def __init__(self) -> None:
        self.count = 0
        self.logprob = self.entropy = self.margin = 0.0
        self.least_logprob, self.most_entropy, self.least_margin = 0.0, 0.0, math.inf

    def add(self, logprob: float, entropy: float, margin: float) -> None:
        self.count += 1
        self.logprob += logprob
        self.entropy += entropy
        self.margin += margin
        self.least_logprob = min(self.least_logprob, logprob)
        self.most_entropy = max(self.most_entropy, entropy)
        self.least_margin = min(self.least_margin, margin)

    def values(self) -> tuple[float, ...]:
        n = self.count
        if not n:
            return (0.0,) * 6
        return (
            self.logprob / n,
            self.least_logprob,
            self.entropy / n,
            self.most_entropy,
            self.margin / n,
            self.least_margin,
        )
