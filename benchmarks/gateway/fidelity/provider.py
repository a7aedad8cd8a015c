"""A server with the APIs of all wires that records what it gets, and answers as an agent's model does: thoughts that
it seals, a text, two calls, then a closing text."""

import asyncio
import json
import random
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gateway.fidelity.lenient import lenient_answer
from benchmarks.gateway.fidelity.wires import BY_NAME, OLLAMA_PORT, Wire
from benchmarks.gateway.fidelity.wires import service_account as account_of

Body = dict[str, Any]
Calls = list[tuple[str, str, Body]]
THOUGHT, TEXT, DONE = "Two cities, two calls.", "I look both up: größe 🙂", "Both are done."
CALLS: tuple[tuple[str, str, Body], ...] = (
    ("toolu_a", "weather", {"city": "San José", "days": [1, 2.5], "deep": {"a": None}}),
    ("toolu_b", "clock", {}),
)
BUSY, DROP, THINK, LENIENT = "answer busy", "answer half", "think first", "in a lenient form"
PROMPT, CACHED, WRITTEN, OUTPUT = 90, 40, 20, 25
RETRY_AFTER = 1
# A last turn with one of these has the results of calls.
_RESULTS = ("tool_result", "toolResult", '"tool"', "_output", "functionResponse", "function_response")


@dataclass
class Provider:
    """`calls`: the path and body of each request for an answer. `sealed`: how many thoughts were sealed, so that no two
    seals are alike. `state`: what the last answer's server needs back. `origin`, `ollama`: its addresses without a
    path, the second one at Ollama's port."""

    origin: str = ""
    ollama: str = ""
    state: list[str] = field(default_factory=list)
    calls: list[tuple[str, Body]] = field(default_factory=list)
    sealed: int = 0

    def made_calls(self) -> Calls:
        """The calls of the last answer, whose ids no other one has."""
        form = wire_of(self.calls[-1][0]).ids
        number = len(self.calls)
        return [
            (form.format(name=call_id, short=call_id[-1], number=number), name, arguments)
            for call_id, name, arguments in CALLS
        ]

    def seal(self) -> str:
        """A new seal, with characters that a careless copy changes."""
        self.sealed += 1
        self.state.append(f"EqQB/+{self.sealed:06d}==")
        return self.state[-1]

    def service_account(self) -> str:
        """The file of a Google service account whose tokens this server gives."""
        return account_of(f"{self.origin}/token")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((line[15:] for line in head.lower().split("\r\n") if line.startswith("content-length:")), "0")
            raw = await reader.readexactly(int(length))
            method, path = head.split(" ")[:2]
            if path == "/token":
                token = {"access_token": "unused", "expires_in": 3600, "token_type": "Bearer"}
                writer.write(_head(200, "application/json") + json.dumps(token).encode())
            elif method == "GET":
                writer.write(_head(200, "application/json") + json.dumps({"object": "list", "data": []}).encode())
            else:
                self._answer(path, json.loads(raw), raw.decode(), writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str, body: Body, raw: str, writer: asyncio.StreamWriter) -> None:
        self.calls.append((path, body))
        last = json.dumps(body.get("messages") or body.get("input") or body.get("contents"), ensure_ascii=False)
        if BUSY in raw:
            error = {"type": "error", "error": {"type": "overloaded_error", "message": "come back later"}}
            writer.write(_head(429, "application/json", f"retry-after: {RETRY_AFTER}\r\n") + json.dumps(error).encode())
            return
        streamed = bool(body.get("stream")) or "streamGenerateContent" in path or path.endswith("converse-stream")
        answered = any(mark in last for mark in _RESULTS)
        made = self.made_calls() if "weather" in raw and not answered else []
        self.state = []
        dialect, wire, thinks = dialect_of(path), wire_of(path), THINK in raw
        makers = {
            "messages": self._messages, "responses": self._responses, "gemini": self._gemini, "bedrock": self._bedrock,
        }  # fmt: skip
        whole, events = makers[dialect](made, thinks) if dialect in makers else self._chat(made, thinks, wire)
        written: list[tuple[str, Any]] = list(events)
        if LENIENT in raw:
            whole, written = lenient_answer(dialect, whole, written)
        if not streamed:
            answer = json.dumps(whole, ensure_ascii=False).encode()
            writer.write(_head(200, "application/json") + (answer[: len(answer) // 2] if DROP in raw else answer))
            return
        if DROP in raw:
            written = written[: len(written) // 3]
        if dialect == "bedrock":
            writer.write(_head(200, "application/vnd.amazon.eventstream"))
            writer.writelines(_amazon_event(name, event) for name, event in written)
            return
        writer.write(_head(200, "text/event-stream"))
        for name, event in written:
            data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            writer.write((f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode())

    def _messages(self, made: Calls, thinks: bool) -> tuple[Body, Iterator[tuple[str, Any]]]:
        blocks: list[Body] = []
        if thinks:
            blocks.append({"type": "thinking", "thinking": THOUGHT, "signature": self.seal()})
            blocks.append({"type": "redacted_thinking", "data": self.seal()})
        blocks.append({"type": "text", "text": TEXT if made else DONE})
        blocks += [{"type": "tool_use", "id": i, "name": name, "input": arguments} for i, name, arguments in made]
        usage = {
            "input_tokens": PROMPT - CACHED - WRITTEN,
            "cache_read_input_tokens": CACHED,
            "cache_creation_input_tokens": WRITTEN,
            "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 15},
            "output_tokens": OUTPUT,
        }
        end = {"stop_reason": "tool_use" if made else "end_turn", "stop_sequence": None}
        whole = {
            "id": "msg_up",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": blocks,
            **end,
            "usage": usage,
        }

        def events() -> Iterator[tuple[str, Any]]:
            start = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
            yield "message_start", {"type": "message_start", "message": start}
            for index, block in enumerate(blocks):
                yield from _block_events(index, block)
            yield "message_delta", {"type": "message_delta", "delta": end, "usage": {"output_tokens": OUTPUT}}
            yield "message_stop", {"type": "message_stop"}

        return whole, events()

    def _responses(self, made: Calls, thinks: bool) -> tuple[Body, Iterator[tuple[str, Any]]]:
        items: list[Body] = []
        if thinks:
            summary = [{"type": "summary_text", "text": THOUGHT}]
            items.append({"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": self.seal()})
        part = {"type": "output_text", "text": TEXT if made else DONE, "annotations": []}
        items.append({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]})
        for number, (call_id, name, arguments) in enumerate(made):
            call = {"call_id": call_id, "name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
            items.append({"id": f"fc_{number}", "type": "function_call", "status": "completed", **call})
        usage = {
            "input_tokens": PROMPT,
            "input_tokens_details": {"cached_tokens": CACHED},
            "output_tokens": OUTPUT,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": PROMPT + OUTPUT,
        }
        whole: Body = {"id": "resp_up", "object": "response", "status": "completed", "output": items, "usage": usage}
        whole |= {"created_at": 1, "model": "model", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}

        def events() -> Iterator[tuple[str, Any]]:
            listed: list[Body] = [
                {"type": "response.created", "response": whole | {"output": [], "status": "in_progress"}}
            ]
            for index, item in enumerate(items):
                position = {"output_index": index, "item_id": item["id"]}
                listed.append({"type": "response.output_item.added", "output_index": index, "item": item})
                if item["type"] == "reasoning":
                    listed.append(
                        {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": THOUGHT}
                        | position
                    )
                elif item["type"] == "message":
                    text = item["content"][0]["text"]
                    listed.append({"type": "response.output_text.delta", "content_index": 0, "delta": text} | position)
                else:
                    listed.append(
                        {"type": "response.function_call_arguments.delta", "delta": item["arguments"]} | position
                    )
                listed.append({"type": "response.output_item.done", "output_index": index, "item": item})
            listed.append({"type": "response.completed", "response": whole})
            for number, event in enumerate(listed):
                yield event["type"], event | {"sequence_number": number}

        return whole, events()

    def _gemini(self, made: Calls, thinks: bool) -> tuple[Body, Iterator[tuple[str, Any]]]:
        parts: list[Body] = [{"text": THOUGHT, "thought": True}] if thinks else []
        parts.append({"text": TEXT if made else DONE})
        for index, (_, name, arguments) in enumerate(made):
            call: Body = {"functionCall": {"name": name, "args": arguments}}
            parts.append(call if index else call | {"thoughtSignature": self.seal()})
        usage = {
            "promptTokenCount": PROMPT,
            "cachedContentTokenCount": CACHED,
            "candidatesTokenCount": OUTPUT - 5,
            "thoughtsTokenCount": 5,
        }
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        whole = {"candidates": [candidate], "usageMetadata": usage}

        def events() -> Iterator[tuple[str, Any]]:
            for part in parts:
                yield "", {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]}
            yield "", {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}], "usageMetadata": usage}

        return whole, events()

    def _bedrock(self, made: Calls, thinks: bool) -> tuple[Body, Iterator[tuple[str, Any]]]:
        blocks: list[Body] = []
        if thinks:
            blocks.append({"reasoningContent": {"reasoningText": {"text": THOUGHT, "signature": self.seal()}}})
        blocks.append({"text": TEXT if made else DONE})
        for call_id, name, arguments in made:
            blocks.append({"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}})
        usage = {"inputTokens": PROMPT - CACHED - WRITTEN, "outputTokens": OUTPUT, "totalTokens": PROMPT + OUTPUT}
        usage |= {"cacheReadInputTokens": CACHED, "cacheWriteInputTokens": WRITTEN}
        end = {"stopReason": "tool_use" if made else "end_turn"}
        whole: Body = {"output": {"message": {"role": "assistant", "content": blocks}}, "usage": usage, **end}

        def events() -> Iterator[tuple[str, Any]]:
            yield "messageStart", {"role": "assistant"}
            for index, block in enumerate(blocks):
                position = {"contentBlockIndex": index}
                deltas: list[Body] = [block]
                if "reasoningContent" in block:
                    text = block["reasoningContent"]["reasoningText"]
                    deltas = [{"reasoningContent": {name: value}} for name, value in text.items()]
                elif "toolUse" in block:
                    use = block["toolUse"]
                    start = {name: use[name] for name in ("toolUseId", "name")}
                    yield "contentBlockStart", position | {"start": {"toolUse": start}}
                    deltas = [{"toolUse": {"input": json.dumps(use["input"], ensure_ascii=False)}}]
                for delta in deltas:
                    yield "contentBlockDelta", position | {"delta": delta}
                yield "contentBlockStop", position
            yield "messageStop", end
            yield "metadata", {"usage": usage, "metrics": {"latencyMs": 1}}

        return whole, events()

    def _thoughts(self, wire: Wire) -> Body:
        """The fields of a chat's turn with thoughts, as the wire's server writes them."""
        if wire.state == "reasoning_details":
            details = [{"type": "reasoning.text", "text": THOUGHT, "signature": self.seal(), "index": 0}]
            details.append({"type": "reasoning.encrypted", "data": self.seal(), "index": 1})
            return {"reasoning": THOUGHT, "reasoning_details": details}
        if wire.state in ("reasoning_content", "reasoning", "content"):
            self.state.append(THOUGHT)
            return {} if wire.state == "content" else {wire.state: THOUGHT}
        return {}

    def _chat(self, made: Calls, thinks: bool, wire: Wire) -> tuple[Body, Iterator[tuple[str, Any]]]:
        calls = [
            {
                "id": i,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for i, name, arguments in made
        ]
        text, finish = (TEXT, "tool_calls") if calls else (DONE, "stop")
        if calls and thinks and wire.state == "extra_content":
            calls[0] |= {"extra_content": {"google": {"thought_signature": self.seal()}}}
        thoughts = self._thoughts(wire) if thinks else {}
        shown: list[Any] = [text]
        if thinks and wire.state == "content":
            shown.insert(0, [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}])
        content = [*shown[0], {"type": "text", "text": text}] if len(shown) > 1 else text
        message = {"role": "assistant", "content": content} | thoughts | ({"tool_calls": calls} if calls else {})
        details = {"prompt_tokens_details": {"cached_tokens": CACHED}}
        usage = {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT, "total_tokens": PROMPT + OUTPUT, **details}
        whole = {
            "id": "c",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }

        def events() -> Iterator[tuple[str, Any]]:
            deltas: list[Body] = [{"role": "assistant", "content": None} | thoughts] if thoughts else []
            deltas += [{"role": "assistant", "content": piece} for piece in shown]
            deltas += [{"tool_calls": [call | {"index": index}]} for index, call in enumerate(calls)]
            for delta in deltas:
                yield "", {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            yield "", {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
            yield "", {"choices": [], "usage": usage}
            yield "", "[DONE]"

        return whole | {"usage": usage}, events()


def _block_events(index: int, block: Body) -> Iterator[tuple[str, Body]]:
    empty: Body = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
    started = block | empty.get(block["type"], {})
    yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": started}
    deltas: list[Body] = []
    if block["type"] == "text":
        deltas = [{"type": "text_delta", "text": piece} for piece in (block["text"][:4], block["text"][4:])]
    elif block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif block["type"] == "tool_use":
        arguments = json.dumps(block["input"], ensure_ascii=False)
        deltas = [
            {"type": "input_json_delta", "partial_json": piece} for piece in (arguments[:5], arguments[5:]) if piece
        ]
    for delta in deltas:
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": index}


def _amazon_event(kind: str, payload: Any) -> bytes:
    """One message of Amazon's event stream
    (https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html)."""
    named = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
        for name, value in named.items()
    )
    body = json.dumps(payload).encode()
    prelude = (16 + len(headers) + len(body)).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    prelude += zlib.crc32(prelude).to_bytes(4, "big")
    message = prelude + headers + body
    return message + zlib.crc32(message).to_bytes(4, "big")


def wire_of(path: str) -> Wire:
    """The wire whose server a path is of."""
    return BY_NAME[path.split("/")[1]]


def dialect_of(path: str) -> str:
    """The API of a path: `messages`, `responses`, `gemini`, `bedrock` or `chat`."""
    if path.endswith(("/messages", ":rawPredict", ":streamRawPredict")):
        return "messages"
    if path.endswith("/responses"):
        return "responses"
    if path.endswith(("/converse", "/converse-stream")):
        return "bedrock"
    return "gemini" if "enerateContent" in path else "chat"


def _head(status: int, kind: str, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}connection: close\r\n\r\n".encode()


@asynccontextmanager
async def recording_provider() -> AsyncIterator[Provider]:
    """Serve on a free port of this machine, and at Ollama's port of an unused loopback address."""
    provider = Provider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    host = "127." + ".".join(str(random.randrange(2, 250)) for _ in range(3))
    ollama = await asyncio.start_server(provider.serve, host, OLLAMA_PORT)
    provider.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    provider.ollama = f"http://{host}:{OLLAMA_PORT}"
    async with server, ollama:
        yield provider
