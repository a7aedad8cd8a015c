"""When the stages of a request began and ended."""

import msgspec


class Stamps(msgspec.Struct):
    """Monotonic seconds at which the stages of a request began and ended, for metrics and spans.

    `gaps`: seconds between one delta with tokens and the next, with the number of tokens that the later one brought.
    A server elsewhere gives no token ids: each of its pieces counts as one, until its own count says how many tokens
    all `pieces` were.
    `tier_seconds`: time spent waiting for the tier; the rest of the request is ours. `queue_seconds` and
    `preemptions` are what the tier says with the usage. A delta that was held back counts from when it was let go.
    """

    arrival: float
    routed: float
    attempted: float
    first_delta: float | None = None
    last_delta: float | None = None
    finished: float = 0.0
    tier_seconds: float = 0.0
    gaps: list[tuple[float, float]] = []
    pieces: int = 0
    queue_seconds: float = 0.0
    preemptions: int = 0

    def take(self, now: float, tokens: int) -> None:
        """A delta with so many tokens came `now`."""
        if self.last_delta is None:
            self.first_delta = now
        elif tokens:
            self.gaps.append((now - self.last_delta, tokens))
        self.last_delta = now

    def take_pieces(self, now: float, pieces: int) -> None:
        """A delta with so many pieces of a server elsewhere came `now`."""
        self.pieces += pieces
        self.take(now, pieces)

    def scale_to(self, tokens: int) -> None:
        """The server counted so many tokens in all its pieces."""
        if self.pieces:
            self.gaps = [(seconds, pieces * tokens / self.pieces) for seconds, pieces in self.gaps]

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first (SPEC OB-02): (n - 1) / (end - first token); None where that is nothing."""
        seconds = sum(gap for gap, _ in self.gaps)
        return sum(tokens for _, tokens in self.gaps) / seconds if seconds > 0 else None

    def again(self, now: float) -> "Stamps":
        """Of the same request, which another tier begins to answer `now`."""
        return Stamps(arrival=self.arrival, routed=self.routed, attempted=now, tier_seconds=self.tier_seconds)
