"""Limits failed sign-ins, in bounded memory of this process.

Devices that signed in before have limits of their own (`known_devices`), so that failures of others, of the same
account or address, do not keep them out. A right key is never limited: keys are too long to be guessed.
"""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

WINDOW_SECONDS = 300.0
MOST_FAILURES = 5
"""Of an account from unknown devices, and of a known device."""
MOST_FAILURES_OF_A_NETWORK = 20
"""Of an address or an IPv6 network of 64 bits: many people may share it."""
MOST_RECORDED = 200
"""Failures that are written to the log and the audit trail, of all addresses together."""
_MOST_SUBJECTS = 10_000


class _Failures(msgspec.Struct):
    """Times of the failures, and whether reaching the limit has been reported."""

    times: deque[float]
    is_reported: bool = False


class FailureLimit:
    """Allows at most `most` failures per window for each subject. `clock`: monotonic seconds."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, subject: str) -> int:
        """Return the whole seconds until another attempt is allowed; 0 if allowed now."""
        failures = self._failures.get(subject)
        if failures is None or len(failures.times) < self._most:
            return 0
        return max(math.ceil(failures.times[0] + WINDOW_SECONDS - self._clock()), 0)

    def failed(self, subject: str) -> None:
        """Count a failure; an attempt in progress counts as a failure until it is taken back."""
        failures = self._failures.setdefault(subject, _Failures(deque(maxlen=self._most)))
        failures.times.append(self._clock())
        failures.is_reported = False
        self._failures.move_to_end(subject)
        while len(self._failures) > _MOST_SUBJECTS:
            self._failures.popitem(last=False)

    def take_back(self, subject: str) -> None:
        """Uncount the last failure, and no other one: a success may not clear what others did meanwhile."""
        failures = self._failures.get(subject)
        if failures is not None and failures.times:
            failures.times.pop()

    def is_news(self, subject: str) -> bool:
        """Return whether the subject has to wait and this was not asked since its last failure."""
        failures = self._failures.get(subject)
        if failures is None or failures.is_reported or not self.wait(subject):
            return False
        failures.is_reported = True
        return True


@dataclass(slots=True)
class LoginLimits:
    """The limits of one process, by account, by network of passwords and of keys, by known device; and what is
    recorded."""

    accounts: FailureLimit = field(default_factory=partial(FailureLimit, MOST_FAILURES))
    networks: FailureLimit = field(default_factory=partial(FailureLimit, MOST_FAILURES_OF_A_NETWORK))
    keys: FailureLimit = field(default_factory=partial(FailureLimit, MOST_FAILURES_OF_A_NETWORK))
    devices: FailureLimit = field(default_factory=partial(FailureLimit, MOST_FAILURES))
    recorded: FailureLimit = field(default_factory=partial(FailureLimit, MOST_RECORDED))


class Attempt:
    """One attempt, counted by several limits until it proves right."""

    def __init__(self, *counted: tuple[FailureLimit, str]) -> None:
        self._counted = counted

    def wait(self) -> int:
        """Return the whole seconds until it is allowed; 0 if allowed now."""
        return max(limit.wait(subject) for limit, subject in self._counted)

    def is_news(self) -> bool:
        """Return whether one of the limits was reached since this was last asked."""
        news = [limit.is_news(subject) for limit, subject in self._counted]
        return any(news)

    def count(self) -> None:
        """Count it as failed."""
        for limit, subject in self._counted:
            limit.failed(subject)

    def take_back(self) -> None:
        """Uncount it."""
        for limit, subject in self._counted:
            limit.take_back(subject)
