"""How often a sign-in may fail: by where it comes from and by whose name, in bounded memory."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

WINDOW_SECONDS = 300.0
MOST_FAILURES = 5
_MOST_SUBJECTS = 10_000


class _Failures(msgspec.Struct):
    """When they were, and whether somebody has been told that they hold a subject up."""

    times: deque[float]
    is_told: bool = False


class LoginLimit:
    """At most `MOST_FAILURES` in any window, counted for each subject by itself. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, *subjects: str) -> int:
        """Whole seconds until another attempt is let in; 0 now."""
        now = self._clock()
        return max((self._wait(subject, now) for subject in subjects), default=0)

    def failed(self, *subjects: str) -> None:
        """Count a failure of each; attempts under way count as failures until they are `forgiven`."""
        now = self._clock()
        for subject in subjects:
            failures = self._failures.setdefault(subject, _Failures(deque(maxlen=MOST_FAILURES)))
            failures.times.append(now)
            failures.is_told = False
            self._failures.move_to_end(subject)
        while len(self._failures) > _MOST_SUBJECTS:
            self._failures.popitem(last=False)

    def is_news(self, *subjects: str) -> bool:
        """Whether any of them has to wait, and was not asked about here since its last failure."""
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
        """They have signed in: nothing is held against them."""
        for subject in subjects:
            self._failures.pop(subject, None)

    def _wait(self, subject: str, now: float) -> int:
        failures = self._failures.get(subject)
        if failures is None or len(failures.times) < MOST_FAILURES:
            return 0
        return max(math.ceil(failures.times[0] + WINDOW_SECONDS - now), 0)
