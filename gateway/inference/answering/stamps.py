"""When the stages of a request began and ended."""

import msgspec

from inference_core.protocol import NO_TIMES, StepTimes


class Phases(msgspec.Struct, frozen=True):
    """Seconds from a request's arrival to its first delta, of its prefill, and of its decoding."""

    ttft: float
    prefill: float
    decode: float


class Stamps(msgspec.Struct):
    """Monotonic seconds at which the stages of a request began and ended, for metrics and spans.

    `first_delta` and `last_delta`: passed on to the caller; `first_made` and `last_made`: given by the tier, earlier if
    they were held back. `gaps`: seconds between one delta with tokens and the next of the same choice, by when the tier
    gave them, with the number of tokens that the later one brought; `last_tokens`: when each choice had its last ones.
    A server elsewhere gives no token ids: each of its pieces counts as one, until its own count says how many tokens
    all `pieces` were. `tier_seconds`: time spent waiting for the tier; the rest of the request is ours.
    `times` are what the tier says with the usage.
    """

    arrival: float
    routed: float
    attempted: float
    first_delta: float | None = None
    last_delta: float | None = None
    first_made: float | None = None
    last_made: float | None = None
    finished: float = 0.0
    tier_seconds: float = 0.0
    gaps: list[tuple[float, float]] = []
    last_tokens: dict[int, float] = {}
    pieces: int = 0
    times: StepTimes = NO_TIMES

    def take(self, now: float, tokens: int, choice: int = 0, made: float | None = None) -> None:
        """A delta of `choice` with so many tokens came `now`; the tier gave it at `made`, None if at the same time."""
        made = now if made is None else made
        if self.first_delta is None:
            self.first_delta, self.first_made = now, made
        if tokens:
            before = self.last_tokens.get(choice)
            if before is not None:
                self.gaps.append((made - before, tokens))
            self.last_tokens[choice] = made
        self.last_delta, self.last_made = now, made

    @property
    def schedule_seconds(self) -> float:
        """Waiting for the tier's first step, and planning the steps of the prompt."""
        return self.times.queue_seconds + self.times.planning_seconds

    @property
    def prefill_seconds(self) -> float | None:
        """From the tier's first step to what it gave first, without planning; None if it gave nothing."""
        if self.first_made is None:
            return None
        times = self.times
        seconds = self.first_made - self.attempted - (times.queue_seconds + times.planning_seconds)
        return seconds if seconds > 0 else 0.0

    @property
    def decode_seconds(self) -> float | None:
        """From what the tier gave first to what it gave last; None if it gave nothing."""
        return None if self.first_made is None or self.last_made is None else self.last_made - self.first_made

    @property
    def phases(self) -> Phases | None:
        """None if the caller was given nothing before the end, or the tier gave nothing."""
        if self.first_delta is None or (decode := self.decode_seconds) is None:
            return None
        return Phases(self.first_delta - self.arrival, self.prefill_seconds or 0.0, decode)

    def take_pieces(self, now: float, pieces: int, choice: int = 0, made: float | None = None) -> None:
        """A delta of `choice` with so many pieces of a server elsewhere came `now`; `made` as for `take`."""
        self.pieces += pieces
        self.take(now, pieces, choice, made)

    def scale_to(self, tokens: int) -> None:
        """The server counted so many tokens in all its pieces."""
        if self.pieces:
            self.gaps = [(seconds, pieces * tokens / self.pieces) for seconds, pieces in self.gaps]

    @property
    def tokens_per_second(self) -> float | None:
        """Of a choice, after its first token (SPEC OB-02): (n - 1) / (end - first token), the mean over all choices
        weighted by their times; None where no choice has a second token."""
        if not self.gaps:
            return None
        seconds, tokens = map(sum, zip(*self.gaps, strict=True))
        return tokens / seconds if seconds > 0 else None

    def again(self, now: float) -> "Stamps":
        """Of the same request, which another tier begins to answer `now`."""
        return Stamps(arrival=self.arrival, routed=self.routed, attempted=now, tier_seconds=self.tier_seconds)
