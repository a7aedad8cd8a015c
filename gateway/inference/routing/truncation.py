"""A conversation too long for every tier loses its oldest turns, not the request: `truncation: auto`, or a knob."""

import msgspec

from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.routing.router import RoutingService
from tiers.tier import ChatMessage


async def truncated(routing: RoutingService, request: InferenceRequest) -> InferenceRequest:
    """Return the request with as many of its newest turns as some tier can read; its system messages at the beginning
    stay. If even the last turn is too long, the request is returned as it is, and is refused as any other."""
    messages = request.generation.messages or []
    if not await routing.is_too_long(request):
        return request
    kept = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
    starts = [n for n in range(kept + 1, len(messages)) if messages[n].role != "tool"]
    # The longest rest that fits: the first start that does, as shorter rests fit too.
    low, high, best = 0, len(starts), None
    while low < high:
        middle = (low + high) // 2
        shorter = _from(request, messages[:kept], messages[starts[middle] :])
        if await routing.is_too_long(shorter):
            low = middle + 1
        else:
            high, best = middle, shorter
    return best or request


def _from(request: InferenceRequest, before: list[ChatMessage], rest: list[ChatMessage]) -> InferenceRequest:
    messages = [*before, *rest]
    dropped = len(request.generation.messages or []) - len(messages)
    shorter = request.with_generation(messages=messages, prompts_read={})
    return msgspec.structs.replace(shorter, dropped_turns=dropped)
