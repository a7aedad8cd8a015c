"""The upper bound of an answer's cost: a tokeniser makes at most one token per byte, and tiers stop at their limits."""

from gateway.requests.inference_request import InferenceRequest
from tiers.catalog.pricing import highest_input_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier


def most_usd(request: InferenceRequest, tier: Tier, spec: TierSpec) -> float:
    """Return the most US dollars of one attempt by `tier`."""
    prompt = request.most_prompt_tokens() * len(request.prompts or [None])
    answer = min(spec.answer_limit(request.max_tokens), tier.max_context)
    drawn = request.choices // request.n * (request.best_of or request.n) * spec.samples_per_choice
    return (highest_input_usd(spec.price) * prompt + spec.price.output_usd_per_million * drawn * answer) / 1e6
