"""Which tiers cannot take a request, whatever it is worth: by the caller's key, its length, or the tier's state."""

import time
from collections.abc import Iterator, Mapping

from classifier.decision import Exclusion
from gateway.requests.inference_request import InferenceRequest
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier

NOT_ALLOWED = "the key may not use it"


def exclusions(
    request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog
) -> tuple[list[Exclusion], list[int]]:
    """Tiers that cannot take the request now, and those among them whose context is too short for it."""
    found: list[Exclusion] = []
    too_long: list[int] = []
    most = request.most_prompt_tokens()
    for number, tier in tiers.items():
        if pinned is not None and number != pinned:
            continue
        if not request.caller.lists(number):
            reason: str | None = NOT_ALLOWED
        elif reason := _context_problem(request, most, tier, catalog.tier(number)):
            too_long.append(number)
        else:
            reason = _load_problem(request, tier)
        if reason:
            found.append(Exclusion(tier=number, reason=reason))
    return found, too_long


def count_in_doubt(request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog) -> None:
    """Count the prompt's tokens for each tier that `exclusions` cannot judge by its bytes, and only once for those that
    read it alike; `exclusions` then takes no time. For a thread: takes as long as the prompt is long."""
    for number, tier in _in_doubt(request, pinned, tiers):
        _longest(request, tier, catalog.tier(number))


def is_in_doubt(request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier]) -> bool:
    """Whether there is anything to count."""
    return next(_in_doubt(request, pinned, tiers), None) is not None


def _in_doubt(request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier]) -> Iterator[tuple[int, Tier]]:
    most = request.most_prompt_tokens()
    for number, tier in tiers.items():
        room = request.least_room(tier.max_context)
        if most + room > tier.max_context and pinned in (None, number) and request.caller.may_use(number):
            yield number, tier


def _context_problem(request: InferenceRequest, most: int, tier: Tier, spec: TierSpec) -> str | None:
    """Why the request, of at most `most` tokens, cannot fit the tier's context; they are counted only in doubt."""
    wanted = request.least_room(tier.max_context)
    if most + wanted <= tier.max_context:
        return None
    prompt = _longest(request, tier, spec)
    if prompt + wanted <= tier.max_context:
        return None
    return f"at least {prompt} prompt tokens and {wanted} answer tokens exceed the context of {tier.max_context} tokens"


def _longest(request: InferenceRequest, tier: Tier, spec: TierSpec) -> int:
    room = tier.max_context - request.least_room(tier.max_context)
    return max(tier.prompt_tokens_up_to(one, room) for one in request.generations(spec))


def _load_problem(request: InferenceRequest, tier: Tier) -> str | None:
    load = tier.load()
    if not load.healthy:
        return "the tier is down"
    if request.deadline_seconds is None:
        return None
    left = request.arrival + request.deadline_seconds - time.monotonic()
    if load.predicted_wait_seconds <= left:
        return None
    return (
        f"its queue takes {load.predicted_wait_seconds * 1e3:.0f} ms, the deadline leaves {max(left, 0) * 1e3:.0f} ms"
    )
