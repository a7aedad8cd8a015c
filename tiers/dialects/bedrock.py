"""Amazon Bedrock's Converse API, as its servers have it."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from inference_core.io.files import JSON_ERRORS
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
    fields_of,
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
from tiers.tier import Delta, ModelRequest, Usage

NAME = "Bedrock"
MOST_POINTS = 4
"""Of one request."""
_SAMPLING = ("temperature", "top_p")
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

    def check(self, request: ModelRequest) -> None:
        check_provider(request, NAME)
        if answer_schema(request, NAME) is not None:
            raise TierRequestError(
                f"response_format: {NAME}'s Converse has no structured output; leave it out, or name another tier",
                "response_format",
            )
        for block in media_parts(request):
            _inline(block)

    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        messages = request.messages or []
        streamed = self.is_streamed(request)
        system, tools = system_text(messages), _tools(request, messages)
        further = self._thinking(request, max_tokens)
        sampling = sampling_fields(request, further)
        sampling.pop("top_k", None)
        inference = _InferenceConfig(max_tokens=max_tokens, stop_sequences=list(request.stop) or None, **sampling)
        metadata, service_tier, passed_names = _passed(request.passed)
        asked = _ConverseRequest(
            messages=message_turns(messages),
            system=[_Block(text=system)] if system.strip() else None,
            tool_config=tools,
            inference_config=None if inference == _InferenceConfig() else inference,
            additional_model_request_fields=further or None,
            request_metadata=metadata,
            service_tier=service_tier,
        )
        added = self._mark(asked, request, messages)
        dropped = dropped_fields(request, _KNOWN | passed_names)
        dropped += dropped_sampling(request, sampling) + dropped_thinking(request, further)
        if tools is not None and request.tooling is not None and request.tooling.choice == "none":
            dropped += ("tool_choice",)
        path = f"model/{quote(self._remote.model, safe='')}/"
        path += "converse-stream" if streamed else "converse"
        body, unknown = self.with_own_fields(fields_of(asked), request)
        return ServerCall(path, _encode(body), streamed, dropped + unknown, added)

    def _mark(self, asked: "_ConverseRequest", request: ModelRequest, messages: list[Turn]) -> tuple[str, ...]:
        """Say what is to be cached: what the caller has marked, else all so far where that pays. Returns the names of
        fields that no caller set."""
        if not self.rules.cache_points:
            return ()
        if _is_marked(messages, request.tooling):
            tools = request.tooling is not None and any(tool.cache_control for tool in request.tooling.tools)
            tools = tools and self.rules.cache_tools
            system = any(message.cache_mark for message in messages if is_system(message))
            _put_points(asked, tools=tools, system=system, last=False)
            return ()
        if not request.cache_reuse:
            return ()
        _put_points(asked, tools=self.rules.cache_tools, system=True, last=True)
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
                    arguments = arguments_text(call.input) or "{}"
                    return [blocks.open_call(said.content_block_index, call.tool_use_id, call.name, arguments)]
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
                arguments = arguments_text(block.tool_use.input)
                deltas.append(blocks.open_call(index, block.tool_use.tool_use_id, block.tool_use.name, arguments))
                deltas += blocks.close(index)
            elif block.reasoning_content is not None:
                said_thought = block.reasoning_content.reasoning_text
                deltas += blocks.reasoning(said_thought.text if said_thought is not None else "")
                if tally.opaque:
                    sealed = _Sealed()
                    sealed.add(block.reasoning_content)
                    deltas += sealed.pieces()
            elif (cited := block.citations_content) is not None:
                deltas += blocks.text("".join(piece.text for piece in cited.content)) + _cited(cited.citations, blocks)
            elif block.text is not None:
                deltas += blocks.text(block.text)
            else:
                blocks.unknown = blocks.unknown or "a block of an unknown kind"
        return deltas if said.stop_reason is None else [*deltas, Delta(finish_reason=blocks.finish(said.stop_reason))]

    def _thinking(self, request: ModelRequest, max_tokens: int | None) -> dict[str, Any]:
        """Return Anthropic's fields for its models; the others' have no common form."""
        _, is_claude, model = self._remote.model.partition("anthropic.")
        return thinking_fields(model, request, max_tokens) if is_claude else {}


class _Form(msgspec.Struct, rename="camel", omit_defaults=True):
    """One that is written has the fields that are set."""


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


class _Reasoning(_Form):
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
        thought = _Reasoning(redacted_content=self._redacted)
        if self._signature:
            thought = _Reasoning(reasoning_text=_Thought("".join(self._texts), self._signature))
        block = Opaque("bedrock", _encode(_Block(reasoning_content=thought)), "thinking", seal)
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


class _MediaSource(msgspec.Struct):
    bytes: str = ""


class _Image(msgspec.Struct):
    format: str = ""
    source: _MediaSource | None = None


class _Document(_Image):
    name: str = ""


class _ToolResult(msgspec.Struct, rename="camel"):
    tool_use_id: str = ""
    content: "list[_Block]" = []


class _CachePoint(msgspec.Struct):
    type: str = "default"


class _Block(_Form):
    """A part of a turn: one field says what it is."""

    text: str | None = None
    citations_content: _CitedText | None = None
    tool_use: _ToolUse | None = None
    reasoning_content: _Reasoning | None = None
    image: _Image | None = None
    document: _Document | None = None
    tool_result: _ToolResult | None = None
    cache_point: _CachePoint | None = None


class _Message(msgspec.Struct):
    role: str = ""
    content: list[_Block] = []


class _ToolSpec(_Form):
    name: str
    input_schema: dict[Literal["json"], dict[str, Any]]
    description: str | None = None


class _Tool(_Form):
    tool_spec: _ToolSpec | None = None
    cache_point: _CachePoint | None = None


class _NamedTool(msgspec.Struct):
    name: str | None


class _ToolChoice(_Form):
    any: dict[str, Any] | None = None
    tool: _NamedTool | None = None


class _ToolConfig(_Form):
    tools: list[_Tool]
    tool_choice: _ToolChoice | None = None


class _InferenceConfig(_Form):
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None


class _ServiceTier(msgspec.Struct):
    type: str


class _ConverseRequest(_Form):
    """`POST /model/MODEL/converse` and `/converse-stream`."""

    messages: list[_Message]
    system: list[_Block] | None = None
    tool_config: _ToolConfig | None = None
    inference_config: _InferenceConfig | None = None
    additional_model_request_fields: dict[str, Any] | None = None
    """Fields of the model's own provider."""
    request_metadata: dict[str, str] | None = None
    service_tier: _ServiceTier | None = None


_CACHE_POINT = _Block(cache_point=_CachePoint())


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


def message_turns(messages: list[Turn]) -> list[_Message]:
    """Return the conversation as Converse has it: turns alternate, and results of tools are a user's blocks."""
    named = Counter[str]()
    turns: list[_Message] = []
    for is_assistant, content in alternating(messages, _marked_blocks):
        documents = [block.document for block in content if block.document is not None]
        for document in documents:
            name = document.name
            named[name] += 1
            document.name = f"{name} ({named[name]})" if named[name] > 1 else name
        if documents and not any(block.text is not None for block in content):
            content.insert(0, _Block(text=documents[0].name))
        turns.append(_Message(role="assistant" if is_assistant else "user", content=content))
    return turns


def _marked_blocks(message: Turn) -> list[_Block]:
    blocks = _blocks_of(message)
    return [*blocks, _CACHE_POINT] if message.cache_mark and blocks else blocks


def _own_blocks(message: Turn) -> Iterator[_Block]:
    """Yield the thoughts of a turn; what a client carried in their place, and is none, is left out."""
    for block in message.written("bedrock"):
        with suppress(*JSON_ERRORS):
            yield _decode_block(block.json)


def _blocks_of(message: Turn) -> list[_Block]:
    # Thoughts of its own come first.
    content = [*_own_blocks(message), *content_blocks(message)]
    if message.role == "tool":
        result = _ToolResult(message.call_id or "", content or [_Block(text=NO_OUTPUT)])
        content = [_Block(tool_result=result)]
    return content + [_Block(tool_use=_ToolUse(call.id, call.name, call.object_arguments())) for call in message.calls]


def content_blocks(message: Turn) -> list[_Block]:
    """Return the parts of a message as Converse has them. Raises TierRequestError."""
    blocks: list[_Block] = []
    for block in message.content_blocks:
        if isinstance(block, Text):
            blocks += [_Block(text=block.text)] if block.text.strip() else []
            continue
        media = _inline(block)
        subtype, source = media.type.partition("/")[2], _MediaSource(media.data)
        if media.kind == "image":
            blocks.append(_Block(image=_Image(subtype, source)))
        else:
            ending = media.name.rpartition(".")[2].lower()
            has_known_type = subtype in _FORMATS or ending not in _FORMATS
            kind = {"plain": "txt", "markdown": "md"}.get(subtype, subtype) if has_known_type else ending
            # Names may hold few characters; each stands only once in a conversation (`message_turns`).
            name = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", " ", media.name).strip() or "file"
            blocks.append(_Block(document=_Document(kind, source, name)))
    return blocks


def _inline(block: Media) -> MediaBody:
    media = media_of(block, NAME)
    if media.url or media.kind in ("audio", "video"):
        what = media.kind if media.kind in ("audio", "video") else "an address of an image or file; send its data"
        raise TierRequestError(f"messages: {NAME} does not read {what}", "messages")
    return media


def _passed(passed: dict[str, Any]) -> tuple[dict[str, str] | None, _ServiceTier | None, set[str]]:
    """Return the caller's tags and its class of service as Converse takes them, and by which names it does."""
    tags, tier = passed.get("metadata") or {}, passed.get("service_tier")
    metadata = tags if tags and all(_TAG.fullmatch(text) for pair in tags.items() for text in pair) else None
    service_tier = None if tier not in _SERVICE_TIERS else _ServiceTier(tier)
    taken = {"metadata": metadata, "service_tier": service_tier}
    return metadata, service_tier, {name for name, value in taken.items() if value is not None}


def _tools(request: ModelRequest, messages: list[Turn]) -> _ToolConfig | None:
    """Return the tools; those that were called before are always needed. Converse has no choice `none`."""
    tooling = request.tooling
    called = {call.name for message in messages for call in message.calls}
    declared = {tool.name: tool for tool in (tooling.tools if tooling is not None else ())}
    if not called and (tooling is None or tooling.choice == "none"):
        return None
    tools = []
    for name in [*declared, *sorted(called - declared.keys())]:
        tool = declared.get(name)
        schema = {"type": "object"} if tool is None else {"type": "object", **tool.schema}
        description = None if tool is None else tool.description or None
        tools.append(_Tool(tool_spec=_ToolSpec(name, {"json": schema}, description)))
    choice = None
    if tooling is not None and tooling.choice == "required":
        choice = _ToolChoice(any={})
    elif tooling is not None and tooling.choice == "named":
        choice = _ToolChoice(tool=_NamedTool(tooling.name))
    return _ToolConfig(tools, choice)


def _is_marked(messages: list[Turn], tooling: Tooling | None) -> bool:
    tools = () if tooling is None else tooling.tools
    return any(message.cache_mark for message in messages) or any(tool.cache_control is not None for tool in tools)


def _put_points(asked: _ConverseRequest, *, tools: bool, system: bool, last: bool) -> None:
    """Put cache points into a request: after its tools, its system prompt and its last turn, as asked. Those after
    marked messages are there already; of too many the earliest are taken out."""
    room = MOST_POINTS
    if tools and asked.tool_config is not None:
        asked.tool_config.tools.append(_Tool(cache_point=_CachePoint()))
        room -= 1
    if system and asked.system is not None:
        asked.system.append(_CACHE_POINT)
        room -= 1
    turn = asked.messages[-1].content
    if last and turn and turn[-1] != _CACHE_POINT:
        turn.append(_CACHE_POINT)
    for message in reversed(asked.messages):
        blocks = []
        for block in reversed(message.content):
            if block == _CACHE_POINT:
                room -= 1
                if room < 0:
                    continue
            blocks.append(block)
        message.content = blocks[::-1]


def _thought_of(block: int, tally: Tally) -> _Sealed:
    thought: _Sealed = tally.notes.setdefault((_SEALED, block), _Sealed())
    return thought


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
    return blocks.cited((citation.location.web.url, citation.title) for citation in cited)


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
_decode_block = msgspec.json.Decoder(_Block).decode
