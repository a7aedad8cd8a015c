"""Which tiers cannot take a request, whatever it is worth: by the caller's key, its length, or the tier's state."""

import time
from collections.abc import Iterator, Mapping

import msgspec

from classifier.decision import Exclusion
from gateway.requests.inference_request import InferenceRequest
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Tier

NOT_ALLOWED = "the key may not use it"
# No tokeniser makes more tokens than bytes; a chat template adds less than this per turn and at its ends.
TEMPLATE_TOKENS_PER_TURN = 16
TEMPLATE_TOKENS = 64
# Our own instructions, and those of the templates that have any, are shorter than this.
TEMPLATE_TOKENS_FOR_TOOLS = 2048
# Where an ask keeps the bound, since megabytes take milliseconds.
_MOST = "most tokens"


def exclusions(
    request: InferenceRequest, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog
) -> tuple[list[Exclusion], list[int]]:
    """Tiers that cannot take the request now, and those among them whose context is too short for it."""
    found: list[Exclusion] = []
    too_long: list[int] = []
    most = most_tokens(request)
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
    most = most_tokens(request) + (request.max_tokens or 1)
    for number, tier in tiers.items():
        if most > tier.max_context and pinned in (None, number) and request.caller.may_use(number):
            yield number, tier


def most_tokens(request: InferenceRequest) -> int:
    """A bound on the prompt's tokens from its bytes."""
    if (most := request.prompts_read.get(_MOST)) is None:
        most = request.prompts_read[_MOST] = _most_tokens(request)
    return int(most)


def _most_tokens(request: InferenceRequest) -> int:
    if request.messages is not None:
        text = sum(num_bytes(message.recorded_content()) for message in request.messages)
        if request.tooling is not None:
            text += TEMPLATE_TOKENS_FOR_TOOLS + sum(
                len(msgspec.json.encode(t.definition())) for t in request.tooling.tools
            )
        return text + TEMPLATE_TOKENS_PER_TURN * len(request.messages) + TEMPLATE_TOKENS
    longest = max((len(p) if isinstance(p, list) else num_bytes(p) for p in request.prompts or ()), default=0)
    return longest + TEMPLATE_TOKENS


def num_bytes(text: str) -> int:
    """Length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _context_problem(request: InferenceRequest, most: int, tier: Tier, spec: TierSpec) -> str | None:
    """Why the request, of at most `most` tokens, cannot fit the tier's context; they are counted only in doubt."""
    wanted = request.max_tokens or 1
    if most + wanted <= tier.max_context:
        return None
    prompt = _longest(request, tier, spec)
    if prompt + wanted <= tier.max_context:
        return None
    return f"at least {prompt} prompt tokens and {wanted} answer tokens exceed the context of {tier.max_context} tokens"


def _longest(request: InferenceRequest, tier: Tier, spec: TierSpec) -> int:
    room = tier.max_context - (request.max_tokens or 1)
    return max(tier.prompt_tokens_up_to(request, room) for request in request.generations(spec))


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
