"""What a request is for and by when its first token is wanted: its deadline, its priority, what alerts hold it to."""

from typing import Literal

import msgspec

SloName = Literal["edge", "chat", "search", "interactive", "batch"]

# OpenAI's names of the scheduling classes, by priority.
SERVICE_TIERS = ("priority", "default", "flex")


class SloClass(msgspec.Struct, frozen=True, kw_only=True):
    """`ttft_seconds`: until the first token. `priority` where the caller says none: 0 goes first."""

    name: SloName
    ttft_seconds: float
    priority: int

    def ttft_limit(self, objective_seconds: float, *, asked: bool) -> float:
        """Seconds until the first token that a request is held to: those of the class that was `asked` for. Without
        one, those of the usual class, or its tier's objective where that is longer: a small machine's tiers promise
        less."""
        return self.ttft_seconds if asked else max(self.ttft_seconds, objective_seconds)


# SPEC GW-18: conversations 50 to 100 ms, search augmentation 200, edge 20; interactive half a second, batch two.
SLO_CLASSES: dict[str, SloClass] = {
    one.name: one
    for one in (
        SloClass(name="edge", ttft_seconds=0.020, priority=0),
        SloClass(name="chat", ttft_seconds=0.100, priority=0),
        SloClass(name="search", ttft_seconds=0.200, priority=1),
        SloClass(name="interactive", ttft_seconds=0.500, priority=1),
        SloClass(name="batch", ttft_seconds=2.0, priority=2),
    )
}


def slo_class(name: SloName | None, priority: int) -> SloClass:
    """The class that was asked for, or the usual one of a request of this priority."""
    return SLO_CLASSES[name or ("batch" if priority >= SLO_CLASSES["batch"].priority else "interactive")]
