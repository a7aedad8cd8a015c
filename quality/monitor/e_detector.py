"""Have errors become more frequent? One e-detector per stream of verified answers, with a known false-alarm rate.

The Shiryaev-Roberts e-detector of Shin, Ramdas and Rinaldo ("E-detectors: a nonparametric framework for sequential
change detection", 2023). It may be checked after every answer, and no sample size is fixed beforehand (SPEC QM-04).
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from quality.estimates.upgrade_rate import wilson_interval

# Rises of the log odds of an error. Evidence is the mean over all, so each costs at most a constant factor.
SHIFTS = (0.5, 1.0, 2.0, 3.0)
_FACTORS = tuple(math.exp(shift) for shift in SHIFTS)
_LEAST, _MOST = 0.005, 0.95
_Z99 = 2.3263478740408408
_SHOWN = 100
# Answers of a stream that are tested again without one tenant's, and the tenants with most errors that are left out.
_HISTORY, _LEFT_OUT = 1024, 16


class ShiftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`false_alarm_every`: the mean number of verified answers, over all streams, between two false alarms, at least.
    If serving pays for verifying 2% of the answers, 2,000 of these are 100,000 requests.

    `tolerance`: a rise above the predicted rate that needs no alarm. `reference`: the number of answers after which the
    predictions of a stream are checked, and corrected if they were wrong from the start. Raises `ValueError`.
    """

    false_alarm_every: float = 2_000.0
    tolerance: float = 0.03
    reference: int = 100

    def __post_init__(self) -> None:
        if not self.false_alarm_every >= 1.0:
            raise ValueError(f"false_alarm_every is {self.false_alarm_every}; it must be at least 1")
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"tolerance is {self.tolerance}; it must lie between 0 and 1")
        if self.reference < 1:
            raise ValueError(f"reference is {self.reference}; it must be at least 1")


class ShiftAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """Errors in `stream` have become more frequent: `rate` of its last `answers`, where at most `allowed` was usual.

    `evidence`: the e-detector's value, at least `ShiftSettings.false_alarm_every` for each view. `since`: the time of
    the first answer after the most likely change, in the caller's clock. `tenant`: whose answers alone show it ("":
    those without a key); None: without those of any one tenant there is evidence enough.
    """

    stream: str
    evidence: float
    answers: int
    rate: float
    allowed: float
    since: float
    tenant: str | None = None

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
        for place, factor in enumerate(_FACTORS):
            ratio = likelihood_ratio(worse, allowed, factor)
            self._sums[place] = (self._sums[place] + 1.0) * ratio
            best, since = self._largest[place] if self._largest[place][0] > 1.0 else (1.0, at)
            self._largest[place] = best * ratio, since


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
            if self.replayed(lambda one, out=tenant: one != out).evidence < evidence:  # type: ignore[misc]
                return tenant
        return None

    def forget(self, tenant: str) -> None:
        """Drop the answers of `tenant`; the excess that is usual stays."""
        self.detector = self.replayed(lambda one: one != tenant)
        self.history = deque((one for one in self.history if one.tenant != tenant), maxlen=_HISTORY)
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
        """Observe a verified answer of time `at` to `tenant`, `predicted` to be worse with this probability; return the
        alarm that it raises.

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
        own = state.replayed(lambda one: one == tenant)
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
