"""Limits failed sign-ins by address and by name, in bounded memory."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

WINDOW_SECONDS = 300.0
MOST_FAILURES = 5
_MOST_SUBJECTS = 10_000


class _Failures(msgspec.Struct):
    """Times of the failures, and whether reaching the limit has been reported."""

    times: deque[float]
    is_told: bool = False


class LoginLimit:
    """Allows at most `MOST_FAILURES` per window for each subject. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, *subjects: str) -> int:
        """Return the whole seconds until another attempt is allowed; 0 if allowed now."""
        now = self._clock()
        return max((self._wait(subject, now) for subject in subjects), default=0)

    def failed(self, *subjects: str) -> None:
        """Count a failure of each subject; an attempt in progress counts as a failure until it is `forgiven`."""
        now = self._clock()
        for subject in subjects:
            failures = self._failures.setdefault(subject, _Failures(deque(maxlen=MOST_FAILURES)))
            failures.times.append(now)
            failures.is_told = False
            self._failures.move_to_end(subject)
        while len(self._failures) > _MOST_SUBJECTS:
            self._failures.popitem(last=False)

    def is_news(self, *subjects: str) -> bool:
        """Return whether a subject has to wait and this was not asked since its last failure."""
        now = self._clock()
        fresh = [
            found
            for subject in subjects
            if self._wait(subject, now) and (found := self._failures.get(subject)) and not found.is_told
        ]
        for failures in fresh:
            failures.is_told = True
        return bool(fresh)

    def forgive(self, *subjects: str) -> None:
        """Clear the failures of subjects that signed in."""
        for subject in subjects:
            self._failures.pop(subject, None)

    def _wait(self, subject: str, now: float) -> int:
        failures = self._failures.get(subject)
        if failures is None or len(failures.times) < MOST_FAILURES:
            return 0
        return max(math.ceil(failures.times[0] + WINDOW_SECONDS - now), 0)
