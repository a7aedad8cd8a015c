"""Which targets can take a request: a rule names one, or a tier's fallback chain."""

from classifier.decision import RuledBy
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.catalogue.served_catalogue import ServedCatalogue
from gateway.inference.routing.exclusions import context_problem, is_plain, lacks_of, load_problem, needs_of
from tiers.catalog.pricing import request_cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.consent import hidden_from
from tiers.tier import Tier


def target_problem(request: InferenceRequest, name: str, served: ServedCatalogue, rules: RuledBy | None) -> str | None:
    """Return why the target `name` cannot take the request now; None if it can. `rules`: that match the request."""
    spec, target = served.catalog.target(name), served.targets.get(name)
    if spec is None:
        return "the catalogue has it no more"
    if (hidden := hidden_from(spec, request.consent)) is not None:
        return hidden
    least = max(request.min_tier or 1, request.caller.min_tier or 1, 1 if rules is None else rules.floor)
    if spec.number < least:
        return f"it counts as tier {spec.number}, and tier {least} is asked for at least"
    if rules is not None and rules.targets is not None and name not in rules.targets:
        return "the rules do not allow it"
    if target is None:
        # A dry run has no servers to ask.
        return None
    return _problem_now(request, target.active_tier(), spec) or load_problem(request, target.load())


def _problem_now(request: InferenceRequest, tier: Tier, spec: TierSpec) -> str | None:
    if request.generation.adapter:
        return "it has no adapters"
    plain = is_plain(request)
    needs = [] if plain and request.generation.tooling is None else needs_of(request)
    if (needs or not plain) and (lacks := lacks_of(request, needs, tier, spec)):
        return lacks[0].refusal or f"it does not support {lacks[0].noun}"
    most_usd = request.max_cost_usd
    if most_usd is not None and (usd := _predicted_usd(request, tier, spec)) > most_usd:
        return f"predicted cost ${usd:.6f} is above the maximum ${most_usd:.6f}"
    return context_problem(request, request.most_prompt_tokens(), tier, spec)


def _predicted_usd(request: InferenceRequest, tier: Tier, spec: TierSpec) -> float:
    most, prompt_tokens = request.generation.max_tokens, tier.count_prompt_tokens(request.generations(spec)[0])
    answer = spec.expected_answer_tokens if most is None else min(most, spec.expected_answer_tokens)
    return request_cost_usd(spec.price, prompt_tokens, answer)


def tier_problem(request: InferenceRequest, number: int, served: ServedCatalogue, barred: dict[int, str]) -> str | None:
    """Return why tier `number` cannot take over a request now; None if it can. `barred`: by the request's decision."""
    if number in barred:
        return barred[number]
    if (hidden := hidden_from(served.spec(number), request.consent)) is not None:
        return hidden
    return None if served.tiers[number].load().healthy else "the tier is down"
