"""The pieces of an answer on each wire, as bytes: what a hostile upstream floods a gateway with."""

import json
from dataclasses import dataclass
from typing import Any

from tests.tiers.remote.provider_shapes import EVENT_STREAM, event_stream_message

WIRES = ("openai", "anthropic", "gemini", "bedrock", "triton")
"""A child engine and a vLLM speak the first."""
Payload = dict[str, Any]


@dataclass(frozen=True)
class HostileWire:
    """One of `WIRES`. Every method returns bytes of a stream, but `whole`, which returns a whole answer."""

    name: str

    @property
    def content_type(self) -> str:
        """Of its streams."""
        return EVENT_STREAM if self.name == "bedrock" else "text/event-stream"

    def begin(self) -> bytes:
        """What precedes the first text."""
        if self.name == "anthropic":
            usage = {"input_tokens": 3, "output_tokens": 1}
            start = {"type": "message_start", "message": {"content": [], "usage": usage}}
            block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            return self._events(start, block)
        return event_stream_message("messageStart", {"role": "assistant"}) if self.name == "bedrock" else b""

    def text(self, text: str) -> bytes:
        """A piece of the answer."""
        return self._piece("text", text)

    def reasoning(self, text: str) -> bytes:
        """A piece of the thoughts; Triton has none."""
        return self._piece("text" if self.name == "triton" else "reasoning", text)

    def call(self, number: int, arguments: str = "{}") -> bytes:
        """A whole tool call; of Triton, which has none, an empty event."""
        match self.name:
            case "openai":
                function = {"name": "look", "arguments": arguments}
                call = {"index": number, "id": f"call_{number}", "type": "function", "function": function}
                return self._events({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
            case "anthropic":
                block = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {}}
                delta = {"type": "input_json_delta", "partial_json": arguments}
                return self._events(
                    {"type": "content_block_start", "index": number + 1, "content_block": block},
                    {"type": "content_block_delta", "index": number + 1, "delta": delta},
                    {"type": "content_block_stop", "index": number + 1},
                )
            case "gemini":
                return self._parts({"functionCall": {"name": "look", "args": {"a": arguments}}})
            case "bedrock":
                start = {"toolUse": {"toolUseId": f"call_{number}", "name": "look"}}
                place = {"contentBlockIndex": number + 1}
                return b"".join(
                    [
                        event_stream_message("contentBlockStart", place | {"start": start}),
                        event_stream_message("contentBlockDelta", place | {"delta": {"toolUse": {"input": arguments}}}),
                        event_stream_message("contentBlockStop", place),
                    ]
                )
            case _:
                return self._events({"model_name": "m"})

    def logprobs(self, tokens: int) -> bytes:
        """Log-probabilities of so many tokens; of the other wires, which tell none, unknown fields."""
        top = [{"token": "b", "logprob": -2.0, "bytes": [98]}] * 20
        token = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": top}
        if self.name == "openai":
            delta = {"content": "a"}
            return self._events({"choices": [{"index": 0, "delta": delta, "logprobs": {"content": [token] * tokens}}]})
        return self._piece("text", "a", logprobs=[token] * tokens)

    def choices(self, count: int) -> bytes:
        """Pieces of so many choices."""
        if self.name == "openai":
            return self._events({"choices": [{"index": i, "delta": {"content": "a"}} for i in range(count)]})
        if self.name == "gemini":
            return self._events({"candidates": [{"index": i, "content": {"parts": []}} for i in range(count)]})
        return b"".join(self._piece("text", "a") for _ in range(count))

    def end(self) -> bytes:
        """The end of an answer."""
        match self.name:
            case "openai":
                return self._events({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + (
                    b"data: [DONE]\n\n"
                )
            case "anthropic":
                delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
                return self._events(delta, {"type": "message_stop"})
            case "gemini":
                return self._events({"candidates": [{"finishReason": "STOP", "content": {"parts": []}}]})
            case "bedrock":
                return event_stream_message("messageStop", {"stopReason": "end_turn"})
            case _:
                return self._events({"text_output": "", "finish_reason": "stop"})

    def whole(self, text: str) -> bytes:
        """A whole answer with this text."""
        message: Payload = {"role": "assistant", "content": text}
        content = [{"text": text}]
        shapes: dict[str, Payload] = {
            "openai": {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]},
            "anthropic": {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"},
            "gemini": {"candidates": [{"content": {"parts": content}, "finishReason": "STOP"}]},
            "bedrock": {"output": {"message": {"content": content}}, "stopReason": "end_turn"},
            "triton": {"text_output": text, "finish_reason": "stop"},
        }
        return json.dumps(shapes[self.name]).encode()

    def whole_around(self) -> tuple[bytes, bytes]:
        """What precedes and follows the text of a whole answer of any length."""
        before, _, after = self.whole("<>").partition(b"<>")
        return before, after

    def _piece(self, kind: str, text: str, **more: Any) -> bytes:
        is_text = kind == "text"
        match self.name:
            case "openai":
                delta = {"content" if is_text else "reasoning_content": text}
                return self._events({"choices": [{"index": 0, "delta": delta}]} | more)
            case "anthropic":
                part = {"type": "text_delta", "text": text}
                delta = part if is_text else {"type": "thinking_delta", "thinking": text}
                return self._events({"type": "content_block_delta", "index": 0, "delta": delta} | more)
            case "gemini":
                return self._parts({"text": text} | ({} if is_text else {"thought": True}), **more)
            case "bedrock":
                delta = {"text": text} if is_text else {"reasoningContent": {"text": text}}
                return event_stream_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta} | more)
            case _:
                return self._events({"text_output": text} | more)

    def _parts(self, *parts: Payload, **more: Any) -> bytes:
        return self._events({"candidates": [{"content": {"parts": list(parts)}, "index": 0}]} | more)

    def _events(self, *payloads: Payload) -> bytes:
        return b"".join(b"data: %b\n\n" % json.dumps(payload).encode() for payload in payloads)
