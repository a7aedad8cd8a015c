"""Rate limits and concurrency of a key: a sliding minute of requests and tokens, and the requests in flight."""

import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gateway.base.requests.caller import Allowance

# Requests are counted per whole second; each counts until its second has left the window.
WINDOW_SECONDS = 60


class Room(msgspec.Struct, frozen=True):
    """Requests or tokens per minute: the limit, the remainder, and seconds until the full limit is available."""

    limit: int
    remaining: int
    reset_seconds: float


class Entry(msgspec.Struct, frozen=True):
    """The outcome of rate limiting a request. `refused`: by which limit; "" if it is admitted, and then it has to
    leave.

    `retry_seconds`: when it would be admitted, None for never: it asks for more tokens than the limit. `second` and
    `member` identify the request.
    """

    key_id: str
    refused: str = ""
    retry_seconds: float | None = 0.0
    requests: Room | None = None
    tokens: Room | None = None
    requested_tokens: int = 0
    second: int = 0
    member: str = ""


class Windows(ABC):
    """Counts over any minute never exceed the limits, by the counting process's clock: clock steps change nothing.

    `enter` counts a request with an estimate of its tokens, or rejects it and counts nothing. Each admitted entry
    leaves exactly once, with the tokens that it used.
    """

    @abstractmethod
    async def enter(self, key_id: str, allowance: Allowance, tokens: int, member: str) -> Entry:
        """Admit the request `member` (unique), if the limits of its key allow it."""

    @abstractmethod
    def leave(self, entry: Entry, tokens: int) -> None:
        """The request has ended. Does not wait."""


class _Window:
    """The last minute of one key: [second, requests, tokens], oldest first, and their sums."""

    __slots__ = ("in_flight", "requests", "seconds", "tokens")

    def __init__(self) -> None:
        self.seconds: deque[list[int]] = deque()
        self.requests = self.tokens = self.in_flight = 0

    def forget(self, second: int) -> None:
        """Drop what has left the window that ends with `second`."""
        while self.seconds and self.seconds[0][0] <= second - WINDOW_SECONDS - 1:
            _, requests, tokens = self.seconds.popleft()
            self.requests -= requests
            self.tokens -= tokens

    def add(self, second: int, requests: int, tokens: int) -> None:
        """Count what happened in `second`, if it is still in the window."""
        self.requests += requests
        self.tokens += tokens
        for row in reversed(self.seconds):
            if row[0] == second:
                row[1] += requests
                row[2] += tokens
                return
            if row[0] < second:
                break
        self.seconds.append([second, requests, tokens])


class LocalWindows(Windows):
    """Counts of this process only. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: defaultdict[str, _Window] = defaultdict(_Window)

    async def enter(self, key_id: str, allowance: Allowance, tokens: int, member: str) -> Entry:
        """See `Windows`."""
        now = self._clock()
        second, window = math.floor(now), self._windows[key_id]
        window.forget(second)
        sums = Sums(window.requests, window.tokens, window.in_flight)
        last = window.seconds[-1][0] if window.seconds else second
        entry = Entry(key_id, requested_tokens=tokens, second=second)
        entry = judged(entry, allowance, sums, window.seconds, now, last)
        if not entry.refused:
            window.add(second, 1, tokens)
            window.in_flight += 1
        return entry

    def leave(self, entry: Entry, tokens: int) -> None:
        """See `Windows`."""
        window = self._windows[entry.key_id]
        window.in_flight -= 1
        window.forget(math.floor(self._clock()))
        if window.seconds and window.seconds[0][0] <= entry.second:
            window.add(entry.second, 0, tokens - entry.requested_tokens)
        if not window.in_flight and not window.seconds:
            del self._windows[entry.key_id]


class Sums(msgspec.Struct, frozen=True):
    """Counts in a window, and in flight."""

    requests: int
    tokens: int
    in_flight: int


def judged(
    entry: Entry, allowance: Allowance, sums: Sums, seconds: Iterable[Sequence[int]], now: float, last: int
) -> Entry:
    """Apply the limits to `entry` before it is counted.

    `seconds`: contents of the window as (second, requests, tokens), oldest first, which a refusal reads; `last`: the
    newest second in it.
    """
    refused: str = ""
    retry: float | None = 0.0
    most, most_tokens = allowance.requests_per_minute, allowance.tokens_per_minute
    if allowance.concurrency is not None and sums.in_flight >= allowance.concurrency:
        refused, retry = "concurrency", 1.0
    elif most is not None and sums.requests + 1 > most:
        refused, retry = "requests", _wait([(s, r) for s, r, _ in seconds], sums.requests + 1 - most, now)
    elif most_tokens is not None and sums.tokens + entry.requested_tokens > most_tokens:
        over = sums.tokens + entry.requested_tokens - most_tokens
        refused, retry = "tokens", _wait([(s, t) for s, _, t in seconds], over, now)
    counted, newest = (0, last) if refused else (1, entry.second)
    reset = newest + WINDOW_SECONDS + 1 - now
    return msgspec.structs.replace(
        entry,
        refused=refused,
        retry_seconds=retry,
        requests=None if most is None else Room(most, max(most - sums.requests - counted, 0), reset),
        tokens=(
            None
            if most_tokens is None
            else Room(most_tokens, max(most_tokens - sums.tokens - counted * entry.requested_tokens, 0), reset)
        ),
    )


def _wait(counts: list[tuple[int, int]], over: int, now: float) -> float | None:
    """Return the seconds until `over` of the counts have left the window; None if all of them are not enough."""
    for second, count in counts:
        over -= count
        if over <= 0:
            return second + WINDOW_SECONDS + 1 - now
    return None
