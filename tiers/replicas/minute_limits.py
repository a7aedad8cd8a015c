"""What is sent to one replica, or with one API key, in a sliding minute: requests and tokens. No I/O, no clock."""

import math
from collections import deque

SECONDS = 60.0


class MinuteEntry:
    """One request: when it was sent, and its tokens, an estimate until its answer has ended."""

    __slots__ = ("at", "tokens")

    def __init__(self, at: float, tokens: int) -> None:
        self.at, self.tokens = at, tokens


class MinuteLimits:
    """At most `requests` requests, and no further one once `tokens` tokens were sent and answered, in any 60 seconds;
    None is no bound. The last request may pass `tokens` by its answer, whose length is not known before."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._requests, self._tokens = requests, tokens
        self._entries: deque[MinuteEntry] = deque()
        self._sum = 0

    def wait(self, now: float, tokens: int) -> float:
        """Return the seconds until a request of so many prompt tokens may be sent. One that alone is above the limit
        may be sent in an empty minute."""
        self._forget(now)
        excess = 0 if self._tokens is None else self._sum + tokens - self._tokens
        too_many = 0 if self._requests is None else len(self._entries) + 1 - self._requests
        until = -math.inf
        for entry in self._entries:
            if excess <= 0 and too_many <= 0:
                break
            excess, too_many, until = excess - entry.tokens, too_many - 1, entry.at + SECONDS
        return max(until - now, 0.0)

    def add(self, now: float, tokens: int) -> MinuteEntry:
        """Count a request with the estimated tokens of its prompt."""
        entry = MinuteEntry(now, tokens)
        self._entries.append(entry)
        self._sum += tokens
        return entry

    def settle(self, entry: MinuteEntry, tokens: int, now: float) -> None:
        """Replace the estimate of a request by what it used."""
        self._forget(now)
        if self._entries and entry.at >= self._entries[0].at:
            self._sum += tokens - entry.tokens
        entry.tokens = tokens

    def _forget(self, now: float) -> None:
        while self._entries and self._entries[0].at <= now - SECONDS:
            self._sum -= self._entries.popleft().tokens
