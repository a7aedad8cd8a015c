"""Write an answer as a Response: what was asked for and the items of the answer, whole or as a stream of events.

Each item of a stream is added, grows by deltas, and is done before the next one begins (`BlockOrder`). The answer to a
compaction is one item with the summary, which later requests give back.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from tiers.catalog.tier_spec import SamplingDefaults
from tiers.conversation import Call, ToolCallDelta, UrlCitation
from tiers.deltas import BlockOrder, CollectedChoice, Piece, is_object, pieces_of
from tiers.dialects.chat_opaque import image_items
from tiers.dialects.chat_writer import chat_logprobs
from tiers.dialects.constraints import InputReader, input_of
from tiers.dialects.responses_items import ItemIds, carried, sealed, without_seals
from tiers.dialects.responses_request import wants_logprobs
from tiers.dialects.responses_schemas import FORM, SEALED_REASONING, ResponsesRequest
from tiers.dialects.responses_tools import CalledTool, called_tools, shown_choice, shown_tool
from tiers.tier import Delta, TextLogprob, Usage

_SHOWN_AS_GIVEN = ("previous_response_id", "instructions", "max_output_tokens", "max_tool_calls", "user",
                   "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                   "prompt_cache_options")  # fmt: skip
# Why an answer is not complete, by how it ended.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
KEPT_BYTES = 80_000
"""Of what the user said, that a compaction gives back next to the summary: about 20,000 tokens, as Codex keeps them."""
_encode = msgspec.json.Encoder().encode


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an answer besides its request and its items."""

    id: str
    created_at: int
    model: str
    service_tier: str
    sampling: SamplingDefaults = SamplingDefaults()
    """Of the tier that answers, for what the caller left open."""
    tools: list[Any] | None = None
    """The tools as they were given, for a server with this API."""


class ResponseEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer once it has ended, failed or not."""

    usage: Usage
    completed_at: int
    x_aio: Any
    """How the answer came about."""


class ResponseError(msgspec.Struct, frozen=True):
    """Why there is no answer, or no more of it."""

    code: str
    message: str


class ResponseBody:
    """The Response of an answer, whole or at a stage of its stream, and its items.

    `output`: the items that are done. `logprobs`: whether its text comes with log-probabilities. `summarises`: whether
    thoughts are given as a summary, which many clients show, because one was asked for; nothing of them is left out.
    """

    def __init__(self, head: ResponseHead, request: ResponsesRequest) -> None:
        self.id = head.id
        self._own = _own(head, request)
        self.output: list[dict[str, Any]] = []
        self.status = "in_progress"
        self.ids = ItemIds(head.id)
        self._why_incomplete: str | None = None
        self._sealed: list[dict[str, Any]] = []  # items of a server with this API, with all that they hold
        self._earlier: Counter[str] = Counter()  # items by the prefix of their ids
        self._tools = called_tools(request.tools or ())
        self._seals = SEALED_REASONING in (request.include or ())
        self.logprobs = wants_logprobs(request)
        self.summarises = _asked_summary(request) is not None

    def finish(self, choice: CollectedChoice) -> None:
        """Say how the answer ended."""
        self._why_incomplete = _INCOMPLETE.get(choice.finish_reason or "")
        self.status = "completed" if self._why_incomplete is None else "incomplete"

    def take(self, choice: CollectedChoice, answered_by: str) -> None:
        """Add the items of a finished answer that was not streamed: thoughts, text, calls and images, or those of a
        server with this API. `answered_by`: the server and model."""
        self.finish(choice)
        if own := choice.opaque.get(FORM):
            for block in own:
                self.add_own(msgspec.json.decode(block.json))
            return
        if choice.reasoning:
            self.add(self.reasoning_item(choice.reasoning))
        calls = [(index, call) for index, call in enumerate(choice.tool_calls) if call.id or call.name]
        images = image_items(choice, self.id)
        if choice.content or not (calls or choice.refused or images):
            drawn = logprobs_of(choice.logprobs) if self.logprobs else []
            self.add(self.message_item(text_part(choice.content, drawn, choice.annotations), self.status))
        if choice.refused:
            self.add(self.message_item(refusal_part(choice.refusal), self.status))
        for index, call in calls:
            self.add(self.call_item(index, call, self.status))
        for item in (*images, *self.items_for_server(choice, answered_by)):
            self.add(item)

    @property
    def is_servers_own(self) -> bool:
        """Whether its items are a server's own."""
        return bool(self._sealed)

    def add(self, item: dict[str, Any]) -> None:
        """Add an item that is done."""
        self.output.append(item)
        self._earlier[str(item.get("id")).partition("_")[0]] += 1

    def add_own(self, item: dict[str, Any]) -> dict[str, Any]:
        """Add an item of a server with this API that is done; return it as the caller sees it."""
        item = self.ids.with_own_id(item)
        self._sealed.append(item)
        shown = item if self._seals else without_seals([item])[0]
        self.add(shown)
        return shown

    def opened(self, *, stored: bool) -> dict[str, Any]:
        """Return the Response with nothing in it yet. `stored`: whether it will be found by its id."""
        return self._shown("in_progress", [], None, stored=stored)

    def ended(self, end: ResponseEnd, *, stored: bool) -> dict[str, Any]:
        """Return the Response of a finished answer."""
        return self._shown(self.status, self.output, end, stored=stored)

    def to_store(self, end: ResponseEnd) -> dict[str, Any]:
        """Return it as it is stored: with sealed reasoning, which the server is to get back."""
        return self._shown(self.status, self._sealed or self.output, end, stored=True)

    def failed(self, error: ResponseError, end: ResponseEnd | None) -> dict[str, Any]:
        """Return the Response of an answer that broke. `end`: None where nothing was billed."""
        return self._shown("failed", [], end, stored=False) | {"error": error}

    def _shown(
        self, status: str, output: list[dict[str, Any]], end: ResponseEnd | None, *, stored: bool
    ) -> dict[str, Any]:
        shown = self._own | {
            "status": status,
            "output": output,
            "store": stored,
            "completed_at": end.completed_at if end and status != "failed" else None,
            "incomplete_details": {"reason": self._why_incomplete} if status == "incomplete" else None,
            "error": None,
            "usage": None if end is None else _usage(end.usage),
        }
        return shown if end is None else shown | {"x_aio": end.x_aio}

    def reasoning_item(self, text: str) -> dict[str, Any]:
        """What was thought before the answer, or between its items."""
        return self._reasoning(text, sealed(text) if text and self._seals else "")

    def items_for_server(self, choice: CollectedChoice, answered_by: str) -> list[dict[str, Any]]:
        """Return what the server of a finished answer needs back, as an item after all others, for a client that asked
        for it."""
        seal = carried(choice, answered_by) if self._seals and not self.is_servers_own else None
        return [] if seal is None else [self._reasoning("", seal)]

    def _reasoning(self, text: str, seal: str) -> dict[str, Any]:
        parts = [self.reasoning_part(text)] if text else []
        texts = {"summary": parts} if self.summarises else {"summary": [], "content": parts}
        item = {"id": self._item_id("rs"), "type": "reasoning", **texts}
        return item | {"encrypted_content": seal} if seal else item

    def reasoning_part(self, text: str) -> dict[str, Any]:
        """The only part of a reasoning item."""
        return {"type": "summary_text" if self.summarises else "reasoning_text", "text": text}

    def message_item(self, part: dict[str, Any], status: str) -> dict[str, Any]:
        """A message with this part, which is left out while it is in progress."""
        content = [] if status == "in_progress" else [part]
        item_id = self._item_id("msg")
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def call_item(self, index: int, call: Call, status: str) -> dict[str, Any]:
        """A call of a function, or of a custom tool."""
        tool = self._tools.get(call.name, CalledTool(call.name, None, is_custom=False))
        if tool.is_search:
            searched = {"status": status, "call_id": call.id, "execution": "client"}
            said = msgspec.json.decode(call.arguments) if is_object(call.arguments) else {}
            return {"id": f"tsc_{self.id}_{index}", "type": "tool_search_call", **searched, "arguments": said}
        custom = tool.is_custom
        call_input = {"input": input_of(call.arguments)} if custom else {"arguments": call.arguments}
        return {
            "id": f"{'ctc' if custom else 'fc'}_{self.id}_{index}",
            "type": "custom_tool_call" if custom else "function_call",
            "status": status,
            "call_id": call.id,
            "name": tool.name,
            **({} if tool.namespace is None else {"namespace": tool.namespace}),
            **call_input,
        }

    def _item_id(self, prefix: str) -> str:
        """The id of the next item of this kind: a stream may have several."""
        earlier = self._earlier[prefix]
        return f"{prefix}_{self.id}-{earlier}" if earlier else f"{prefix}_{self.id}"


def text_part(text: str, logprobs: list[Any], cited: Sequence[UrlCitation] = ()) -> dict[str, Any]:
    """The only part of a message: its text, with its log-probabilities and what it cites."""
    return {"type": "output_text", "text": text, "annotations": list(map(annotation, cited)), "logprobs": logprobs}


def refusal_part(text: str) -> dict[str, Any]:
    """The only part of a message that is no answer."""
    return {"type": "refusal", "refusal": text}


def annotation(cited: UrlCitation) -> dict[str, Any]:
    """What a text cites, as this API shows it."""
    return {"type": "url_citation", **msgspec.structs.asdict(cited)}


def logprobs_of(drawn: list[TextLogprob]) -> list[Any]:
    """Drawn tokens as this API shows them."""
    shown: list[Any] = msgspec.to_builtins(chat_logprobs(drawn).content)
    return shown


def _own(head: ResponseHead, request: ResponsesRequest) -> dict[str, Any]:
    """The fields that the request and its tier say."""
    form = {"type": "text"} if request.text is None or request.text.format is None else _set_fields(request.text.format)
    reasoning, sampling = request.reasoning, head.sampling
    return {name: getattr(request, name) for name in _SHOWN_AS_GIVEN} | {
        "id": head.id,
        "object": "response",
        "created_at": head.created_at,
        "model": head.model,
        "tools": [shown_tool(tool) for tool in request.tools or ()] if head.tools is None else head.tools,
        "tool_choice": shown_choice(request.tool_choice),
        "truncation": request.truncation or "disabled",
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "text": {"format": form, "verbosity": (request.text and request.text.verbosity) or "medium"},
        "temperature": sampling.temperature if request.temperature is None else request.temperature,
        "top_p": sampling.top_p if request.top_p is None else request.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": request.top_logprobs or 0,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": _asked_summary(request)},
        "background": False,
        "service_tier": head.service_tier,
        "metadata": request.metadata or {},
    }


def _asked_summary(request: ResponsesRequest) -> str | None:
    return None if request.reasoning is None else request.reasoning.summary or request.reasoning.generate_summary


def _set_fields(form: Any) -> dict[str, Any]:
    return {name: value for name in form.__struct_fields__ if (value := getattr(form, name)) is not None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponseWriter:
    """Writes an answer as a stream of events. The items that are done are the body's."""

    def __init__(self, body: ResponseBody) -> None:
        self.body = body
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

    def begin(self, *, stored: bool) -> bytes:
        """Return the events of the Response with nothing in it yet. `stored`: see `ResponseBody.opened`."""
        response = self.body.opened(stored=stored)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, delta: Delta) -> bytes:
        """Events for one delta; empty if it says nothing new."""
        own = delta.opaque
        if own is not None and own.dialect == "responses" and (own.event or own.block is None):
            events = self._as_is(own.event) if own.event else b""
            if events is not None:
                return events
        if delta.logprobs and self.body.logprobs and not delta.reasoning:
            self._drawn += delta.logprobs
        plain = not (delta.reasoning or delta.tool_calls or delta.refusal or delta.annotations)
        if delta.text and self._order.passes_text and plain:
            return self._grow(delta.text)
        events = b"".join(self._show(ready) for piece in pieces_of(delta) for ready in self._order.put(piece))
        return events + self._cite(delta.annotations) if delta.annotations else events

    def finish(self, choice: CollectedChoice, answered_by: str) -> None:
        """No further delta comes: make the events of what is still open or waits. The body then holds all items.
        `answered_by`: the server and model."""
        if self._last is not None:
            return
        self.body.finish(choice)
        events = b"".join(map(self._show, self._order.rest()))
        images = image_items(choice, self.body.id)
        if self._open is None and not (self.body.is_servers_own or images):
            events += self._begin(Piece("text", ""))
        events += self._done()
        for item in (*images, *self.body.items_for_server(choice, answered_by)):
            events += self._whole_item(item, self._index)
            self.body.add(item)
        self._last = events

    def end(self, end: ResponseEnd, *, stored: bool) -> bytes:
        """Return the last items, and the Response as a whole. Call `finish` before."""
        response = self.body.ended(end, stored=stored)
        return (self._last or b"") + self._event(f"response.{self.body.status}", response=response)

    def fail(self, error: ResponseError, end: ResponseEnd | None) -> bytes:
        """Return the Response, with what went wrong."""
        return self._event("response.failed", response=self.body.failed(error, end))

    def fail_at_once(self, error: ResponseError) -> bytes:
        """Return the events of a Response that failed before anything of it came."""
        created = self._event("response.created", response=self.body.opened(stored=False))
        return created + self.fail(error, None)

    def _as_is(self, data: bytes) -> bytes | None:
        """An event of a server with this API, with our number and ids; None for one about an item that it never began,
        whose events are ours."""
        event = msgspec.json.decode(data, type=dict[str, Any])
        kind, item, events = str(event["type"]), event.get("item"), b""
        if item is None:
            if event.get("item_id") not in self._added:
                return None
            event["item_id"] = self.body.ids.of(event["item_id"])
        elif kind == "response.output_item.done":
            if self._open is not None and item.get("type") == "message":
                return b""
            events, event["item"] = self._done(), self.body.add_own(item)
        else:
            self._added.add(str(item.get("id")))
            events, event["item"] = self._done(), self.body.ids.with_own_id(item)
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
        for citation in cited:
            where = {"content_index": 0, "annotation_index": len(self._cited)}
            events += self._growth("response.output_text.annotation.added", **where, annotation=annotation(citation))
            self._cited.append(citation)
        return events

    def _done(self) -> bytes:
        """End the item under way, if there is one."""
        if self._open is None:
            return b""
        if self._open.key == "text" and self._drawn:
            self._logprobs += logprobs_of(self._drawn)
            self._drawn = []
        said, item = "".join(self._said), self._item(self._status)
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
        self.body.add(item)
        self._open = None
        return events

    def _item(self, status: str) -> dict[str, Any]:
        """The item under way; one that has just started shows nothing but a call's name."""
        piece, said = self._open or Piece("text", ""), "".join(self._said)
        if piece.key == "thinking":
            return self.body.reasoning_item(said)
        if piece.key == "text":
            return self.body.message_item(text_part(said, self._logprobs, self._cited), status)
        if piece.key == "refusal":
            return self.body.message_item(refusal_part(said), status)
        first = piece.call or ToolCallDelta(index=0)
        call = Call(id=first.id, name=first.name, arguments=said)
        return self.body.call_item(first.index, call, status)

    def _whole_item(self, item: dict[str, Any], index: int) -> bytes:
        return b"".join(
            self._event(f"response.output_item.{stage}", output_index=index, item=item) for stage in ("added", "done")
        )

    @property
    def _status(self) -> str:
        """Of an item that is done: one that ends before the answer does is complete."""
        return "completed" if self.body.status == "in_progress" else self.body.status

    @property
    def _index(self) -> int:
        return len(self.body.output)

    def _input(self, text: str) -> bytes:
        return self._growth("response.custom_tool_call_input.delta", delta=text) if text else b""

    def _thoughts(self, what: str, **fields: Any) -> bytes:
        if self.body.summarises:
            return self._growth(f"response.reasoning_summary_text.{what}", summary_index=0, **fields)
        return self._growth(f"response.reasoning_text.{what}", content_index=0, **fields)

    def _thoughts_part(self, what: str, said: str) -> bytes:
        part = self.body.reasoning_part(said)
        if self.body.summarises:
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


def _event(kind: str, number: int, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, "sequence_number": number, **fields}))


class CompactedBody(ResponseBody):
    """A Response whose only item is the summary."""

    def take(self, choice: CollectedChoice, answered_by: str) -> None:
        self.finish(choice)
        self.add({"id": f"cmp_{self.id}", "type": "compaction", "encrypted_content": sealed(choice.text)})


class CompactedWriter(ResponseWriter):
    """Writes it as events: the item comes whole, at the end."""

    def piece(self, delta: Delta) -> bytes:
        return b""

    def finish(self, choice: CollectedChoice, answered_by: str) -> None:
        if self._last is None:
            self.body.take(choice, answered_by)
            (item,) = self.body.output
            self._last = self._whole_item(item, 0)


def compacted(body: ResponseBody, end: ResponseEnd, said: ResponsesRequest) -> dict[str, Any]:
    """Return the answer to a request that is for a compaction alone: the last of what the user said, and the summary.
    `said`: what it was asked with."""
    response = body.ended(end, stored=False)
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
