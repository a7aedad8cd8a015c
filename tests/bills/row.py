"""A row of the table of bills: a request, what its provider answers, and what the provider charges for that by its
published prices."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import httpx

from tests.support.upstream import Call, Handler

Body = dict[str, Any]


class Server(NamedTuple):
    """A target of the catalogue, whose server is scripted. `more`: further lines of its entry, as TOML."""

    name: str
    provider: str
    model: str
    more: str = ""


class Row(NamedTuple):
    """`api`: the path below `/v1/`. `request`: the JSON of the body; its `model` is the server's name. `usd`: what the
    provider charges, by the prices at `source`. `expected`: `billed` within `WITHIN`, `refused`, or an `estimate` that
    the record marks as one. `budget`: US dollars of the key's budget; None for a key without one. `answer`: how the
    scripted server answers. `send`: for a request that is not one POST of JSON: it gets the client, whose address and
    key are set, and returns what the caller has seen."""

    name: str
    server: Server
    api: str
    request: Body
    answer: Handler
    usd: float
    source: str
    expected: str = "billed"
    budget: float | None = 1000.0
    send: Callable[[httpx.AsyncClient], Awaitable["Answered"]] | None = None


class Answered(NamedTuple):
    """What the caller has seen."""

    status: int
    request_id: str
    text: str


def words(count: int) -> str:
    """A text of about `count` tokens, so that a scripted count of the prompt is possible."""
    return "word " * count


def json_answer(body: Any) -> Handler:
    """Answers every call with `body`."""

    async def answer(call: Call) -> None:
        await call.reply(200, body)

    return answer


def chat(usage: Body, text: str = "Done.", **more: Any) -> Handler:
    """A chat answer with `usage`, streamed where that is asked for. `more`: further fields of the answer, such as
    `service_tier`."""

    async def answer(call: Call) -> None:
        if not call.body.get("stream"):
            said = {"role": "assistant", "content": text}
            choices = [{"index": 0, "message": said, "finish_reason": "stop"}]
            await call.reply(200, {"id": "c", "object": "chat.completion", "choices": choices, "usage": usage} | more)
            return
        await call.begin()
        await call.chunk(text)
        await call.chunk(finish="stop")
        await call.event({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage} | more)
        await call.send(b"data: [DONE]\n\n")

    return answer


def message(usage: Body, blocks: Sequence[Body] = ({"type": "text", "text": "Done."},)) -> Handler:
    """An answer of Anthropic's API; `blocks` that are no text are sent whole at their start."""

    async def answer(call: Call) -> None:
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_sequence": None}
        if not call.body.get("stream"):
            await call.reply(200, head | {"content": list(blocks), "stop_reason": "end_turn", "usage": usage})
            return
        started = head | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
        events: list[Body] = [{"type": "message_start", "message": started}]
        for index, block in enumerate(blocks):
            at = {"index": index}
            shown = block | {"text": ""} if block["type"] == "text" else block
            events.append({"type": "content_block_start", "content_block": shown} | at)
            if block["type"] == "text":
                delta = {"type": "text_delta", "text": block["text"]}
                events.append({"type": "content_block_delta", "delta": delta} | at)
            events.append({"type": "content_block_stop"} | at)
        events += [
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        await call.begin()
        await call.send(_events(events))

    return answer


_CHAT_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}


def response(usage: Body, items: Sequence[Body] = (), text: str = "Done.", **more: Any) -> Handler:
    """An answer of the Responses API: `items`, then a message. `more`: further fields, such as `service_tier`. Where a
    chat suffices, the gateway asks OpenAI in one: then the answer is a chat with the same usage."""
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": parts}
    in_chats = chat({_CHAT_NAMES.get(name, name): count for name, count in usage.items()}, text, **more)

    async def answer(call: Call) -> None:
        if call.path.endswith("/chat/completions"):
            await in_chats(call)
            return
        output = [*items, said]
        whole = {"id": "resp_1", "object": "response", "status": "completed", "output": output, "usage": usage} | more
        if not call.body.get("stream"):
            await call.reply(200, whole)
            return
        events: list[Body] = [{"type": "response.created", "response": whole | {"output": [], "usage": None}}]
        for index, item in enumerate(output):
            events.append({"type": "response.output_item.added", "output_index": index, "item": item})
            if item is said:
                at = {"output_index": index, "item_id": "m", "content_index": 0}
                events.append({"type": "response.output_text.delta", "delta": text} | at)
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": "response.completed", "response": whole})
        await call.begin()
        await call.send(_events(events))

    return answer


def _events(events: Sequence[Body]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in events)
