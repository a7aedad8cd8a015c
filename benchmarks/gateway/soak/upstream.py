"""The server behind a gateway under soak: OpenAI's wire with texts, calls of tools, paced streams and long answers."""

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import msgspec

from benchmarks.gateway.proxy import TOPICS
from benchmarks.gateway.upstream import MODELS, Upstream, frame_of, running_upstream, whole_answer

AT_LENGTH = "Answer at length."
"""A last message with these words gets an answer of `LONG_BYTES`."""
LONG_BYTES = 1 << 20
_PACE_SECONDS = 0.005
_LONG_PIECE = 8192
_DIMENSIONS = 64
_LAUNCH = (
    "from benchmarks.gateway.soak.upstream import SoakUpstream; from benchmarks.gateway.upstream import "
    "serve_connections; serve_connections(SoakUpstream)"
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Json = dict[str, Any]


class SoakUpstream(Upstream):
    """One kept connection. Streams have an event every 5 ms, anything else is answered at once; equal requests get
    equal answers."""

    def __init__(self) -> None:
        super().__init__()
        self._timer: asyncio.TimerHandle | None = None

    def respond(self, head: bytes, body: bytes) -> None:
        """See `Upstream`."""
        if head.startswith(b"get"):
            self.write(MODELS)
        elif b"/embeddings " in head.split(b"\r\n", 1)[0]:
            self.write(_whole(_embeddings(msgspec.json.decode(body))))
        else:
            self._answer(msgspec.json.decode(body), len(body))

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self, asked: Json, size: int) -> None:
        message = answer_to(asked)
        written = len(message["content"] or "") or len(message["tool_calls"][0]["function"]["arguments"])
        prompt_tokens, answer_tokens = max(size // 5, 1), max(written // 5, 1)
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": answer_tokens,
            "total_tokens": prompt_tokens + answer_tokens,
        }
        finish = "stop" if message["content"] is not None else "tool_calls"
        if asked.get("stream"):
            self.write(_STREAM_HEAD)
            self._next(_events(message, finish, usage))
        else:
            choice = {"index": 0, "message": message, "finish_reason": finish}
            self.write(_whole(frame_of("chat.completion", [choice]) | {"usage": usage}))

    def _next(self, events: Iterator[bytes]) -> None:
        event = next(events, b"")
        self.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._timer = asyncio.get_running_loop().call_later(_PACE_SECONDS, self._next, events) if event else None


def answer_to(asked: Json) -> Json:
    """The assistant's message to a chat: a call of the first tool, unless one has just been answered, or a text."""
    last = asked["messages"][-1]
    text = last["content"] if isinstance(last["content"], str) else msgspec.json.encode(last["content"]).decode()
    random = Random(zlib.crc32(text.encode()))
    if asked.get("tools") and last["role"] != "tool":
        arguments = {"query": " ".join(random.choices(TOPICS.split(), k=12)), "page": random.randrange(100)}
        function = {
            "name": asked["tools"][0]["function"]["name"],
            "arguments": msgspec.json.encode(arguments).decode(),
        }
        call = {"id": f"call_{random.randrange(1 << 40):010x}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    words = " ".join(random.choices(TOPICS.split(), k=random.randint(8, 64)))
    if AT_LENGTH in text:
        words = f"{words} " * (LONG_BYTES // (len(words) + 1))
    return {"role": "assistant", "content": words}


def _events(message: Json, finish: str, usage: Json) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": "" if message["content"] else None})
    for delta in _deltas(message):
        yield _chunk(delta)
    yield _chunk({}, finish)
    yield _event(frame_of("chat.completion.chunk", []) | {"usage": usage})
    yield b"data: [DONE]\n\n"


def _deltas(message: Json) -> Iterator[Json]:
    if (text := message["content"]) is not None:
        # A word and its space, or much more of a long answer.
        pieces = [text[at : at + _LONG_PIECE] for at in range(0, len(text), _LONG_PIECE)]
        for piece in pieces if len(pieces) > 1 else (f"{word} " for word in text.split()):
            yield {"content": piece}
        return
    call = message["tool_calls"][0]
    function = call["function"]
    yield {"tool_calls": [{"index": 0, **call, "function": {"name": function["name"], "arguments": ""}}]}
    for at in range(0, len(function["arguments"]), 16):
        yield {"tool_calls": [{"index": 0, "function": {"arguments": function["arguments"][at : at + 16]}}]}


def _chunk(delta: Json, finish: str | None = None) -> bytes:
    return _event(frame_of("chat.completion.chunk", [{"index": 0, "delta": delta, "finish_reason": finish}]))


def _event(payload: Json) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(payload)


def _embeddings(asked: Json) -> Json:
    texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
    random = Random(len(texts))
    rows = [
        {"object": "embedding", "index": index, "embedding": [random.uniform(-1, 1) for _ in range(_DIMENSIONS)]}
        for index in range(len(texts))
    ]
    tokens = sum(len(text) // 5 + 1 for text in texts)
    return {
        "object": "list",
        "model": "mock",
        "data": rows,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _whole(payload: Json) -> bytes:
    return whole_answer("application/json", msgspec.json.encode(payload))


def soak_upstream() -> AbstractAsyncContextManager[str]:
    """The base URL of such a server, in a process of its own."""
    return running_upstream(_LAUNCH)
