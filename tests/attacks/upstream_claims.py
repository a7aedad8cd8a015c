"""Answers of a server that lies: counts of tokens, ids and names that would become headers, and queues of any size."""

import json
from random import Random
from typing import Any

from tests.attacks.hostile_upstream import Asked, upstream_answer
from tests.tiers.remote.provider_shapes import event_stream_message

TEXT = "word " * 8
COUNTS = (0, -1, 1, 2**31, 2**31 - 1, 2**53, 2**63 - 1, 10**30, -(2**63))
WORDS = (
    "a\r\nx-injected: 1", "a\nb", "\x00", "\x1b[31mred", "\u2028", "m" * 60_000, "", "../../etc/passwd", "\ud800",
    "{{7*7}}", '"} 1\naio_forged 1\n', "\x7f" * 300,
)  # fmt: skip
NUMBERS = ("1e308", "-1e308", "1e400", "NaN", "+Inf", "-1", "9" * 400, "1e", "0x10", "1_000", "5e-324", "1e16")


@upstream_answer
async def claims(asked: Asked) -> None:
    """An ordinary text, whose counts cannot be."""
    prompt, completion, cached, written = (asked.draw.choice(COUNTS) for _ in range(4))
    if not asked.streamed:
        whole = json.loads(asked.wire.whole(TEXT)) | whole_usage(asked.wire.name, prompt, completion, cached, written)
        await _whole(asked, whole)
        return
    await asked.begin()
    early = asked.draw.random() < 0.5
    counts = stream_usage(asked.wire.name, prompt, completion, cached, written)
    text = asked.wire.text(TEXT)
    await asked.send(counts + text if early else text)
    end, done = asked.wire.end(), b"data: [DONE]\n\n"
    await asked.send(end if early else end.removesuffix(done) + counts + (done if end.endswith(done) else b""))


@upstream_answer
async def words(asked: Asked) -> None:
    """Ids, finish reasons, fingerprints, names and headers that are hostile."""
    draw = asked.draw
    odd = [draw.choice(WORDS) for _ in range(4)]
    named = json.loads(asked.wire.whole(TEXT)) | {
        "id": odd[0], "model": odd[1], "system_fingerprint": odd[2], "modelVersion": odd[1], "responseId": odd[0],
    }  # fmt: skip
    where: Any = named
    for key in ("choices", "candidates"):
        if key in named:
            where = named[key][0]
    for key in ("finish_reason", "finishReason", "stop_reason", "stopReason", "matched_stop", "stop_sequence"):
        if key in where or draw.random() < 0.3:
            where[key] = odd[3]
    lines = [b"x-request-id: " + b"r" * 5000, b"openai-processing-ms: NaN", b"retry-after: 1e999"]
    if draw.random() < 0.4:
        # Few that make the gateway pass the tier over for a while.
        status = draw.choice([400] * 12 + [404, 429, 503])
        error = {"message": odd[0], "type": odd[1], "code": odd[2], "param": odd[3]}
        body = json.dumps({"error": error, "message": odd[0]}).encode()
        await asked.head(*lines, b"content-length: %d" % len(body), status=status, kind="application/json")
        await asked.send(body)
    elif asked.streamed:
        await asked.head(*lines)
        await asked.send(asked.wire.begin() + asked.wire.text(TEXT))
        if asked.wire.name == "openai":
            await asked.send(b"data: %b\n\n" % json.dumps(_as_chunk(named)).encode())
        await asked.send(asked.wire.end())
    else:
        await _whole(asked, named, *lines)


@upstream_answer
async def tool_names(asked: Asked) -> None:
    """Calls of tools by hostile names and ids."""
    name, call_id = asked.draw.choice(WORDS), asked.draw.choice(WORDS)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    content: dict[str, Any] = {
        "openai": {
            "choices": [{"index": 0, "message": {"content": "", "tool_calls": [call]}, "finish_reason": "tool_calls"}]
        },
        "anthropic": {
            "content": [{"type": "tool_use", "id": call_id, "name": name, "input": {}}], "stop_reason": "tool_use",
        },
        "gemini": {
            "candidates": [
                {"content": {"parts": [{"functionCall": {"name": name, "id": call_id}}]}, "finishReason": "STOP"}
            ]
        },
        "bedrock": {
            "output": {"message": {"content": [{"toolUse": {"toolUseId": call_id, "name": name, "input": {}}}]}},
            "stopReason": "tool_use",
        },
    }  # fmt: skip
    if asked.streamed or asked.wire.name not in content:
        await asked.begin() if asked.streamed else await _whole(asked, json.loads(asked.wire.whole(TEXT)))
        if asked.streamed:
            await asked.send(asked.wire.call(0) + asked.wire.end())
    else:
        await _whole(asked, content[asked.wire.name])


@upstream_answer
async def model_names(asked: Asked) -> None:
    """A list of models by hostile names, with contexts that cannot be."""
    draw = asked.draw
    listed = [
        {"id": draw.choice(WORDS), "max_model_len": draw.choice([1, 10**30, -5, 2**63])}
        for _ in range(draw.randint(1, 3))
    ]
    await _page(asked, json.dumps({"object": "list", "data": listed}).encode(), "application/json")


@upstream_answer
async def queue_metrics(asked: Asked) -> None:
    """Gauges that are no numbers of requests."""
    draw: Random = asked.draw
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total")
    names += ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    text = "".join(f"{name} {draw.choice(NUMBERS) if draw.random() < 0.7 else 3}\n" for name in names)
    await _page(asked, text.encode(), "text/plain")


def whole_usage(wire: str, prompt: int, completion: int, cached: int, written: int) -> dict[str, Any]:
    """The fields of a whole answer with these counts."""
    match wire:
        case "openai":
            details = {"cached_tokens": cached, "cache_write_tokens": written}
            counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
            return {"usage": counts}
        case "anthropic":
            counts = {"input_tokens": prompt, "output_tokens": completion}
            return {"usage": counts | {"cache_read_input_tokens": cached, "cache_creation_input_tokens": written}}
        case "gemini":
            counts = {"promptTokenCount": prompt, "candidatesTokenCount": completion}
            return {"usageMetadata": counts | {"cachedContentTokenCount": cached, "thoughtsTokenCount": written}}
        case "bedrock":
            counts = {"inputTokens": prompt, "outputTokens": completion}
            return {"usage": counts | {"cacheReadInputTokens": cached, "cacheWriteInputTokens": written}}
        case _:
            return {"num_input_tokens": prompt, "num_output_tokens": completion}


def stream_usage(wire: str, prompt: int, completion: int, cached: int, written: int) -> bytes:
    """An event of a stream with these counts."""
    fields = whole_usage(wire, prompt, completion, cached, written)
    if wire == "bedrock":
        return event_stream_message("metadata", fields)
    if wire == "openai":
        fields |= {"choices": []}
    if wire == "anthropic":
        fields |= {"type": "message_delta", "delta": {}}
    return b"data: %b\n\n" % json.dumps(fields).encode()


def _as_chunk(whole: dict[str, Any]) -> dict[str, Any]:
    (choice,) = whole["choices"]
    return whole | {"choices": [choice | {"delta": choice.pop("message")}]}


async def _whole(asked: Asked, body: dict[str, Any], *lines: bytes) -> None:
    data = json.dumps(body).encode()
    await asked.head(*lines, b"content-length: %d" % len(data))
    await asked.send(data)


async def _page(asked: Asked, body: bytes, kind: str) -> None:
    await asked.head(b"content-length: %d" % len(body), kind=kind)
    await asked.send(body)
