"""The plain data of a choice between tiers for a session: prices and caches of tiers, and what its loop showed."""

from typing import Literal

import msgspec

End = Literal["good", "bad", "none"]


class SessionTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier as sessions see it. Prices: US dollars per million tokens. `cache_seconds`: how long its cache keeps a
    prefix after its last use; 0: it has no cache. `min_cached_tokens`: shorter prompts are not cached.
    `output_ratio`: its output tokens of a step, as a share of the most that any tier's has."""

    input_usd: float
    output_usd: float
    read_usd: float
    write_usd: float
    cache_seconds: float
    min_cached_tokens: int
    output_ratio: float = 1.0


class Warmth(msgspec.Struct, frozen=True):
    """What a tier has cached of a session: `tokens`, last read or written `age_seconds` ago."""

    tokens: int = 0
    age_seconds: float = 0.0


class LoopCounters(msgspec.Struct, frozen=True):
    """Of the work since the last boundary. `steps`: answers, this one included; `errors`: results that failed;
    `repeats`: calls made before; `bad_calls`: calls in a row that no tool could read; `failed_exits`: exit codes other
    than 0, of `exits` known ones."""

    steps: int = 0
    errors: int = 0
    repeats: int = 0
    bad_calls: int = 0
    exits: int = 0
    failed_exits: int = 0
