"""A Bill: what an answer used, and whether its reader is the one who pays for it."""

import msgspec

from quality.records.record import Attempt
from tiers.tier import Usage


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts with their costs, and the tokens of the last one. Not `paid`: the answer came out of the cache, or
    another reader of it pays, and the attempts at it cost nothing. Earlier ones that failed may still cost."""

    attempts: list[Attempt]
    usage: Usage
    paid: bool = True

    @property
    def cost_usd(self) -> float:
        """What all attempts cost, in US dollars."""
        return sum([attempt.cost_usd for attempt in self.attempts])

    def unpaid(self) -> "Bill":
        """The same for a reader who owes nothing."""
        free = [msgspec.structs.replace(attempt, cost_usd=0.0) for attempt in self.attempts]
        return Bill(attempts=free, usage=self.usage, paid=False)
