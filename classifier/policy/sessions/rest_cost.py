"""What a turn of a session is expected to cost on a tier, with the caches of providers: its first step reads what its
tier's cache holds and writes the rest; each later step reads what the step before wrote."""

from classifier.policy.sessions.session_view import SessionTier, Warmth


def warm_tokens(tier: SessionTier, warmth: Warmth, prompt_tokens: int) -> int:
    """Return the tokens of a prompt that `tier` reads from its cache."""
    if warmth.age_seconds > tier.cache_seconds or prompt_tokens < tier.min_cached_tokens:
        return 0
    return min(warmth.tokens, prompt_tokens)


def turn_usd(tier: SessionTier, warm: float, prompt_tokens: float, growth: float, output: float, steps: float) -> float:
    """Return the expected US dollars of a turn on `tier` whose first step has `prompt_tokens`, `warm` of them cached,
    and each later one `growth` more. `steps`: expected, 1 at least; their number is spread as a geometric one."""
    later = steps - 1.0
    total = steps * prompt_tokens + growth * later * steps
    if tier.cache_seconds <= 0 or prompt_tokens + growth * later < tier.min_cached_tokens:
        paid = tier.input_usd * total
    else:
        written = prompt_tokens - min(warm, prompt_tokens) + growth * later
        paid = tier.write_usd * written + tier.read_usd * (total - written)
    return (paid + tier.output_usd * tier.output_ratio * output * steps) / 1e6
