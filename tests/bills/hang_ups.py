"""Callers that leave before the end of an answer: the provider bills thoughts that no caller has seen."""

import asyncio
import json
from typing import Any

import httpx
from websockets.asyncio.client import connect

from tests.bills.row import Answered, Body, Row, Server, words
from tests.support.upstream import Call, Handler

_ASKED = [{"role": "user", "content": words(1000)}]
PROMPT, _HIDDEN, _SHOWN = 1000, 3895, 105
READ = "so on. and"
TEXT = "and so on. " * 38
"""About as many tokens as `_SHOWN`."""
_BILLED = {
    "prompt_tokens": PROMPT,
    "completion_tokens": _HIDDEN + _SHOWN,
    "completion_tokens_details": {"reasoning_tokens": _HIDDEN},
}
_MISTRAL_PRICES = "https://mistral.ai/pricing"
_OPENAI_PRICES = "https://platform.openai.com/docs/pricing"
_CLAUDE_PRICES = "https://docs.claude.com/en/docs/about-claude/pricing"
_GEMINI_PRICES = "https://ai.google.dev/gemini-api/docs/pricing"


class Leaving:
    """A stream whose caller leaves once it has read some of its text. What the server says `then` comes after that;
    if it says nothing, it breaks off."""

    def __init__(self, first: Handler, then: Handler | None = None) -> None:
        self._first, self._then = first, then
        self._left = asyncio.Event()

    async def answer(self, call: Call) -> None:
        """Answer as the scripted server."""
        await self._first(call)
        await self._left.wait()
        if self._then is not None:
            await self._then(call)

    async def post(self, client: httpx.AsyncClient, path: str, body: Body) -> Answered:
        """Ask, read and leave."""
        read = ""
        async with client.stream("POST", f"/v1/{path}", json=body | {"stream": True}) as answer:
            async for piece in answer.aiter_text():
                read += piece
                if READ in read:
                    break
        self._left.set()
        return Answered(answer.status_code, answer.headers.get("x-aio-decision-id", ""), read)

    async def chat_on_a_socket(self, client: httpx.AsyncClient, body: Body) -> Answered:
        """Ask over a WebSocket, read and cancel."""
        url = str(client.base_url).rstrip("/").replace("http", "ws", 1) + "/v1/chat/completions/ws"
        headers = {"authorization": client.headers["authorization"], "x-aio-cache": "off"}
        async with connect(url, additional_headers=headers) as socket:
            await socket.send(json.dumps(body))
            frames: list[Any] = []
            while not any(READ in json.dumps(one) for one in frames):
                frames.append(json.loads(await socket.recv()))
            await socket.send(json.dumps({"type": "cancel"}))
            while "status" not in (frame := json.loads(await socket.recv())):
                frames.append(frame)
            assert frame["status"] == "cancelled"
        self._left.set()
        return Answered(200, frames[0]["id"], json.dumps(frames))


async def _chat_text(call: Call) -> None:
    await call.begin()
    await call.chunk(TEXT)


async def _chat_text_and_reason(call: Call) -> None:
    choices: list[Body] = [
        {"index": 0, "delta": {"content": TEXT}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    events = [json.dumps({"object": "chat.completion.chunk", "choices": [choice]}) for choice in choices]
    await call.begin()
    # At once: the gateway knows the reason as soon as the caller has the text.
    await call.send("".join(f"data: {event}\n\n" for event in events).encode())


async def _chat_counts(call: Call) -> None:
    await call.event({"object": "chat.completion.chunk", "choices": [], "usage": _BILLED})
    await call.send(b"data: [DONE]\n\n")


async def _chat_end(call: Call) -> None:
    await call.chunk(finish="stop")
    await _chat_counts(call)


async def _chat_end_in_pieces(call: Call) -> None:
    await call.chunk("More ")
    await call.chunk("of it.", finish="stop")
    head, tail = json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": _BILLED}).split("_tokens", 1)
    await call.send(f"data: {head}_tok".encode())
    await call.send(f"ens{tail}\n\ndata: [DONE]\n\n".encode())


async def _response_text(call: Call) -> None:
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "usage": None}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    at = {"output_index": 0, "item_id": "m", "content_index": 0}
    await call.begin()
    for event in (
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_text.delta", "delta": TEXT} | at,
    ):
        await call.send(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


async def _message_text(call: Call) -> None:
    usage = {"input_tokens": PROMPT, "output_tokens": 1}
    await call.begin()
    for event in (
        {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
    ):
        await call.send(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


async def _gemini_text(call: Call) -> None:
    await call.begin()
    part = {"content": {"role": "model", "parts": [{"text": TEXT}]}, "index": 0}
    await call.event({"candidates": [part]})


async def _gemini_end(call: Call) -> None:
    counts = {"promptTokenCount": PROMPT, "candidatesTokenCount": _SHOWN, "thoughtsTokenCount": _HIDDEN}
    end = {"content": {"role": "model", "parts": []}, "finishReason": "STOP", "index": 0}
    await call.event({"candidates": [end], "usageMetadata": counts})


def left_row(
    name: str,
    server: Server,
    api: str,
    request: Body,
    leaving: Leaving,
    prices: tuple[float, float],
    source: str,
    expected: str = "billed",
    tokens: int = _HIDDEN + _SHOWN,
) -> Row:
    """Return a row whose caller leaves; `api` is `ws` for a WebSocket. `prices`: US dollars per million tokens read and
    written; `tokens`: written, hidden ones included."""
    usd = (PROMPT * prices[0] + tokens * prices[1]) / 1e6
    body = {"model": server.name} | request

    async def send(client: httpx.AsyncClient) -> Answered:
        return await (leaving.chat_on_a_socket(client, body) if api == "ws" else leaving.post(client, api, body))

    return Row(name, server, api, request, leaving.answer, usd, source, expected, send=send)


# An estimate takes earlier answers of the same server into account: most rows with one have a server of their own.
_MISTRAL = Server("magistral", "mistral", "magistral-medium-latest")
_CHAT: Body = {"messages": _ASKED, "max_tokens": 8000}
_RESPONSE: Body = {"input": words(1000), "max_output_tokens": 8000}

ROWS: list[Row] = [
    left_row(
        "a chat of Mistral that is left at its last word, before its counts",
        _MISTRAL, "chat/completions", _CHAT, Leaving(_chat_text, _chat_end), (2, 5), _MISTRAL_PRICES,
    ),
    left_row(
        "a chat of Mistral that is left in the middle, whose counts come in pieces",
        _MISTRAL, "chat/completions", _CHAT, Leaving(_chat_text, _chat_end_in_pieces), (2, 5), _MISTRAL_PRICES,
    ),
    left_row(
        "a message to Mistral that is left at its last word",
        _MISTRAL, "messages", _CHAT, Leaving(_chat_text, _chat_end), (2, 5), _MISTRAL_PRICES,
    ),
    left_row(
        "a response of Mistral that is left at its last word",
        _MISTRAL, "responses", _RESPONSE, Leaving(_chat_text, _chat_end), (2, 5), _MISTRAL_PRICES,
    ),
    left_row(
        "a chat of Mistral over a WebSocket that is cancelled at its last word",
        _MISTRAL, "ws", _CHAT, Leaving(_chat_text, _chat_end), (2, 5), _MISTRAL_PRICES,
    ),
    left_row(
        "a chat of Gemini that is left at its last word",
        Server("gemini", "gemini", "gemini-2.5-pro"), "chat/completions", _CHAT, Leaving(_gemini_text, _gemini_end),
        (1.25, 10), _GEMINI_PRICES,
    ),
    left_row(
        "a chat of OpenAI that is left after its reason to end, before its counts",
        Server("gpt-5-ended", "openai", "gpt-5"), "chat/completions", _CHAT,
        Leaving(_chat_text_and_reason, _chat_counts), (1.25, 10), _OPENAI_PRICES,
    ),
    left_row(
        "a chat of OpenAI that is left at its last word: closed, its thoughts are not counted",
        Server("gpt-5-left", "openai", "gpt-5"), "chat/completions", _CHAT, Leaving(_chat_text), (1.25, 10),
        _OPENAI_PRICES, "estimate",
    ),
    left_row(
        "a response of OpenAI with more effort that is left at its last word",
        Server("gpt-5-more", "openai", "gpt-5"), "responses", _RESPONSE | {"reasoning": {"effort": "high"}},
        Leaving(_response_text), (1.25, 10), _OPENAI_PRICES, "estimate",
    ),
    left_row(
        "a message of Anthropic with thoughts that is left at its last word",
        Server("claude-left", "anthropic", "claude-sonnet-4-5"), "messages",
        _CHAT | {"thinking": {"type": "enabled", "budget_tokens": 4000}},
        Leaving(_message_text), (3, 15), _CLAUDE_PRICES, "estimate",
    ),
    left_row(
        "a chat of Mistral that is left, whose server breaks off without counts",
        _MISTRAL, "chat/completions", _CHAT, Leaving(_chat_text), (2, 5), _MISTRAL_PRICES, "estimate",
    ),
]  # fmt: skip
