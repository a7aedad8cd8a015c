"""The upper bound of an answer's cost: a tokeniser makes at most one token per byte, and tiers stop at their limits,
thoughts that no caller sees included."""

from gateway.requests.inference_request import InferenceRequest
from tiers.catalog.pricing import highest_input_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier


def most_answer_tokens(request: InferenceRequest, tier: Tier, spec: TierSpec) -> int:
    """Return the limit of a choice: of a tier in process its own, of a server elsewhere what it is sent if the request
    is charged to a budget."""
    stated = spec.stated_limit(request.max_tokens)
    if spec.remote is None:
        return tier.max_context if stated is None else min(stated, tier.max_context)
    shortest = min(tier.count_prompt_tokens(one) for one in request.generations(spec))
    return tier.most_answer_tokens(stated, shortest)


def most_usd(request: InferenceRequest, tier: Tier, spec: TierSpec) -> float:
    """Return the most US dollars of one attempt by `tier`."""
    prompt = request.most_prompt_tokens() * len(request.prompts or [None])
    answer = most_answer_tokens(request, tier, spec)
    drawn = request.choices // request.n * (request.best_of or request.n) * spec.samples_per_choice
    return (highest_input_usd(spec.price) * prompt + spec.price.output_usd_per_million * drawn * answer) / 1e6
