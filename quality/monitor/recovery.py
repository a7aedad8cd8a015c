"""Has a tier that answered badly become good again? Two tests that must agree.

A prediction alone cannot tell: good answers beyond it may mean that it was too low from the start, as a prior is that
knows nothing of the tier. A tier's own answers alone cannot tell either: once routing has learned which prompts the
tier answers well, it gets those, and more of its answers are good. A recovery is what both say.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from quality.monitor.e_detector import ShiftAlarm, ShiftDetector, ShiftSettings

# The newest answers of a tier that are kept, and the numbers of them before a change that it is compared with: a tier
# that was good, then bad and is good again is compared with the time when it was bad.
HISTORY = 1024
_BEFORE = (8, 16, 32, 64, HISTORY)
# A rise that is none is accepted with at most the inverse of this as probability.
_RISE = 100.0
# After good answers beyond the predictions, so many more of the tier's answers may show the rise.
_WAITS = 64


class Verdict(NamedTuple):
    """A verified answer: whether it was `good`, its time `at`, its caller's `tenant`, and the `kind` of its prompt and
    judge, within which answers are compared."""

    good: bool
    at: float
    tenant: str
    kind: str


Counts = dict[str, tuple[int, int]]
"""By kind the number of good answers and of the others."""


class RecoveryWatch:
    """Each tier's answers, compared with the predictions for them and with its answers before: of 100 simulated
    deployments in which nothing changes, none has a recovery, where predictions alone see one in 55; a tier that was
    mended has one after 18 prompts in the median (tests/quality/monitor/test_recovery.py)."""

    def __init__(self, settings: ShiftSettings) -> None:
        self._better = ShiftDetector(settings)
        self._answers: dict[int, deque[Verdict]] = {}
        self._supposed: dict[int, tuple[ShiftAlarm, int]] = {}

    def remember(self, tier: int, verdict: Verdict) -> None:
        """Add an answer of `tier`, oldest first, to those that later ones are compared with."""
        self._answers.setdefault(tier, deque(maxlen=HISTORY)).append(verdict)

    def observe(self, tier: int, stream: str, verdict: Verdict, predicted: float) -> ShiftAlarm | None:
        """Remember an answer of `tier` that was `predicted` to be good with this probability and belongs to `stream`;
        return the recovery that it shows: `answers` since it, and of these the `rate` of good ones."""
        self.remember(tier, verdict)
        better = self._better.observe(stream, verdict.good, predicted, verdict.at, verdict.tenant)
        if better is not None:
            self._supposed[tier] = better, _WAITS
        if tier not in self._supposed:
            return None
        found, waits = self._supposed.pop(tier)
        known = [one for one in self._answers[tier] if found.tenant in (None, one.tenant)]
        before = [one for one in known if one.at < found.since]
        after = [one for one in known if one.at >= found.since]
        if _is_higher(before, after) and risen(before, after) >= _RISE:
            self._answers[tier] = deque((one for one in self._answers[tier] if one.at >= found.since), maxlen=HISTORY)
            good = sum(one.good for one in after)
            return msgspec.structs.replace(found, answers=len(after), rate=good / len(after))
        if waits:
            self._supposed[tier] = found, waits - 1
        return None


def risen(before: Sequence[Verdict], after: Sequence[Verdict]) -> float:
    """Return an e-value against the hypothesis that the share of good answers of each kind is the same `after` a change
    as `before` it: the mean over how many of the last ones before it are compared.

    Universal inference (Wasserman, Ramdas and Balakrishnan 2020): the probability of both parts by Krichevsky and
    Trofimov's mixture of all shares, over the greatest that one share gives the whole. If the hypothesis is true, its
    mean is at most 1.
    """
    later = _counts(after)
    logs = [_log_e(_counts(before[-most:]), later) for most in _BEFORE]
    return sum(math.exp(min(log, 700.0)) for log in logs) / len(logs)


def _log_e(first: Counts, second: Counts) -> float:
    found = 0.0
    for kind in first.keys() & second.keys():
        (good, bad), (later_good, later_bad) = first[kind], second[kind]
        found += _mixture(good, bad) + _mixture(later_good, later_bad)
        found -= _greatest(good + later_good, bad + later_bad)
    return found


def _is_higher(before: Sequence[Verdict], after: Sequence[Verdict]) -> bool:
    """Whether more answers `after` were good than expected of answers `before`, kind by kind."""
    first, second = _counts(before[-_BEFORE[0] :]), _counts(after)
    excess = 0.0
    for kind in first.keys() & second.keys():
        (good, bad), (later_good, later_bad) = first[kind], second[kind]
        excess += later_good - (later_good + later_bad) * good / (good + bad)
    return excess > 0.0


def _counts(verdicts: Sequence[Verdict]) -> Counts:
    found: Counts = {}
    for one in verdicts:
        good, bad = found.get(one.kind, (0, 0))
        found[one.kind] = good + one.good, bad + (not one.good)
    return found


def _mixture(good: int, bad: int) -> float:
    """Return the log of Krichevsky and Trofimov's probability of a sequence."""
    return math.lgamma(good + 0.5) + math.lgamma(bad + 0.5) - math.log(math.pi) - math.lgamma(good + bad + 1.0)


def _greatest(good: int, bad: int) -> float:
    """Return the log of the greatest probability that one share gives a sequence."""
    return sum(count * math.log(count / (good + bad)) for count in (good, bad) if count)
