"""What can take a request in place of a tier: a target that a rule names, or an entry of a fallback chain."""

from collections.abc import Mapping

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
    is_allowed = rules is None or rules.targets is None or name in rules.targets
    return _problem_of(request, spec, target, 1 if rules is None else rules.floor, is_allowed=is_allowed)


def named_problem(
    request: InferenceRequest,
    name: str,
    named: TierSpec,
    served: ServedCatalogue,
    rules: RuledBy | None,
    ruled_out: Mapping[int, str],
) -> str | None:
    """Return why the tier or target `name` cannot stand in now for `named`, the entry that the request names; None if
    it can. `rules`: that match the request; `ruled_out`: the tiers that they bar."""
    if (number := served.catalog.numbered(name)) is None:
        return target_problem(request, name, served, rules)
    if not named.fallback_named:
        return f"the request is pinned to tier {named.number}"
    if (barred := ruled_out.get(number)) is not None:
        return barred
    return _problem_of(request, served.spec(number), served.tiers.get(number), 1 if rules is None else rules.floor)


def _problem_of(
    request: InferenceRequest, spec: TierSpec, tier: Tier | None, floor: int, *, is_allowed: bool = True
) -> str | None:
    if (hidden := hidden_from(spec, request.consent)) is not None:
        return hidden
    least = max(request.min_tier or 1, request.caller.min_tier or 1, floor)
    if spec.number < least:
        return f"it counts as tier {spec.number}, and tier {least} is asked for at least"
    if not is_allowed:
        return "the rules do not allow it"
    if tier is None:
        # A dry run has no servers to ask.
        return None
    return _problem_now(request, tier.active_tier(), spec) or load_problem(request, tier.load())


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
