"""Have errors become more frequent, or has a tier that answered badly become good again?

One e-detector per stream of verified answers, with a known false-alarm rate: the Shiryaev-Roberts e-detector of Shin,
Ramdas and Rinaldo ("E-detectors: a nonparametric framework for sequential change detection", 2023). It may be checked
after every answer, and no sample size is fixed beforehand (SPEC QM-04).

A recovery is what two tests say. A prediction alone cannot tell: good answers beyond it may mean that it was too low
from the start, as a prior is that knows nothing of the tier. A tier's own answers alone cannot tell either: once
routing has learned which prompts the tier answers well, it gets those, and more of its answers are good."""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from quality.estimates.verified_sample import wilson_interval

# Rises of the log odds of an error. Evidence is the mean over all, so each costs at most a constant factor.
SHIFTS = (0.5, 1.0, 2.0, 3.0)
_FACTORS = tuple(math.exp(shift) for shift in SHIFTS)
_LEAST, _MOST = 0.005, 0.95
_Z99 = 2.3263478740408408
_SHOWN = 100
# Answers of a stream that are tested again without one tenant's, and the tenants with most errors that are left out.
_HISTORY, _LEFT_OUT = 1024, 16


class ShiftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When errors count as more frequent. Raises `ValueError`."""

    false_alarm_every: float = 2_000.0
    """The mean number of verified answers, over all streams, between two false alarms, at least. If serving pays for
    verifying 2% of the answers, 2,000 of these are 100,000 requests.
    """
    tolerance: float = 0.03
    """A rise above the predicted rate that needs no alarm."""
    reference: int = 100
    """The number of answers after which the predictions of a stream are checked, and corrected if they were wrong from
    the start.
    """

    def __post_init__(self) -> None:
        if not self.false_alarm_every >= 1.0:
            raise ValueError(f"false_alarm_every is {self.false_alarm_every}; it must be at least 1")
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"tolerance is {self.tolerance}; it must lie between 0 and 1")
        if self.reference < 1:
            raise ValueError(f"reference is {self.reference}; it must be at least 1")


class ShiftAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """Errors in `stream` have become more frequent: `rate` of its last `answers`, where at most `allowed` was usual."""

    stream: str
    evidence: float
    """The e-detector's value, at least `ShiftSettings.false_alarm_every` for each view."""
    answers: int
    rate: float
    allowed: float
    since: float
    """The time of the first answer after the most likely change, in the caller's clock."""
    tenant: str | None = None
    """The tenant whose answers alone show it ("": those without a key). None if the others give evidence enough without
    those of any one tenant.
    """

    @property
    def reason(self) -> str:
        """A sentence for the operator."""
        return (
            f"{self.rate:.0%} of the last {self.answers} verified answers were worse than the strongest tier's, "
            f"at most {self.allowed:.0%} are usual (evidence {self.evidence:.3g})"
        )


class EDetector:
    """The evidence that the errors of one stream became more frequent than allowed at some time in the past.

    As long as each answer's error probability, given those before it, is at most the bound given with it, the expected
    `evidence` is at most the number of answers. So over any number of streams together it takes on average at least c
    answers until the evidence of some stream is c.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * len(SHIFTS)
        # By shift: the largest summand, the likelihood ratio of a change at its time (Page 1954), and that time.
        self._largest = [(0.0, 0.0)] * len(SHIFTS)

    @property
    def evidence(self) -> float:
        """Every stream's current evidence."""
        return sum(self._sums) / len(self._sums)

    @property
    def since(self) -> float:
        """The most likely time of a change: the maximum likelihood estimate over `SHIFTS`."""
        return max(self._largest)[1]

    def observe(self, worse: bool, allowed: float, at: float = 0.0) -> None:
        """Observe an answer of time `at` whose probability of being worse should be at most `allowed`, in (0, 1)."""
        for index, factor in enumerate(_FACTORS):
            ratio = likelihood_ratio(worse, allowed, factor)
            self._sums[index] = (self._sums[index] + 1.0) * ratio
            best, since = self._largest[index] if self._largest[index][0] > 1.0 else (1.0, at)
            self._largest[index] = best * ratio, since


def likelihood_ratio(worse: bool, allowed: float, factor: float) -> float:
    """Return the likelihood ratio of odds `factor` times those of `allowed` to those of `allowed`, for one answer.

    Grows with `worse`, so that its mean, for an answer that is worse with probability p, is at most 1 for p <= allowed.
    """
    odds = factor * allowed / (1.0 - allowed)
    shifted = odds / (1.0 + odds)
    return shifted / allowed if worse else (1.0 - shifted) / (1.0 - allowed)


class _Answer(NamedTuple):
    tenant: str
    worse: bool
    allowed: float
    at: float


class _Stream:
    def __init__(self) -> None:
        self.history: deque[_Answer] = deque(maxlen=_HISTORY)
        self.tenants: set[str] = set()
        self.detector = EDetector()
        self.recent: deque[bool] = deque(maxlen=_SHOWN)
        self.answers = self.worse = self.looks = 0
        self.predicted = 0.0
        self.excess: float | None = None

    def observe(self, answer: _Answer) -> None:
        """Count an answer."""
        self.history.append(answer)
        self.tenants.add(answer.tenant)
        self.detector.observe(answer.worse, answer.allowed, answer.at)

    def replayed(self, chosen: Callable[[str], bool]) -> EDetector:
        """Return a detector of the newest answers of the `chosen` tenants alone."""
        detector = EDetector()
        for answer in self.history:
            if chosen(answer.tenant):
                detector.observe(answer.worse, answer.allowed, answer.at)
        return detector

    def needed_tenant(self, evidence: float) -> str | None:
        """Return a tenant without whose answers there is less than `evidence`; None without one."""
        errors = Counter(answer.tenant for answer in self.history if answer.worse)
        for tenant, _ in errors.most_common(_LEFT_OUT):
            if self.replayed(lambda owner, out=tenant: owner != out).evidence < evidence:  # type: ignore[misc]
                return tenant
        return None

    def forget(self, tenant: str) -> None:
        """Drop the answers of `tenant`; the excess that is usual stays."""
        self.detector = self.replayed(lambda owner: owner != tenant)
        self.history = deque((answer for answer in self.history if answer.tenant != tenant), maxlen=_HISTORY)
        self.tenants.discard(tenant)

    def look(self) -> None:
        """Learn from the answers so far by how much more errors than predicted are usual for this stream. Later looks
        use more answers and never allow an excess that an earlier one did not."""
        # The first look leaves room for one standard error, which hides no great shift, and later ones, whose
        # errors are smaller, for as much, until it is the 99% bound.
        z = min(math.sqrt(2**self.looks), _Z99)
        self.looks += 1
        excess = wilson_interval(self.worse, self.answers, z=z).high - self.predicted / self.answers
        self.excess = max(min(excess, math.inf if self.excess is None else self.excess), 0.0)


class ShiftDetector:
    """Streams of verified answers, by name, each compared with the predictions for its answers.

    If more of the first `reference`, twice as many, four times as many... answers are worse than predicted, the excess
    counts as usual for the stream and is allowed from then on: predictions that were wrong from the start are no shift.
    This also covers unfamiliar kinds of questions on which the predictions are wrong.
    """

    def __init__(self, settings: ShiftSettings, views: int = 1) -> None:
        """`views`: the number of streams that each answer belongs to; more views need more evidence for an alarm."""
        self.settings = settings
        self._needed = views * settings.false_alarm_every
        self._streams: dict[str, _Stream] = {}

    def evidence(self) -> dict[str, float]:
        """Every stream's evidence now."""
        return {stream: state.detector.evidence for stream, state in self._streams.items()}

    def observe(
        self, stream: str, worse: bool, predicted: float, at: float = 0.0, tenant: str = ""
    ) -> ShiftAlarm | None:
        """Observe an answer of time `at` to `tenant`, `predicted` to be worse with this probability; return its alarm.

        No tenant alone raises an alarm for all: the evidence without its answers must suffice. If its own answers
        suffice alone, the alarm is the tenant's. After an alarm the stream starts over, without its usual excess;
        after a tenant's, without the tenant's answers.
        """
        state = self._streams.setdefault(stream, _Stream())
        allowed = max(predicted + (state.excess or 0.0) + self.settings.tolerance, _LEAST)
        # Where so many errors are usual, hardly any rise is left to be noticed.
        if allowed <= _MOST:
            state.observe(_Answer(tenant, worse, allowed, at))
        state.recent.append(worse)
        state.answers += 1
        state.worse += worse
        state.predicted += predicted
        if state.answers == self.settings.reference << state.looks:
            state.look()
        return self._alarm(stream, state, allowed) if state.detector.evidence >= self._needed else None

    def _alarm(self, stream: str, state: _Stream, allowed: float) -> ShiftAlarm | None:
        """Return the alarm of a stream with evidence enough, unless it takes two tenants to have enough."""
        alone = next(iter(state.tenants)) if len(state.tenants) == 1 else None
        tenant = None if alone is not None else state.needed_tenant(self._needed)
        if tenant is None:
            del self._streams[stream]
            return _shown(stream, state.detector, list(state.recent), allowed, alone)
        own = state.replayed(lambda owner: owner == tenant)
        if own.evidence < self._needed:
            return None
        recent = [answer.worse for answer in state.history if answer.tenant == tenant][-_SHOWN:]
        state.forget(tenant)
        return _shown(stream, own, recent, allowed, tenant)


def _shown(stream: str, detector: EDetector, recent: list[bool], allowed: float, tenant: str | None) -> ShiftAlarm:
    return ShiftAlarm(
        stream=stream,
        evidence=detector.evidence,
        answers=len(recent),
        rate=sum(recent) / len(recent),
        allowed=allowed,
        since=detector.since,
        tenant=tenant,
    )


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
        recovery, waits = self._supposed.pop(tier)
        answers = [answer for answer in self._answers[tier] if recovery.tenant in (None, answer.tenant)]
        before = [answer for answer in answers if answer.at < recovery.since]
        after = [answer for answer in answers if answer.at >= recovery.since]
        if _is_higher(before, after) and risen(before, after) >= _RISE:
            self._answers[tier] = deque(
                (answer for answer in self._answers[tier] if answer.at >= recovery.since), maxlen=HISTORY
            )
            good = sum(answer.good for answer in after)
            return msgspec.structs.replace(recovery, answers=len(after), rate=good / len(after))
        if waits:
            self._supposed[tier] = recovery, waits - 1
        return None


def risen(before: Sequence[Verdict], after: Sequence[Verdict]) -> float:
    """Return an e-value against the hypothesis that the share of good answers of each kind is the same `after` a change
    as `before` it: the mean over how many of the last ones before it are compared.

    Universal inference (Wasserman, Ramdas and Balakrishnan 2020): the probability of both parts by Krichevsky and
    Trofimov's mixture of all shares, over the greatest of one share. If the hypothesis is true, its mean is at most 1.
    """
    later = _counts(after)
    logs = [_log_e(_counts(before[-most:]), later) for most in _BEFORE]
    return sum(math.exp(min(log, 700.0)) for log in logs) / len(logs)


def _log_e(first: Counts, second: Counts) -> float:
    total = 0.0
    for kind in first.keys() & second.keys():
        (good, bad), (later_good, later_bad) = first[kind], second[kind]
        total += _mixture(good, bad) + _mixture(later_good, later_bad)
        total -= _greatest(good + later_good, bad + later_bad)
    return total


def _is_higher(before: Sequence[Verdict], after: Sequence[Verdict]) -> bool:
    """Whether more answers `after` were good than expected of answers `before`, kind by kind."""
    first, second = _counts(before[-_BEFORE[0] :]), _counts(after)
    excess = 0.0
    for kind in first.keys() & second.keys():
        (good, bad), (later_good, later_bad) = first[kind], second[kind]
        excess += later_good - (later_good + later_bad) * good / (good + bad)
    return excess > 0.0


def _counts(verdicts: Sequence[Verdict]) -> Counts:
    counts: Counts = {}
    for verdict in verdicts:
        good, bad = counts.get(verdict.kind, (0, 0))
        counts[verdict.kind] = good + verdict.good, bad + (not verdict.good)
    return counts


def _mixture(good: int, bad: int) -> float:
    """Return the log of Krichevsky and Trofimov's probability of a sequence."""
    return math.lgamma(good + 0.5) + math.lgamma(bad + 0.5) - math.log(math.pi) - math.lgamma(good + bad + 1.0)


def _greatest(good: int, bad: int) -> float:
    """Return the log of the greatest probability that one share gives a sequence."""
    return sum(count * math.log(count / (good + bad)) for count in (good, bad) if count)
