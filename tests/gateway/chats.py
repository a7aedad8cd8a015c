"""Chats as the service gets them, without HTTP."""

import time
from typing import Any

from gateway.base.inference_request import InferenceRequest, RoutingOptions
from inference_core.protocol import SamplingParams
from tiers.conversation import Turn
from tiers.tier import GenerationRequest


def chat(text: str = "Say hello.", **fields: Any) -> InferenceRequest:
    """A chat of one user turn, or of the `messages` among `fields`; those are of any of the three structs."""
    of_generation = {name: fields.pop(name) for name in GenerationRequest.__struct_fields__ if name in fields}
    own = InferenceRequest.__struct_fields__
    asked = {name: fields.pop(name) for name in RoutingOptions.__struct_fields__ if name in fields and name not in own}
    usual: dict[str, Any] = {
        "request_id": "chatcmpl-1",
        "sampling": SamplingParams(),
        "arrival": time.monotonic(),
        "messages": [Turn.of("user", text)],
    }
    generation = GenerationRequest(**usual | of_generation)
    return InferenceRequest(
        **{"api": "chat", "requested_model": "auto", "created_at": time.time()} | fields,
        generation=generation,
        options=RoutingOptions(**asked),
    )
