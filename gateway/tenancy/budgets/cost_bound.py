"""The upper bound of an answer's cost: a tokeniser makes at most one token per byte, and tiers stop at their limits,
thoughts that no caller sees included."""

from typing import NamedTuple

import msgspec

from gateway.base.requests.inference_request import InferenceRequest
from gateway.tenancy.budgets.periods import MICRO, microusd_at_least
from tiers.catalog.pricing import most_cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier, Usage

# An image, audio or a file may have so many times the estimated tokens, as a text may.
_MEDIA_FACTOR = 4


class MostTokens(NamedTuple):
    """The most tokens of one attempt, over all prompts and choices: what is held for it, and the most of its bill.
    `choice`: the limit of one choice, with which it is asked for."""

    prompt: int
    answer: int
    choice: int

    def bound(self, usage: Usage) -> Usage:
        """Return `usage` with no more tokens than these."""
        if usage.prompt_tokens <= self.prompt and usage.completion_tokens <= self.answer:
            return usage
        prompt = min(usage.prompt_tokens, self.prompt)
        cached = min(usage.cached_tokens, prompt)
        written = min(usage.cache_write_tokens, prompt - cached)
        return msgspec.structs.replace(
            usage,
            prompt_tokens=prompt,
            completion_tokens=min(usage.completion_tokens, self.answer),
            cached_tokens=cached,
            cache_write_tokens=written,
            cache_write_1h_tokens=min(usage.cache_write_1h_tokens, written),
            reasoning_tokens=min(usage.reasoning_tokens, self.answer),
        )


def most_tokens(request: InferenceRequest, tier: Tier, spec: TierSpec) -> MostTokens:
    """Return the most tokens of one attempt by `tier`."""
    media = sum(message.media_tokens for message in request.generation.messages or () if message.parts)
    prompt = (request.most_prompt_tokens() + (_MEDIA_FACTOR - 1) * media) * len(request.prompts or [None])
    choice = _most_of_a_choice(request, tier, spec)
    drawn = len(request.prompts or [None]) * request.drawn * spec.samples_per_choice
    return MostTokens(prompt, drawn * choice, choice)


def _most_of_a_choice(request: InferenceRequest, tier: Tier, spec: TierSpec) -> int:
    """A tier in process has its own limit, a server elsewhere the one that it is sent."""
    stated = spec.stated_limit(request.generation.max_tokens)
    if spec.remote is None:
        return tier.max_context if stated is None else min(stated, tier.max_context)
    shortest = min(tier.count_prompt_tokens(one) for one in request.generations(spec))
    return tier.most_answer_tokens(stated, shortest)


def smaller_answer(request: InferenceRequest, tier: Tier, spec: TierSpec, left_usd: float) -> str:
    """Return which `max_tokens` this many US dollars cover, in a sentence; "" where they cover no answer."""
    most = most_tokens(request, tier, spec)
    prompt_usd = most_cost_usd(spec.price, most.prompt, 0)
    answers = most.answer // max(most.choice, 1)
    per_token = (most_cost_usd(spec.price, most.prompt, answers) - prompt_usd) if answers else 0.0
    number = int((left_usd - prompt_usd) / per_token) if per_token > 0 else 0
    if number < 1:
        return ""
    generation = msgspec.structs.replace(request.generation, max_tokens=number)
    smaller = msgspec.structs.replace(request, generation=generation, usual_max_tokens=False)
    # A model that thinks may write more than it is asked for, and a long prompt may have a dearer price.
    if microusd_at_least(most_usd(smaller, tier, spec)) > round(left_usd * MICRO):
        return ""
    return f"A max_tokens of at most {number} would pass."


def most_usd(request: InferenceRequest, tier: Tier, spec: TierSpec) -> float:
    """Return the most US dollars of one attempt by `tier`."""
    most = most_tokens(request, tier, spec)
    return most_cost_usd(spec.price, most.prompt, most.answer)
