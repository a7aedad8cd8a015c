"""What the classifier reads of a request."""

from classifier.features.routing_input import RoutingInput, routing_input
from gateway.base.requests.inference_request import InferenceRequest


def routing_input_of(request: InferenceRequest, previous_tiers: tuple[int, ...] = ()) -> RoutingInput:
    """The classifier's input for a request; of several prompts, the longest."""
    asked = request.generation
    if asked.messages is not None:
        messages, media_tokens = [], 0
        for message in asked.messages:
            messages.append({"role": message.role, "content": message.content})
            if message.parts:
                media_tokens += message.media_tokens
        return routing_input(
            messages,
            key=request.key_id or "",
            tenant=request.caller.tenant,
            max_tokens=asked.max_tokens,
            has_tools=asked.tooling is not None,
            has_schema=asked.sampling.grammar is not None,
            plan_mode=request.client is not None and request.client.plan_mode,
            previous_tiers=previous_tiers,
            media_tokens=media_tokens,
        )
    longest = max(request.prompts or [""], key=len)
    if isinstance(longest, str):
        return routing_input(
            [{"role": "user", "content": longest}],
            key=request.key_id or "",
            tenant=request.caller.tenant,
            max_tokens=asked.max_tokens,
        )
    return RoutingInput(turn="", turn_chars=0, prompt_tokens=len(longest), max_tokens=asked.max_tokens)
