"""Amazon Bedrock's Converse API, as its servers have it."""

import re
from collections import Counter
from typing import Any
from urllib.parse import quote

import msgspec

from tiers.conversation import Dialect, Media, Opaque, OpaquePiece, Text, Tooling, Turn
from tiers.dialects.dialect import (
    Blocks,
    MediaBody,
    ServerCall,
    ServerDialect,
    StreamParser,
    alternating,
    answer_schema,
    blocks_of,
    check_provider,
    is_system,
    media_of,
    media_parts,
    system_text,
)
from tiers.dialects.event_stream import EventStreamParser, ServerSentEvent
from tiers.dialects.lenient_json import LenientDecoder, arguments_text
from tiers.dialects.messages_server import dropped_sampling, dropped_thinking, sampling_fields, thinking_fields
from tiers.dialects.rules import BUDGET, dropped_fields
from tiers.dialects.server_error import ErrorObject, ServerSaidError, parse_error
from tiers.dialects.usage_counter import Tally
from tiers.errors import TierRequestError
from tiers.tier import Delta, GenerationRequest, Usage

NAME = "Bedrock"
CACHE_POINT = {"cachePoint": {"type": "default"}}
MOST_POINTS = 4
"""Of one request."""
_SAMPLING = {"temperature": "temperature", "top_p": "topP"}
_KNOWN = frozenset({*_SAMPLING, "top_k", "reasoning_effort", BUDGET})
_SERVICE_TIERS = ("priority", "default", "flex")
_SEALED = "sealed thoughts"
# What Bedrock's own client takes as a tag.
_TAG = re.compile(r"[a-zA-Z0-9\s:_@$#=/+,.-]{0,256}")


class ConverseServer(ServerDialect):
    """Bedrock's runtime in one region."""

    marks_cache = True
    form: Dialect | None = "bedrock"

    def parser(self) -> StreamParser:
        return EventStreamParser()

    def is_about_model(self, error: ErrorObject) -> bool:
        return "model identifier" in error.words or "on-demand throughput" in error.words

    def check(self, request: GenerationRequest) -> None:
        check_provider(request, NAME)
        if answer_schema(request, NAME) is not None:
            raise TierRequestError(
                f"response_format: {NAME}'s Converse has no structured output; leave it out, or name another tier",
                "response_format",
            )
        for block in media_parts(request):
            _inline(block)

    def call(self, request: GenerationRequest, max_tokens: int | None) -> ServerCall:
        messages = request.messages or []
        streamed = self.is_streamed(request)
        body: dict[str, Any] = {"messages": message_turns(messages)}
        inference: dict[str, Any] = {} if max_tokens is None else {"maxTokens": max_tokens}
        if (system := system_text(messages)).strip():
            body["system"] = [{"text": system}]
        if request.stop:
            inference["stopSequences"] = list(request.stop)
        if tools := _tools(request, messages):
            body["toolConfig"] = tools
        added = self._mark(body, request, messages)
        further = self._thinking(request, max_tokens)
        sampling = sampling_fields(request, further)
        sampling.pop("top_k", None)
        inference |= {_SAMPLING[name]: value for name, value in sampling.items()}
        if inference:
            body["inferenceConfig"] = inference
        if further:
            body["additionalModelRequestFields"] = further
        passed, known = _passed(request.passed)
        dropped = dropped_fields(request, _KNOWN | known)
        dropped += dropped_sampling(request, sampling) + dropped_thinking(request, further)
        if tools and request.tooling is not None and request.tooling.choice == "none":
            dropped += ("tool_choice",)
        path = f"model/{quote(self._remote.model, safe='')}/"
        path += "converse-stream" if streamed else "converse"
        body, unknown = self.with_own_fields(body | passed, request)
        return ServerCall(path, _encode(body), streamed, dropped + unknown, added)

    def _mark(self, body: dict[str, Any], request: GenerationRequest, messages: list[Turn]) -> tuple[str, ...]:
        """Say what is to be cached: what the caller has marked, else all so far where that pays. Returns the names of
        fields that no caller set."""
        if not self.rules.cache_points:
            return ()
        if _is_marked(messages, request.tooling):
            tools = request.tooling is not None and any(tool.cache_control for tool in request.tooling.tools)
            tools = tools and self.rules.cache_tools
            system = any(message.cache_mark for message in messages if is_system(message))
            _put_points(body, tools=tools, system=system, last=False)
            return ()
        if not request.cache_reuse:
            return ()
        _put_points(body, tools=self.rules.cache_tools, system=True, last=True)
        return ("cache_control",)

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """See `ServerDialect.read_event`: the usage comes last."""
        blocks = blocks_of(tally)
        kind, _, name = event.event.partition(" ")
        if kind == "exception":
            error = parse_error(event.data)
            error.type = error.type or name
            raise ServerSaidError(error)
        said = _decode(event.data, tally)
        match event.event:
            case "contentBlockDelta" if said.delta is not None:
                if tally.opaque and said.delta.reasoning_content is not None:
                    _thought_of(said.content_block_index, tally).add(said.delta.reasoning_content)
                return _delta(said.content_block_index, said.delta, blocks)
            case "contentBlockStart":
                call = said.start.tool_use if said.start is not None else None
                if call is not None:
                    given = arguments_text(call.input) or "{}"
                    return [blocks.open_call(said.content_block_index, call.tool_use_id, call.name, given)]
            case "contentBlockStop":
                thought: _Sealed | None = tally.notes.pop((_SEALED, said.content_block_index), None)
                return blocks.close(said.content_block_index) + ([] if thought is None else thought.pieces())
            case "messageStop" if said.stop_reason is not None:
                return [Delta(finish_reason=blocks.finish(said.stop_reason))]
            case "metadata":
                _report(said.usage, tally)
            case "messageStart":
                pass
            case _:
                blocks.unknown = blocks.unknown or f"events of the type {event.event!r}"
        return []

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        blocks = blocks_of(tally)
        said = _decode(body, tally)
        _report(said.usage, tally)
        message = said.output.message if said.output is not None else None
        content = message.content if message is not None else []
        if said.output is None:
            blocks.not_known(body, "no output")
        deltas: list[Delta] = []
        for index, block in enumerate(content):
            if block.tool_use is not None:
                given = arguments_text(block.tool_use.input)
                deltas.append(blocks.open_call(index, block.tool_use.tool_use_id, block.tool_use.name, given))
                deltas += blocks.close(index)
            elif block.reasoning_content is not None:
                said_thought = block.reasoning_content.reasoning_text
                deltas += blocks.reasoning(said_thought.text if said_thought is not None else "")
                if tally.opaque:
                    sealed = _Sealed()
                    sealed.add(block.reasoning_content)
                    deltas += sealed.pieces()
            elif (cited := block.citations_content) is not None:
                deltas += blocks.text("".join(one.text for one in cited.content)) + _cited(cited.citations, blocks)
            elif block.text is not None:
                deltas += blocks.text(block.text)
            else:
                blocks.unknown = blocks.unknown or "a block of an unknown kind"
        return deltas if said.stop_reason is None else [*deltas, Delta(finish_reason=blocks.finish(said.stop_reason))]

    def _thinking(self, request: GenerationRequest, max_tokens: int | None) -> dict[str, Any]:
        """Return Anthropic's fields for its models; the others' have no common form."""
        _, is_claude, model = self._remote.model.partition("anthropic.")
        return thinking_fields(model, request, max_tokens) if is_claude else {}


class _ToolUse(msgspec.Struct, rename="camel"):
    """As it starts, or whole with its input (an object)."""

    tool_use_id: str = ""
    name: str = ""
    input: Any = None


class _ToolInput(msgspec.Struct):
    """A piece of the text; some models' whole object."""

    input: Any = None


class _Thought(msgspec.Struct):
    text: str = ""
    signature: str = ""


class _Reasoning(msgspec.Struct, rename="camel"):
    """A piece has `text` or `signature`, a whole block `reasoning_text`; of hidden thoughts there is `redacted_content`
    alone, in base64."""

    text: str | None = None
    signature: str | None = None
    redacted_content: str | None = None
    reasoning_text: _Thought | None = None


class _Sealed:
    """A block of thoughts as it grows, for its model."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._signature = self._redacted = ""

    def add(self, more: _Reasoning) -> None:
        """Add a piece, or a whole block."""
        whole = more.reasoning_text or _Thought()
        self._texts += filter(None, (more.text, whole.text))
        self._signature += (more.signature or "") + whole.signature
        self._redacted += more.redacted_content or ""

    def pieces(self) -> list[Delta]:
        """Return the finished block; nothing without a signature, as then it is not needed."""
        if not (seal := self._signature or self._redacted):
            return []
        thought: dict[str, Any] = {"redactedContent": self._redacted}
        if self._signature:
            thought = {"reasoningText": {"text": "".join(self._texts), "signature": self._signature}}
        block = Opaque("bedrock", _encode({"reasoningContent": thought}), "thinking", seal)
        return [Delta(opaque=OpaquePiece("bedrock", block=block))]


class _Start(msgspec.Struct, rename="camel"):
    tool_use: _ToolUse | None = None


class _Web(msgspec.Struct, frozen=True):
    url: str = ""


class _Location(msgspec.Struct, frozen=True):
    web: _Web = _Web()


class _Cited(msgspec.Struct):
    title: str | None = None
    location: _Location = _Location()


class _Text(msgspec.Struct):
    text: str = ""


class _CitedText(msgspec.Struct):
    content: list[_Text] = []
    citations: list[_Cited] = []


class _Piece(msgspec.Struct, rename="camel"):
    text: str | None = None
    citation: _Cited | None = None
    tool_use: _ToolInput | None = None
    reasoning_content: _Reasoning | None = None


class _Block(msgspec.Struct, rename="camel"):
    text: str | None = None
    citations_content: _CitedText | None = None
    tool_use: _ToolUse | None = None
    reasoning_content: _Reasoning | None = None


class _Message(msgspec.Struct):
    content: list[_Block] = []


class _Output(msgspec.Struct):
    message: _Message | None = None


class _Counts(msgspec.Struct, rename="camel"):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0


class _Event(msgspec.Struct, rename="camel"):
    """The payload of any event of a stream, or a whole answer."""

    content_block_index: int = 0
    start: _Start | None = None
    delta: _Piece | None = None
    stop_reason: str | None = None
    usage: _Counts | None = None
    output: _Output | None = None


NO_OUTPUT = "(no output)"
"""What a tool said that said nothing: no text may be blank."""
_FORMATS = frozenset({"pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md"})


def message_turns(messages: list[Turn]) -> list[dict[str, Any]]:
    """Return the conversation as Converse has it: turns alternate, and results of tools are a user's blocks."""
    turns = alternating(messages, _marked_blocks)
    named = Counter[str]()
    for turn in turns:
        documents = [block["document"] for block in turn["content"] if isinstance(block, dict) and "document" in block]
        for document in documents:
            name = document["name"]
            named[name] += 1
            document["name"] = f"{name} ({named[name]})" if named[name] > 1 else name
        if documents and not any(isinstance(block, dict) and "text" in block for block in turn["content"]):
            turn["content"].insert(0, {"text": documents[0]["name"]})
    return turns


def _marked_blocks(message: Turn) -> list[dict[str, Any]]:
    blocks = _blocks_of(message)
    return [*blocks, CACHE_POINT] if message.cache_mark and blocks else blocks


def _blocks_of(message: Turn) -> list[Any]:
    # Thoughts of its own come first.
    content: list[Any] = [msgspec.Raw(block.json) for block in message.written("bedrock") if block.json]
    content += content_blocks(message)
    if message.role == "tool":
        result = {"toolUseId": message.call_id or "", "content": content or [{"text": NO_OUTPUT}]}
        content = [{"toolResult": result}]
    return content + [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.object_arguments()}}
        for call in message.calls
    ]


def content_blocks(message: Turn) -> list[dict[str, Any]]:
    """Return the parts of a message as Converse has them. Raises TierRequestError."""
    blocks: list[dict[str, Any]] = []
    for block in message.content_blocks:
        if isinstance(block, Text):
            blocks += [{"text": block.text}] if block.text.strip() else []
            continue
        media = _inline(block)
        subtype = media.type.partition("/")[2]
        if media.kind == "image":
            blocks.append({"image": {"format": subtype, "source": {"bytes": media.data}}})
        else:
            ending = media.name.rpartition(".")[2].lower()
            known = subtype in _FORMATS or ending not in _FORMATS
            kind = {"plain": "txt", "markdown": "md"}.get(subtype, subtype) if known else ending
            # Names may hold few characters; each stands only once in a conversation (`message_turns`).
            name = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", " ", media.name).strip() or "file"
            blocks.append({"document": {"format": kind, "name": name, "source": {"bytes": media.data}}})
    return blocks


def _inline(block: Media) -> MediaBody:
    media = media_of(block, NAME)
    if media.url or media.kind in ("audio", "video"):
        what = media.kind if media.kind in ("audio", "video") else "an address of an image or file; send its data"
        raise TierRequestError(f"messages: {NAME} does not read {what}", "messages")
    return media


def _passed(passed: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the fields for the caller's tags and its class of service, and which names these are."""
    fields: dict[str, Any] = {}
    known: set[str] = set()
    tags, tier = passed.get("metadata"), passed.get("service_tier")
    if tags and all(_TAG.fullmatch(text) for pair in tags.items() for text in pair):
        fields["requestMetadata"] = tags
        known.add("metadata")
    if tier in _SERVICE_TIERS:
        fields["serviceTier"] = {"type": tier}
        known.add("service_tier")
    return fields, frozenset(known)


def _tools(request: GenerationRequest, messages: list[Turn]) -> dict[str, Any]:
    """Return the tools; those that were called before are always needed. Converse has no choice `none`."""
    tooling = request.tooling
    called = {call.name for message in messages for call in message.calls}
    declared = {tool.name: tool for tool in (tooling.tools if tooling is not None else ())}
    if not called and (tooling is None or tooling.choice == "none"):
        return {}
    specs = []
    for name in [*declared, *sorted(called - declared.keys())]:
        tool = declared.get(name)
        schema = {"type": "object"} if tool is None else {"type": "object", **tool.schema}
        spec: dict[str, Any] = {"name": name, "inputSchema": {"json": schema}}
        specs.append({"toolSpec": spec | ({"description": tool.description} if tool and tool.description else {})})
    config: dict[str, Any] = {"tools": specs}
    if tooling is not None and tooling.choice == "required":
        config["toolChoice"] = {"any": {}}
    elif tooling is not None and tooling.choice == "named":
        config["toolChoice"] = {"tool": {"name": tooling.name}}
    return config


def _is_marked(messages: list[Turn], tooling: Tooling | None) -> bool:
    tools = () if tooling is None else tooling.tools
    return any(message.cache_mark for message in messages) or any(tool.cache_control is not None for tool in tools)


def _put_points(body: dict[str, Any], *, tools: bool, system: bool, last: bool) -> None:
    """Put cache points into a body of Converse: after its tools, its system prompt and its last turn, as asked. Those
    after marked messages are there already; of too many the earliest are taken out."""
    if tools and "toolConfig" in body:
        body["toolConfig"]["tools"].append(CACHE_POINT)
    if system and "system" in body:
        body["system"].append(CACHE_POINT)
    turn = body["messages"][-1]["content"]
    if last and turn and turn[-1] != CACHE_POINT:
        turn.append(CACHE_POINT)
    room = MOST_POINTS - (CACHE_POINT in body.get("system", ()))
    room -= CACHE_POINT in body.get("toolConfig", {}).get("tools", ())
    for one in reversed(body["messages"]):
        kept = []
        for block in reversed(one["content"]):
            if block == CACHE_POINT:
                room -= 1
                if room < 0:
                    continue
            kept.append(block)
        one["content"] = kept[::-1]


def _thought_of(block: int, tally: Tally) -> _Sealed:
    found: _Sealed = tally.notes.setdefault((_SEALED, block), _Sealed())
    return found


def _delta(block: int, delta: _Piece, blocks: Blocks) -> list[Delta]:
    if delta.text is not None:
        return blocks.text(delta.text)
    if delta.tool_use is not None:
        return blocks.arguments(block, arguments_text(delta.tool_use.input))
    if delta.reasoning_content is not None:
        return blocks.reasoning(delta.reasoning_content.text or "")
    if delta.citation is not None:
        return _cited([delta.citation], blocks)
    blocks.unknown = blocks.unknown or "deltas of an unknown kind"
    return []


def _cited(cited: list[_Cited], blocks: Blocks) -> list[Delta]:
    return blocks.cited((one.location.web.url, one.title) for one in cited)


def _report(counts: _Counts | None, tally: Tally) -> None:
    """Store the counts; those of the cache come on top of `inputTokens`."""
    if counts is None:
        return
    cached, written = counts.cache_read_input_tokens, counts.cache_write_input_tokens
    tally.report(
        Usage(
            prompt_tokens=counts.input_tokens + cached + written or tally.prompt_tokens,
            completion_tokens=counts.output_tokens,
            cached_tokens=cached,
            cache_write_tokens=written,
        )
    )


_encode = msgspec.json.Encoder().encode
_decode = LenientDecoder(_Event, f"an answer of {NAME}'s")
