"""The events of a streamed Response: each item is added, grows by deltas, and is done before the next one begins
(`BlockOrder`). And the answers to compactions: one item with the summary, which later requests give back
(`compaction`)."""

from typing import Any

import msgspec

from gateway.base.errors import as_api_error
from gateway.inference.answer import Answer
from gateway.inference.api.responses.as_chat import sealed
from gateway.inference.api.responses.body import ResponseBody, annotation, logprobs_of, refusal_part, text_part
from gateway.inference.api.responses.schemas import ResponsesRequest
from tiers.conversation import Call, ToolCallDelta, UrlCitation
from tiers.deltas import BlockOrder, Piece, pieces_of
from tiers.dialects.chat_state import image_items
from tiers.dialects.constraints import InputReader
from tiers.tier import Delta, TextLogprob

_encode = msgspec.json.Encoder().encode


class ResponseEvents:
    """`Chunks` in the wording of `/v1/responses`. The items that are done are the body's."""

    def __init__(self, answer: Answer, body: ResponseBody) -> None:
        self._answer, self._body = answer, body
        self._order = BlockOrder()
        self._number = 0
        self._open: Piece | None = None  # the first piece of the item under way
        self._item_id = ""
        self._said: list[str] = []  # of the item under way, as are the next three
        self._logprobs: list[Any] = []
        self._cited: list[UrlCitation] = []
        self._custom: InputReader | None = None  # if it is a call of a custom tool
        self._comes_whole = False  # as a search for tools does
        self._drawn: list[TextLogprob] = []  # of tokens whose text has not come yet
        self._last: bytes | None = None
        self._added: set[str] = set()  # ids that a server with this API has added items under

    def opening(self) -> bytes:
        """The Response, with nothing in it yet."""
        shown = self._body.shown("in_progress", [])
        return self._event("response.created", response=shown) + self._event("response.in_progress", response=shown)

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new."""
        own = delta.opaque
        if own is not None and own.dialect == "responses" and (own.event or own.block is None):
            events = self._as_is(own.event) if own.event else b""
            if events is not None:
                return events
        if delta.logprobs and self._body.logprobs and not delta.reasoning:
            self._drawn += delta.logprobs
        plain = not (delta.reasoning or delta.tool_calls or delta.refusal or delta.annotations)
        if delta.text and self._order.passes_text and plain:
            return self._grow(delta.text)
        events = b"".join(self._show(ready) for piece in pieces_of(delta) for ready in self._order.put(piece))
        return events + self._cite(delta.annotations) if delta.annotations else events

    def end(self) -> None:
        """No further delta comes: make the events of what is still open or waits. The body then holds all items."""
        events = b"".join(map(self._show, self._order.rest()))
        images = image_items(self._answer.choices[0], self._answer.request.request_id)
        if self._open is None and not (self._body.is_servers_own or images):
            events += self._begin(Piece("text", ""))
        events += self._done()
        for item in filter(None, (*images, self._body.state_item())):
            for what in ("added", "done"):
                events += self._event(f"response.output_item.{what}", output_index=self._index, item=item)
            self._body.add(item)
        self._last = events

    def closing(self, answer: Answer) -> bytes:
        """The last items, and the Response as a whole."""
        if self._last is None:
            self.end()
        return (self._last or b"") + self._event(f"response.{self._body.status}", response=self._body.finished())

    def failed(self, error: Exception) -> bytes:
        """The Response, with what went wrong."""
        failure = as_api_error(error).body
        return self._event("response.failed", response=self._body.shown("failed", [], failure))

    def _as_is(self, data: bytes) -> bytes | None:
        """An event of a server with this API, with our number and ids; None for one about an item that it never began,
        whose events are ours."""
        event = msgspec.json.decode(data, type=dict[str, Any])
        kind, item, events = str(event["type"]), event.get("item"), b""
        if item is None:
            if event.get("item_id") not in self._added:
                return None
            event["item_id"] = self._body.ids.of(event["item_id"])
        elif kind == "response.output_item.done":
            if self._open is not None and item.get("type") == "message":
                return b""
            events, event["item"] = self._done(), self._body.add_own(item)
        else:
            self._added.add(str(item.get("id")))
            events, event["item"] = self._done(), self._body.ids.renamed(item)
        event["sequence_number"] = self._number
        self._number += 1
        return events + b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(event))

    def _show(self, piece: Piece) -> bytes:
        """Events of a piece of the block that is written now."""
        if self._open is not None and self._open.key == piece.key:
            return self._grow(piece.text)
        return self._done() + self._begin(piece) + self._grow(piece.text)

    def _begin(self, piece: Piece) -> bytes:
        self._open, self._said, self._logprobs, self._cited = piece, [], [], []
        item = self._item("in_progress")
        self._item_id = item["id"]
        self._custom = InputReader() if item["type"] == "custom_tool_call" else None
        self._comes_whole = item["type"] == "tool_search_call"
        events = self._event("response.output_item.added", output_index=self._index, item=item)
        if piece.key in ("text", "refusal"):
            part = text_part("", []) if piece.key == "text" else refusal_part("")
            events += self._growth("response.content_part.added", content_index=0, part=part)
        elif piece.key == "thinking":
            events += self._thoughts_part("added", "")
        return events

    def _grow(self, text: str) -> bytes:
        """More of the item under way."""
        if not text or self._open is None:
            return b""
        self._said.append(text)
        if self._open.key == "text":
            drawn, self._drawn = logprobs_of(self._drawn) if self._drawn else [], []
            self._logprobs += drawn
            return self._growth("response.output_text.delta", content_index=0, delta=text, logprobs=drawn)
        if self._open.key == "thinking":
            return self._thoughts("delta", delta=text)
        if self._open.key == "refusal":
            return self._growth("response.refusal.delta", content_index=0, delta=text)
        if self._comes_whole:
            return b""
        if self._custom is None:
            return self._growth("response.function_call_arguments.delta", delta=text)
        return self._input(self._custom.take(text))

    def _cite(self, cited: list[UrlCitation]) -> bytes:
        """What the text under way cites."""
        events = b""
        if self._open is None or self._open.key != "text":
            events = b"".join(map(self._show, self._order.put(Piece("text", ""))))
        if self._open is None or self._open.key != "text":
            return events
        for one in cited:
            where = {"content_index": 0, "annotation_index": len(self._cited)}
            events += self._growth("response.output_text.annotation.added", **where, annotation=annotation(one))
            self._cited.append(one)
        return events

    def _done(self) -> bytes:
        """End the item under way, if there is one."""
        if self._open is None:
            return b""
        if self._open.key == "text" and self._drawn:
            self._logprobs += logprobs_of(self._drawn)
            self._drawn = []
        said, item = "".join(self._said), self._item(self._body.status)
        if self._open.key == "thinking":
            events = self._thoughts("done", text=said) + self._thoughts_part("done", said)
        elif self._open.key in ("text", "refusal"):
            (part,) = item["content"]
            fields = {name: part[name] for name in ("text", "refusal", "logprobs") if name in part}
            events = self._growth(f"response.{part['type']}.done", content_index=0, **fields)
            events += self._growth("response.content_part.done", content_index=0, part=part)
        elif self._comes_whole:
            events = b""
        elif self._custom is not None:
            events = self._input(self._custom.rest())
            events += self._growth("response.custom_tool_call_input.done", input=item["input"])
        else:
            events = self._growth("response.function_call_arguments.done", name=item["name"], arguments=said)
        events += self._event("response.output_item.done", output_index=self._index, item=item)
        self._body.add(item)
        self._open = None
        return events

    def _item(self, status: str) -> dict[str, Any]:
        """The item under way; one that has just started shows nothing but a call's name."""
        piece, said = self._open or Piece("text", ""), "".join(self._said)
        if piece.key == "thinking":
            return self._body.reasoning_item(said)
        if piece.key == "text":
            return self._body.message_item(text_part(said, self._logprobs, self._cited), status)
        if piece.key == "refusal":
            return self._body.message_item(refusal_part(said), status)
        first = piece.call or ToolCallDelta(index=0)
        call = Call(id=first.id, name=first.name, arguments=said)
        return self._body.call_item(first.index, call, status)

    @property
    def _index(self) -> int:
        return len(self._body.streamed)

    def _input(self, text: str) -> bytes:
        return self._growth("response.custom_tool_call_input.delta", delta=text) if text else b""

    def _thoughts(self, what: str, **fields: Any) -> bytes:
        if self._body.summarises:
            return self._growth(f"response.reasoning_summary_text.{what}", summary_index=0, **fields)
        return self._growth(f"response.reasoning_text.{what}", content_index=0, **fields)

    def _thoughts_part(self, what: str, said: str) -> bytes:
        part = self._body.reasoning_part(said)
        if self._body.summarises:
            return self._growth(f"response.reasoning_summary_part.{what}", summary_index=0, part=part)
        # LiteLLM, and with it aider, ends a stream whose part that is done has no `reasoning`.
        part |= {"reasoning": said} if what == "done" else {}
        return self._growth(f"response.content_part.{what}", content_index=0, part=part)

    def _growth(self, kind: str, **fields: Any) -> bytes:
        """An event about the item under way."""
        return self._event(kind, item_id=self._item_id, output_index=self._index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return _event(kind, self._number - 1, **fields)


def failed_before_a_word(response: dict[str, Any]) -> bytes:
    """The events of a Response that failed before anything of it came."""
    begun = response | {"status": "in_progress", "error": None}
    return _event("response.created", 0, response=begun) + _event("response.failed", 1, response=response)


def _event(kind: str, number: int, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, "sequence_number": number, **fields}))


KEPT_BYTES = 80_000
"""Of what the user said, that `/v1/responses/compact` gives back next to the summary: about 20,000 tokens, as Codex
keeps them."""


class CompactedBody(ResponseBody):
    """A Response whose only item is the summary."""

    def output(self) -> list[dict[str, Any]]:
        if not self.streamed:
            text = self._answer.choices[0].text
            self.add({"id": f"cmp_{self._id}", "type": "compaction", "encrypted_content": sealed(text)})
        return self.streamed


class CompactedEvents(ResponseEvents):
    """Events of it: the item comes whole, at the end."""

    def piece(self, delta: Delta) -> bytes:
        return b""

    def end(self) -> None:
        (item,) = self._body.output()
        self._last = b"".join(
            self._event(f"response.output_item.{stage}", output_index=0, item=item) for stage in ("added", "done")
        )


def compacted(body: ResponseBody, said: ResponsesRequest) -> dict[str, Any]:
    """The answer of `/v1/responses/compact`: the last of what the user said, and the summary."""
    response = body.finished()
    items = [] if isinstance(said.input, str) else [item for item in said.input if item.role == "user"]
    kept: list[dict[str, Any]] = []
    size = 0
    for item in reversed(items):
        shown = {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}
        size += len(msgspec.json.encode(shown))
        if size > KEPT_BYTES:
            break
        kept.insert(0, shown)
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*kept, *response["output"]],
        "usage": response["usage"],
    }
