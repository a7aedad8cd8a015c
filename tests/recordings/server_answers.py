"""The bytes of a server's answer, whole or streamed, from what a recording says of it."""

import json
from random import Random
from typing import Any

from tests.tiers.remote.provider_shapes import event_stream_message

Json = dict[str, Any]
EVENTS, LINES, AMAZON = "text/event-stream; charset=utf-8", "application/json", "application/vnd.amazon.eventstream"
DONE = "data: [DONE]\n\n"
USAGE = {
    "chat": {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
    "messages": {"input_tokens": 20, "output_tokens": 8},
    "responses": {"input_tokens": 20, "output_tokens": 8, "total_tokens": 28},
    "gemini": {"promptTokenCount": 20, "candidatesTokenCount": 8, "totalTokenCount": 28},
    "bedrock": {"inputTokens": 20, "outputTokens": 8, "totalTokens": 28},
}
ENDS = {"chat": "stop", "messages": "end_turn", "responses": "completed", "gemini": "STOP", "bedrock": "end_turn"}


def dialect_of(path: str) -> str:
    """Return the dialect of a server's path."""
    for ending, dialect in (("/messages", "messages"), ("/responses", "responses"), ("/embeddings", "embeddings")):
        if path.endswith(ending):
            return dialect
    if "enerateContent" in path:
        return "gemini"
    return "bedrock" if "/converse" in path else "chat"


def is_streamed(path: str, body: Json) -> bool:
    """Return whether a request asks for a stream."""
    return bool(body.get("stream") or ":stream" in path or path.endswith("-stream"))


def content_of(dialect: str, answer: Json, streamed: bool, random: Random) -> tuple[str, bytes]:
    """Return the content type and the body. The texts of a stream are cut into pieces at random places."""
    if "error" in answer:
        return LINES, _json(_error(answer["error"]))
    content = answer.get("stream" if streamed else "whole")
    if content is None and "both" in answer:
        content = [answer["both"]] if streamed else answer["both"]
    if content is None:
        content = _stream(dialect, answer, random) if streamed else _whole(dialect, answer)
    kind = answer.get("type", (AMAZON if dialect == "bedrock" else EVENTS) if streamed else LINES)
    if isinstance(kind, list):
        kind = kind[0 if streamed else 1]
    if isinstance(content, str):
        return kind, content.encode("utf-8", "surrogateescape")
    return kind, _events(dialect, content, answer) if streamed else _json(content)


def _error(error: Any) -> Any:
    """A text is the message of an error as OpenAI writes it."""
    said = {"message": error, "type": "invalid_request_error", "param": None, "code": None}
    return {"error": said} if isinstance(error, str) else error


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _events(dialect: str, events: list[Any], answer: Json) -> bytes:
    """A text among the events stands as it is."""
    if dialect == "bedrock":
        return b"".join(event_stream_message(*event) for event in events)
    parts = []
    for event in events:
        if isinstance(event, str):
            parts.append(event.encode())
        elif dialect == "messages" and "type" in event:
            parts.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _json(event)))
        else:
            parts.append(b"data: %b%b" % (_json(event), b"\r\n\r\n" if dialect == "gemini" else b"\n\n"))
    end = DONE if dialect == "chat" else ""
    return b"".join([*parts, answer.get("end", end).encode()])


def _ends(dialect: str, answer: Json, *, streamed: bool) -> Any:
    """Two are that of a stream and that of a whole answer."""
    ends = answer.get("ends", ENDS[dialect])
    return ends[0 if streamed else 1] if isinstance(ends, list) else ends


def _call(flat: Json) -> Json:
    """A call of a chat, with the fields of its function among its own."""
    function = {name: value for name, value in flat.items() if name in ("name", "arguments")}
    return {name: value for name, value in flat.items() if name not in function} | {"function": function}


def _whole(dialect: str, answer: Json) -> Any:
    says, ends = answer.get("says", {}), _ends(dialect, answer, streamed=False)
    usage = answer.get("usage", USAGE[dialect])
    if dialect == "chat":
        message = (
            {"tool_calls": list(map(_call, answer["calls"]))} if "calls" in answer else answer.get("message", says)
        )
        choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": ends}
        return {"object": "chat.completion", "choices": [choice], "usage": usage} | answer.get("beside", {})
    if dialect == "messages":
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
        return head | {"content": says, "stop_reason": ends, "stop_sequence": None, "usage": usage}
    if dialect == "responses":
        return {"id": "resp_1", "object": "response", "status": ends, "output": says, "usage": usage}
    if dialect == "gemini":
        return _candidate(says, ends) | {"usageMetadata": usage}
    return {"output": {"message": {"role": "assistant", "content": says}}, "stopReason": ends, "usage": usage}


def _stream(dialect: str, answer: Json, random: Random) -> list[Any]:
    says, ends = answer.get("says", {}), _ends(dialect, answer, streamed=True)
    usage = answer.get("usage", USAGE[dialect])
    if dialect == "chat":
        deltas = answer["deltas"] if "deltas" in answer else _deltas(says, random)
        if "pieces" in answer:
            deltas = [{"tool_calls": [_call(piece)]} for piece in answer["pieces"]]
        return [*map(_chunk, deltas), *([] if ends is None else [_chunk({}, ends)]), {"choices": [], "usage": usage}]
    if dialect == "messages":
        events = answer["deltas"] if "deltas" in answer else _block_events(says, random)
        return [_message_start(usage), *events, *_message_end(ends, usage)]
    if dialect == "responses":
        events = answer.get("deltas", [])
        told = {"id": "resp_1", "object": "response", "status": ends, "output": says, "usage": usage}
        return [*events, {"type": f"response.{ends}", "response": told}]
    if dialect == "gemini":
        events = [_candidate([piece]) for part in says for piece in _cut_field(part, "text", random)]
        return [*events, _candidate([], ends) | {"usageMetadata": usage}]
    return [*_bedrock_events(says, random), ["messageStop", {"stopReason": ends}], ["metadata", {"usage": usage}]]


def _chunk(delta: Json, ends: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": ends}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def _candidate(parts: list[Json], ends: str | None = None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    return {"candidates": [candidate if ends is None else candidate | {"finishReason": ends}]}


def pieces(text: str, random: Random) -> list[str]:
    """Return a text in pieces: it whole for some numbers, else of one to five characters."""
    if random.random() < 0.3 or not text:
        return [text]
    parts = []
    while text:
        size = random.randint(1, 5)
        parts.append(text[:size])
        text = text[size:]
    return parts


def _cut_field(part: Json, name: str, random: Random) -> list[Json]:
    text = part.get(name)
    return [part | {name: piece} for piece in pieces(text, random)] if isinstance(text, str) else [part]


def _deltas(message: Json, random: Random) -> list[Json]:
    """The deltas of a message: its fields in their order, a text and arguments in pieces."""
    deltas: list[Json] = []
    for name, value in message.items():
        if name == "tool_calls":
            for index, call in enumerate(value):
                function = call["function"]
                first, *more = pieces(function["arguments"], random)
                deltas.append({name: [call | {"index": index, "function": function | {"arguments": first}}]})
                deltas += [{name: [{"index": index, "function": {"arguments": piece}}]} for piece in more]
        else:
            deltas += _cut_field({name: value}, name, random)
    return deltas


def _message_start(usage: Json) -> Json:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    return {"type": "message_start", "message": head | {"usage": usage | {"output_tokens": 1}}}


def _block_events(blocks: list[Json], random: Random) -> list[Any]:
    events: list[Any] = []
    for index, block in enumerate(blocks):
        empty, deltas = dict(block), []
        for name, kind in (("text", "text"), ("thinking", "thinking"), ("signature", "signature")):
            if isinstance(block.get(name), str):
                empty[name] = ""
                deltas += [{"type": f"{kind}_delta", name: piece} for piece in pieces(block[name], random)]
        if isinstance(block.get("input"), dict):
            empty["input"] = {}
            cut = pieces(json.dumps(block["input"]), random)
            deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in cut]
        for citation in empty.pop("citations", []):
            deltas.append({"type": "citations_delta", "citation": citation})
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    return events


def _message_end(ends: str, usage: Json) -> list[Any]:
    delta = {"stop_reason": ends, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def _bedrock_events(blocks: list[Json], random: Random) -> list[Any]:
    events: list[Any] = [["messageStart", {"role": "assistant"}]]
    for index, block in enumerate(blocks):
        position = {"contentBlockIndex": index}
        if "toolUse" in block:
            use = block["toolUse"]
            start = {name: value for name, value in use.items() if name != "input"}
            events.append(["contentBlockStart", position | {"start": {"toolUse": start}}])
            cut = pieces(json.dumps(use["input"]), random)
            deltas: list[Json] = [{"toolUse": {"input": piece}} for piece in cut]
        elif "reasoningContent" in block:
            said = block["reasoningContent"]["reasoningText"]
            deltas = [{"reasoningContent": {name: said[name]}} for name in ("text", "signature") if name in said]
        else:
            deltas = _cut_field(block, "text", random)
        events += [["contentBlockDelta", position | {"delta": delta}] for delta in deltas]
        events.append(["contentBlockStop", position])
    return events
