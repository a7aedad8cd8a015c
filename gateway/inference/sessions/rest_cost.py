"""What the rest of a session is expected to cost on each tier, with the caches of providers."""

from collections.abc import Sequence

from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import reread_usd, reuse_usd
from tiers.catalog.tier_spec import TierSpec

GROWTH_TOKENS = 1000
"""Tokens by which a prompt grows from step to step, the answer included: the median of twice the tokens read over the
steps squared was 1,028 in 846 recorded runs on SWE-bench Pro, quartiles 816 and 1,369. All tiers read the same, so that
little hangs on it."""


def rest_costs(catalog: Catalog, warm: Sequence[int], prompt_tokens: int, steps: float) -> list[float]:
    """Return the US dollars of `steps` further steps on each tier, of which the first has `prompt_tokens`.

    `warm[k-1]`: tokens of it that tier k's cache holds. What a tier has read it reads again at its price of cached
    tokens, and what is new at that of writes.
    """
    return [_rest(spec, held, prompt_tokens, steps) for spec, held in zip(catalog.tiers, warm, strict=True)]


def _rest(spec: TierSpec, held: int, prompt_tokens: int, steps: float) -> float:
    later = max(0.0, steps - 1.0)
    read = steps * prompt_tokens + GROWTH_TOKENS * later * steps / 2.0
    new = prompt_tokens - held + GROWTH_TOKENS * later
    cached = max(0.0, read - new)
    input_usd = spec.price.input_usd_per_million * read / 1e6
    output_usd = spec.price.output_usd_per_million * spec.expected_answer_tokens * steps / 1e6
    # Both are linear in tokens; neither takes less than none.
    saved, extra = reuse_usd(spec, 1_000_000) * cached / 1e6, reread_usd(spec, 1_000_000) * new / 1e6
    return input_usd + output_usd - saved + extra
