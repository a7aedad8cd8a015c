"""The events of a streamed Response: each item is added, grows by deltas, and is done before the next one begins."""

from typing import Any

import msgspec

from gateway.answering.answer import Answer
from gateway.api.responses.body import ResponseBody, logprobs_of, text_part
from gateway.api.responses.custom_tools import InputReader
from gateway.errors import as_api_error
from tiers.tier import Delta, TextLogprob
from tiers.tool_types import ToolCall, ToolCallDelta

_encode = msgspec.json.Encoder().encode


class ResponseEvents:
    """`Chunks` in the wording of `/v1/responses`. What an item holds in the end is read off the answer."""

    def __init__(self, answer: Answer, body: ResponseBody) -> None:
        self._answer, self._body = answer, body
        self._number = 0
        self._open: str | None = None  # reasoning, message, or call:N
        self._items = 0
        self._item_id = ""
        self._custom: InputReader | None = None  # of the call under way, if it is of a custom tool
        self._drawn: list[TextLogprob] = []  # of tokens whose text has not come yet

    def opening(self) -> bytes:
        """The Response, with nothing in it yet."""
        shown = self._body.shown("in_progress", [])
        return self._event("response.created", response=shown) + self._event("response.in_progress", response=shown)

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new."""
        events = b""
        if delta.reasoning:
            events += self._turn_to("reasoning")
            events += self._thoughts("delta", delta=delta.reasoning)
        if delta.logprobs and self._body.logprobs and not delta.reasoning:
            self._drawn += delta.logprobs
        if delta.text:
            events += self._turn_to("message")
            drawn, self._drawn = logprobs_of(self._drawn) if self._drawn else [], []
            events += self._growth("response.output_text.delta", content_index=0, delta=delta.text, logprobs=drawn)
        for call in delta.tool_calls:
            events += self._turn_to(f"call:{call.index}", call)
            if call.arguments:
                events += self._arguments(call.arguments)
        return events

    def closing(self, answer: Answer) -> bytes:
        """The last item, and the Response as a whole."""
        events = self._turn_to("message") if not self._items else b""
        events += self._done()
        return events + self._event(f"response.{self._body.status}", response=self._body.finished())

    def failed(self, error: Exception) -> bytes:
        """The Response, with what went wrong."""
        failure = as_api_error(error).body
        return self._event("response.failed", response=self._body.shown("failed", [], failure))

    def _arguments(self, piece: str) -> bytes:
        """The events of more arguments of the call under way."""
        if self._custom is None:
            return self._growth("response.function_call_arguments.delta", delta=piece)
        return self._input(self._custom.take(piece))

    def _input(self, text: str) -> bytes:
        return self._growth("response.custom_tool_call_input.delta", delta=text) if text else b""

    def _thoughts(self, what: str, **fields: Any) -> bytes:
        if self._body.summarises:
            return self._growth(f"response.reasoning_summary_text.{what}", summary_index=0, **fields)
        return self._growth(f"response.reasoning_text.{what}", content_index=0, **fields)

    def _thoughts_part(self, what: str, text: str) -> bytes:
        part = self._body.reasoning_part(text)
        if self._body.summarises:
            return self._growth(f"response.reasoning_summary_part.{what}", summary_index=0, part=part)
        return self._growth(f"response.content_part.{what}", content_index=0, part=part)

    def _turn_to(self, kind: str, call: ToolCallDelta | None = None) -> bytes:
        """End the item under way and begin one of this kind, unless it is that already."""
        if self._open == kind:
            return b""
        events = self._done()
        self._open, self._items = kind, self._items + 1
        item = self._item("in_progress", call)
        self._item_id = item["id"]
        self._custom = InputReader() if item["type"] == "custom_tool_call" else None
        events += self._event("response.output_item.added", output_index=self._items - 1, item=item)
        if kind == "message":
            events += self._growth("response.content_part.added", content_index=0, part=text_part("", []))
        elif kind == "reasoning":
            events += self._thoughts_part("added", "")
        return events

    def _done(self) -> bytes:
        if self._open is None:
            return b""
        choice, events = self._answer.choices[0], b""
        item = self._item(self._body.status)
        if self._open == "reasoning":
            events = self._thoughts("done", text=choice.reasoning) + self._thoughts_part("done", choice.reasoning)
        elif self._open == "message":
            (part,) = item["content"]
            drawn = part["logprobs"]
            events = self._growth("response.output_text.done", content_index=0, text=choice.text, logprobs=drawn)
            events += self._growth("response.content_part.done", content_index=0, part=part)
        elif self._custom is not None:
            events = self._input(self._custom.rest())
            events += self._growth("response.custom_tool_call_input.done", input=item["input"])
        else:
            name, arguments = item["name"], item["arguments"]
            events = self._growth("response.function_call_arguments.done", name=name, arguments=arguments)
        self._open = None
        return events + self._event("response.output_item.done", output_index=self._items - 1, item=item)

    def _item(self, status: str, first: ToolCallDelta | None = None) -> dict[str, Any]:
        """The item under way; one that has just started shows nothing but a call's name."""
        choice, fresh = self._answer.choices[0], status == "in_progress"
        if self._open == "reasoning":
            return self._body.reasoning_item("" if fresh else choice.reasoning)
        if self._open == "message":
            return self._body.message_item("" if fresh else choice.text, status)
        place = int(str(self._open).removeprefix("call:"))
        call = choice.tool_calls[place] if first is None else ToolCall(id=first.id, name=first.name, arguments="")
        return self._body.call_item(place, call, status)

    def _growth(self, kind: str, **fields: Any) -> bytes:
        """An event about the item under way."""
        return self._event(kind, item_id=self._item_id, output_index=self._items - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(event))
