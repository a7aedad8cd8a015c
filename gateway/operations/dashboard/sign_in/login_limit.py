"""Limits failed sign-ins, in bounded memory of this process.

Devices that signed in before have limits of their own (`known_devices`), so that failures of others, of the same
account or address, do not keep them out. A right key is never limited: keys are too long to be guessed.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Literal

import msgspec

WINDOW_SECONDS = 300.0
MOST_FAILURES = 5
"""Of an account from unknown devices, and of a known device."""
MOST_FAILURES_OF_A_NETWORK = 20
"""Of an address or an IPv6 network of 64 bits: many people may share it."""
MOST_STARTS_OF_A_NETWORK = 100
"""Ways to an OpenID provider that a network begins; right ones too, since nothing tells them apart yet."""
MOST_RECORDED = 200
"""Failures that are written to the log and the audit trail, of all addresses together."""
_MOST_SUBJECTS = 10_000

Kind = Literal["account", "network", "key", "device", "provider", "callback", "record"]
Subject = tuple[Kind, str]
"""What failures are counted for: an account, a known device, what is recorded, and a network that sends passwords,
keys, its browsers to an OpenID provider, or codes of one."""
MOST: dict[Kind, int] = {
    "account": MOST_FAILURES,
    "network": MOST_FAILURES_OF_A_NETWORK,
    "key": MOST_FAILURES_OF_A_NETWORK,
    "device": MOST_FAILURES,
    "provider": MOST_STARTS_OF_A_NETWORK,
    "callback": MOST_FAILURES_OF_A_NETWORK,
    "record": MOST_RECORDED,
}
"""Failures per window of each kind of subject."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to sign in.

    `wait_seconds`: until the next one may be made; 0: this one may, and counts as a failure of its `subjects` until it
    is taken back. `is_news`: it is the first that was refused since a limit was reached. `member` identifies it in
    Redis.
    """

    wait_seconds: int = 0
    is_news: bool = False
    subjects: tuple[Subject, ...] = ()
    member: str = ""


class LoginLimits(ABC):
    """Allows each subject at most `MOST` failures of its kind in `WINDOW_SECONDS`; an attempt has several subjects."""

    @abstractmethod
    async def begin(self, *subjects: Subject) -> Attempt:
        """Count an attempt as failed if all its subjects may make one, so that concurrent attempts count too."""

    @abstractmethod
    def take_back(self, attempt: Attempt) -> None:
        """Uncount an attempt that was right, and no other one: a success may not clear what others did meanwhile. Does
        not wait."""


class OwnLoginLimits(LoginLimits):
    """The limits of one process. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = {kind: _FailureLimit(most, clock) for kind, most in MOST.items()}

    async def begin(self, *subjects: Subject) -> Attempt:
        """See `LoginLimits`."""
        if wait := max(self._limits[kind].wait(subject) for kind, subject in subjects):
            news = [self._limits[kind].is_news(subject) for kind, subject in subjects]
            return Attempt(wait_seconds=wait, is_news=any(news))
        self.count(*subjects)
        return Attempt(subjects=subjects)

    def count(self, *subjects: Subject) -> None:
        """Count a failure, whatever was counted before."""
        for kind, subject in subjects:
            self._limits[kind].failed(subject)

    def take_back(self, attempt: Attempt) -> None:
        """See `LoginLimits`."""
        for kind, subject in attempt.subjects:
            self._limits[kind].take_back(subject)


class _Failures(msgspec.Struct):
    """Times of the failures, and whether reaching the limit has been reported."""

    times: deque[float]
    is_reported: bool = False


class _FailureLimit:
    """Failures of the subjects of one kind."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most, clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, subject: str) -> int:
        """Return the whole seconds until another attempt is allowed; 0 if allowed now."""
        failures = self._failures.get(subject)
        if failures is None or len(failures.times) < self._most:
            return 0
        return max(math.ceil(failures.times[0] + WINDOW_SECONDS - self._clock()), 0)

    def failed(self, subject: str) -> None:
        failures = self._failures.setdefault(subject, _Failures(deque(maxlen=self._most)))
        failures.times.append(self._clock())
        failures.is_reported = False
        self._failures.move_to_end(subject)
        while len(self._failures) > _MOST_SUBJECTS:
            self._failures.popitem(last=False)

    def take_back(self, subject: str) -> None:
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
