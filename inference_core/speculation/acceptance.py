"""Measured acceptance rates of draft tokens, of one sequence or of all."""


class Acceptance:
    """Rates for the first token of a draft (`first`) and, once that is accepted, for each further one (`later`).

    They differ: whether a text is being copied is uncertain, but not how the copy continues. Older rounds weigh less by
    `keep`; `prior`, worth a few tokens, replaces missing observations.
    """

    PRIOR_WEIGHT = 4.0
    MOST = 0.98  # a cautious prior
    START = 0.6
    _IDLE = 0.99

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._first = [0.0, 0.0]  # hits, trials
        self._later = [0.0, 0.0]

    def record(self, accepted: int, drafted: int) -> None:
        """Record that the first `accepted` of `drafted` tokens (at least one) were accepted."""
        keep = self._keep
        tested = min(accepted + 1, drafted)
        for counts, hits, trials in (
            (self._first, accepted > 0, 1),
            (self._later, max(accepted - 1, 0), tested - 1),
        ):
            decay = keep**trials
            counts[0] = counts[0] * decay + hits
            counts[1] = counts[1] * decay + trials

    def fade(self) -> None:
        """Weaken the past after a step without drafts, so that drafting is tried again."""
        for counts in (self._first, self._later):
            counts[0] *= self._IDLE
            counts[1] *= self._IDLE

    def rates(self, prior: tuple[float, float] = (START, START)) -> tuple[float, float]:
        """Return the acceptance rates of the first token and of each further one."""
        first, later = (
            min((hits + expected * self.PRIOR_WEIGHT) / (trials + self.PRIOR_WEIGHT), self.MOST)
            for (hits, trials), expected in zip((self._first, self._later), prior, strict=True)
        )
        return first, later
