"""The streams and whole answers of Anthropic, Gemini and Bedrock, as their servers write them."""

import json
import zlib
from collections.abc import Iterable
from typing import Any

Payload = dict[str, Any]


def anthropic_stream(events: Iterable[Payload]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def anthropic_start(**usage: int) -> Payload:
    counts = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 1,
        "service_tier": "standard",
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    end = {"stop_reason": None, "stop_sequence": None, "usage": counts | usage}
    return {"type": "message_start", "message": message | end}


def anthropic_block(index: int, block: Payload, *deltas: Payload) -> list[Payload]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def anthropic_text(index: int, *texts: str) -> list[Payload]:
    return anthropic_block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": t} for t in texts))


def anthropic_end(reason: str = "end_turn", output_tokens: int = 15) -> list[Payload]:
    return [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": output_tokens},
        },
        {"type": "message_stop"},
    ]


THINKING_AND_TOOLS: list[Payload] = [
    anthropic_start(input_tokens=10, cache_read_input_tokens=100, cache_creation_input_tokens=40),
    {"type": "ping"},
    *anthropic_block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "signature_delta", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"},
    ),
    *anthropic_block(1, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4a"}),
    *anthropic_text(2, "I look ", "it up: größe 🙂"),
    *anthropic_block(
        3,
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}},
        {"type": "input_json_delta", "partial_json": ""},
        {"type": "input_json_delta", "partial_json": '{"city": "S'},
        {"type": "input_json_delta", "partial_json": 'an Jose"}'},
    ),
    *anthropic_block(4, {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}),
    *anthropic_end("tool_use", 42),
]

WHOLE_MESSAGE: Payload = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "Let me see.", "signature": "EqQB"},
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "text", "text": "I look it up: größe 🙂"},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "San Jose"}},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 40,
        "output_tokens": 42,
    },
}


def gemini_stream(events: Iterable[Payload]) -> bytes:
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(e).encode() for e in events)


def gemini_event(*parts: Payload, finish: str | None = None, **usage: int) -> Payload:
    candidate: Payload = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": {"promptTokenCount": 150, "totalTokenCount": 150} | usage,
        "modelVersion": "gemini-2.5-flash",
        "responseId": "r1",
    }


def event_stream_message(kind: str, payload: Payload, message_type: str = "event") -> bytes:
    """One message of Amazon's event stream."""
    name = ":event-type" if message_type == "event" else ":exception-type"
    named = {name: kind, ":content-type": "application/json", ":message-type": message_type}
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
        for key, value in named.items()
    )
    body = json.dumps(payload).encode()
    prelude = (16 + len(headers) + len(body)).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    prelude += zlib.crc32(prelude).to_bytes(4, "big")
    return (message := prelude + headers + body) + zlib.crc32(message).to_bytes(4, "big")


def bedrock_stream(events: Iterable[tuple[str, Payload]]) -> bytes:
    return b"".join(event_stream_message(kind, payload | {"p": "abcdefgh"}) for kind, payload in events)


def bedrock_text(*texts: str) -> list[tuple[str, Payload]]:
    return [
        ("messageStart", {"role": "assistant"}),
        *(("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}}) for text in texts),
        ("contentBlockStop", {"contentBlockIndex": 0}),
    ]


def bedrock_end(reason: str = "end_turn", **usage: int) -> list[tuple[str, Payload]]:
    counts = {"inputTokens": 10, "outputTokens": 15, "totalTokens": 25} | usage
    return [
        ("messageStop", {"stopReason": reason}),
        ("metadata", {"usage": counts, "metrics": {"latencyMs": 1340}}),
    ]


EVENT_STREAM = "application/vnd.amazon.eventstream"
