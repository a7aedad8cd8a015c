"""The plain data of a choice between tiers for a session: prices and caches of tiers, and what is known of it."""

from typing import Literal

import msgspec

End = Literal["good", "bad", "none"]


class SessionTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier as sessions see it. Prices: US dollars per million tokens. `cache_seconds`: how long its cache keeps a
    prefix after its last use; 0: it has no cache. `min_cached_tokens`: shorter prompts are not cached.
    `context_tokens`: the longest prompt with its answer. `long_write_usd`: of a write that lasts an hour.
    `output_ratio`: its output tokens of a step, as a share of the view's expected ones."""

    number: int
    input_usd: float
    output_usd: float
    read_usd: float
    write_usd: float
    long_write_usd: float
    cache_seconds: float
    min_cached_tokens: int
    context_tokens: int
    output_ratio: float = 1.0


class Warmth(msgspec.Struct, frozen=True):
    """What a tier has cached of a session: `tokens`, last read or written `age_seconds` ago."""

    tokens: int = 0
    age_seconds: float = 0.0


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session before a step.

    `current`: the tier of its last answer; None before its first. `warmth`: of each tier, cheapest first.
    `prompt_tokens`: of the next step. `growth_tokens`: by which a prompt grows from step to step, the answer included;
    `output_tokens`: of an answer. `turn_steps`: expected steps until the next boundary; `remaining_steps`: until the
    session ends, those included. `gap_seconds`: expected pause before the next boundary. `next_wanted[k-1]`: P(the next
    turn wants tier k at least); (): as this one. `end`: how the work before this boundary ended.
    """

    current: int | None
    warmth: tuple[Warmth, ...]
    prompt_tokens: int
    growth_tokens: float
    output_tokens: float
    turn_steps: float
    remaining_steps: float
    gap_seconds: float = 60.0
    next_wanted: tuple[float, ...] = ()
    end: End = "none"


class SessionChoice(msgspec.Struct, frozen=True):
    """`tier`: where the next steps run. `reason`: why, for people. `rest_usd`: expected US dollars of the rest of the
    session from each tier on; infinite where its prompt does not fit."""

    tier: int
    reason: str
    rest_usd: tuple[float, ...]


class LoopCounters(msgspec.Struct, frozen=True):
    """Of the work since the last boundary. `steps`: answers, this one included; `errors`: results that failed;
    `repeats`: calls made before; `bad_calls`: calls in a row that no tool could read; `failures`: of the tier itself,
    in a row; `failed_exits`: exit codes other than 0, of `exits` known ones."""

    steps: int = 0
    errors: int = 0
    repeats: int = 0
    bad_calls: int = 0
    failures: int = 0
    exits: int = 0
    failed_exits: int = 0
