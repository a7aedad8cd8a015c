"""Families of simulated sessions: tiers with prices and caches of providers, and how their turns are drawn."""

import msgspec
import numpy as np

from benchmarks.sessions.provider_cache import SimulatedTurn
from classifier.policy.sessions import SessionTier

MOST_TURNS = 8
"""So that the exact optimum over three tiers stays computable: 3^8 ways at most."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """`tiers`: cheapest first. `turn_steps`: mean steps of a turn (geometric). `another`: P(a turn is followed by
    another). `gap_seconds`, `gap_spread`: median and log standard deviation of the pauses. `first_wanted`: of the
    cheapest tier that is good enough for the first turn; `keeps`: P(the next turn wants the same), else a new draw.
    `evicted`: P(a cache is emptied in a pause)."""

    name: str
    tiers: tuple[SessionTier, ...]
    start_tokens: int
    growth: int
    output: int
    turn_steps: float
    another: float
    gap_seconds: float
    gap_spread: float
    first_wanted: tuple[float, ...]
    keeps: float
    evicted: float


def _tier(usd: tuple[float, float], read: float, write: float, least: int, seconds: float) -> SessionTier:
    """A tier at `usd` of input and output, whose reads and writes cost shares of the input."""
    paid, output = usd
    return SessionTier(
        input_usd=paid, output_usd=output, read_usd=paid * read, write_usd=paid * write,
        cache_seconds=seconds, min_cached_tokens=least,
    )  # fmt: skip


# List prices of the two large providers' small, middle and large models; a written price of writes, or none.
WRITTEN = (
    _tier((1, 5), 0.1, 1.25, 4096, 300),
    _tier((3, 15), 0.1, 1.25, 1024, 300),
    _tier((5, 25), 0.1, 1.25, 4096, 300),
)
AUTOMATIC = (
    _tier((0.25, 2), 0.1, 1, 1024, 600),
    _tier((1.25, 10), 0.1, 1, 1024, 600),
    _tier((2.5, 15), 0.1, 1, 1024, 600),
)
MIXED = (
    _tier((0.3, 1.2), 1, 1, 0, 0),
    _tier((1.25, 10), 0.1, 1, 1024, 600),
    _tier((5, 25), 0.1, 1.25, 4096, 300),
)

_AGENT = {
    "start_tokens": 15_000, "growth": 1000, "output": 350, "turn_steps": 12.0, "another": 0.75, "gap_seconds": 60.0,
    "gap_spread": 1.5, "first_wanted": (0.5, 0.3, 0.2), "keeps": 0.6, "evicted": 0.03,
}  # fmt: skip
# A person who asks small things about a large context: a step or two a turn.
_SHORT = _AGENT | {"start_tokens": 60_000, "growth": 1500, "turn_steps": 2.0, "another": 0.85, "output": 500}
# Pauses that often outlast the cache.
_SLOW = _AGENT | {"gap_seconds": 400.0, "turn_steps": 6.0}

FAMILIES = tuple(
    msgspec.convert({"name": f"{shape}, {prices}", "tiers": tiers, **drawn}, Family)
    for shape, drawn in (("long turns", _AGENT), ("short turns", _SHORT), ("long pauses", _SLOW))
    for prices, tiers in (("written caches", WRITTEN), ("automatic caches", AUTOMATIC), ("mixed", MIXED))
)


def draw_session(family: Family, rng: np.random.Generator) -> tuple[SimulatedTurn, ...]:
    """Return the turns of one session of at most `MOST_TURNS`."""
    turns: list[SimulatedTurn] = []
    wanted = int(rng.choice(len(family.tiers), p=family.first_wanted))
    while len(turns) < MOST_TURNS:
        if turns and rng.random() >= family.another:
            break
        if turns and rng.random() >= family.keeps:
            wanted = int(rng.choice(len(family.tiers), p=family.first_wanted))
        turns.append(
            SimulatedTurn(
                steps=int(rng.geometric(1 / family.turn_steps)),
                growth=int(rng.integers(family.growth // 2, family.growth * 3 // 2 + 1)),
                output=int(rng.integers(family.output // 2, family.output * 3 // 2 + 1)),
                gap=float(rng.lognormal(np.log(family.gap_seconds), family.gap_spread)) if turns else 0.0,
                wanted=wanted,
                evicted=tuple(k for k in range(len(family.tiers)) if turns and rng.random() < family.evicted),
            )
        )
    return tuple(turns)
