"""Read a request of Anthropic's Messages API: what decoding could not check is checked here.

Ids of calls are as Anthropic's clients expect them: in its characters, and never twice in a conversation. A server's
own id that is neither is carried inside, so that the server gets it back.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from inference_core.protocol import Grammar
from tiers.conversation import (
    FAILED_RESULT,
    Call,
    Content,
    FieldNames,
    Media,
    Opaque,
    OpaqueFields,
    ReadRequest,
    Text,
    Tool,
    Tooling,
    Turn,
)
from tiers.dialects.caller_urls import refuse_turn, refuse_urls
from tiers.dialects.chat_request import BILLING_HEADER, check_sizes, medium, text_of, without_billing
from tiers.dialects.constraints import chosen_name, distinct, function_tool, schema_answer
from tiers.dialects.decoding import decoded, missing
from tiers.dialects.messages import (
    BETAS,
    DIALECT,
    INTERLEAVED,
    PROVIDERS_OWN,
    TURN,
    UNSIGNED,
    Block,
    CountTokensRequest,
    MessagesRequest,
    MessageTurn,
    ResultBlock,
    Source,
    Thinking,
    ToolChoice,
    ToolEntry,
    given_call_id,
)
from tiers.dialects.messages import Text as TextBlock
from tiers.errors import BadRequestError

_encode = msgspec.json.Encoder().encode

# How a caller calls what has other names in a chat.
_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "user": "metadata.user_id",
    "messages.reasoning_content": "messages.content.thinking",
}
# What only a server with this API understands, or understands more exactly.
_OPAQUE = (
    "tool_choice", "thinking", "output_config", "cache_control", "context_management", "container", "inference_geo",
    "mcp_servers", "speed",
)  # fmt: skip
# Without them the answer is another one, so no other tier can give it.
_PROVIDERS_OWN = ("mcp_servers", "container")
_LOST_ELSEWHERE = ("inference_geo", "speed")
_UPLOADS = {"container_upload"}
_MARK = b'"cache_control"'
_SAMPLING = ("temperature", "top_p", "top_k")
_sampling_of = attrgetter(*_SAMPLING)
# Types of tools that every model can call; `function` is OpenAI's, and refused.
_CALLERS = (None, "custom", "function")
# Anthropic's tools that the caller runs: without one, the model could not do what it is asked for.
_CALLERS_OWN = ("bash_", "text_editor_", "computer_", "memory_")
# Between blocks, which are paragraphs of their own. An assistant's are pieces of one text.
_BETWEEN = "\n\n"
# Parts of OpenAI's APIs.
_CHATS_OWN = ("input_text", "output_text", "refusal", "image_url", "input_image", "file", "input_file")
_READ = ("text", "image", "document", "search_result", "tool_result")
_THOUGHTS = ("thinking", "redacted_thinking")


def read_messages(body: CountTokensRequest, betas: str = "", *, keeps_own: bool = True) -> ReadRequest:
    """Return what a request asks for. `betas`: its header of that name. `keeps_own`: whether there is a tier that may
    run tools of Anthropic. Raises `BadRequestError`."""
    if body.thread is not None:
        # Without the turns that a server of Anthropic would hold, the last one is answered as if it were the first.
        raise BadRequestError("thread: send the whole conversation without it.", "thread", "thread_unsupported_request")
    conversation = _Conversation(body.system, body.messages)
    if conversation.foreign and not keeps_own:
        raise BadRequestError(
            f"messages: only Anthropic's models read content of type {conversation.foreign[0][:64]!r}, and there is "
            "none here. Give text, image, document, search_result, tool_use and tool_result.",
            "messages",
            "unsupported_content",
        )
    tools = _Tools(body, conversation.added_tools, keeps_own=keeps_own)
    tooling, choice = tools.tooling(body.tool_choice)
    fields = _answer_fields(body, betas) if isinstance(body, MessagesRequest) else {}
    explicit = [*fields.get("sampling", ()), *(["tool_choice"] if choice is not None else [])]
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        explicit.append("parallel_tool_calls")
    own = [*tools.own, *[name for name in _PROVIDERS_OWN if getattr(body, name, None)]]
    own += dict.fromkeys(conversation.foreign)
    own += sorted({block.type for turn in conversation.turns for block in turn.opaque} & _UPLOADS)
    grammar, response_format = _format(body)
    return ReadRequest(
        model=body.model,
        turns=conversation.turns,
        tooling=tooling,
        grammar=grammar,
        response_format=response_format,
        reasoning_effort=None if body.output_config is None else body.output_config.effort,
        reasoning_budget=None if body.thinking is None else _thinking_budget(body.thinking),
        explicit=tuple(explicit),
        opaque=_opaque_fields(body, betas, own),
        ignored=tuple(f"tools.{kind}" for kind in tools.left_out),
        names=FieldNames(_NAMES, tuple(conversation.paths), tuple(tools.paths)),
        **fields,
    )


def _answer_fields(body: MessagesRequest, betas: str) -> dict[str, Any]:
    """Return the fields that only matter to an answer."""
    budget = 0 if body.thinking is None else body.thinking.budget_tokens or 0
    if budget and budget >= body.max_tokens and INTERLEAVED not in betas:
        raise BadRequestError(
            "max_tokens must be greater than thinking.budget_tokens: thoughts count against it.",
            "max_tokens",
            "invalid_value",
        )
    user = body.metadata.user_id if body.metadata else None
    service_tier = "default" if body.service_tier == "standard_only" else body.service_tier
    passed = {"user": user, "service_tier": service_tier}
    sampling = zip(_SAMPLING, _sampling_of(body), strict=True)
    return {
        "sampling": {name: value for name, value in sampling if value is not None},
        "max_tokens": body.max_tokens or 1,
        "stop": tuple(body.stop_sequences or ()),
        "stream": bool(body.stream),
        "priority": None if service_tier is None else 1,
        "service_tier": service_tier,
        "passed": {name: value for name, value in passed.items() if value is not None},
        "metadata": None if user is None else {"user_id": user},
        "user": user,
    }


def _thinking_budget(thinking: Thinking) -> int | None:
    if thinking.type == "disabled":
        return 0
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise missing("thinking.budget_tokens")
    return thinking.budget_tokens


def _format(body: CountTokensRequest) -> tuple[Grammar | None, dict[str, Any] | None]:
    """Return the grammar that the answer obeys, and the same as a chat has it."""
    form, where = None if body.output_config is None else body.output_config.format, "output_config.format"
    if form is None:
        form, where = body.output_format, "output_format"
    if form is None:
        return None, None
    return schema_answer(form.schema, f"{where}.schema")


def _opaque_fields(body: CountTokensRequest, betas: str, own: Iterable[str]) -> OpaqueFields:
    """Return what only this dialect says. `own`: types of tools and blocks that only its provider has."""
    fields = {name: _encode(value) for name in _OPAQUE if (value := getattr(body, name, None)) is not None}
    if getattr(body, "max_tokens", None) == 0:
        fields["max_tokens"] = b"0"
    if body.tools:
        fields["tools"] = b"[" + b",".join(map(bytes, body.tools)) + b"]"
    if betas:
        fields[BETAS] = _encode(betas)
    lost = tuple(name for name in _LOST_ELSEWHERE if name in fields)
    return OpaqueFields(DIALECT, fields, tuple(own), lost_elsewhere=lost, says_thinking="thinking" in fields)


class _Tools:
    """The tools of a request, those of the caller apart from those that the provider runs."""

    def __init__(self, body: CountTokensRequest, added: Iterable[dict[str, Any]], *, keeps_own: bool) -> None:
        self._tools: list[tuple[Tool, str]] = []
        """Each with the path of its name."""
        own: list[ToolEntry] = []
        for index, raw in enumerate(body.tools or ()):
            where = f"tools.{index}"
            entry = decoded(raw, ToolEntry, where)
            refuse_turn(bytes(raw), where)
            if entry.type in _CALLERS:
                self._tools.append((_tool(entry, where), f"{where}.name"))
            else:
                own.append(entry)
        refuse_urls(body.mcp_servers, "mcp_servers")
        self._own_names = [entry.name for entry in own]
        types = [str(entry.type) for entry in own]
        is_needless = self._tools and not keeps_own
        self.left_out = [kind for kind in types if is_needless and not kind.startswith(_CALLERS_OWN)]
        """Types of those that nothing here runs, next to the caller's own."""
        self.own = [kind for kind in types if kind not in self.left_out]
        """Types of the others that the provider runs."""
        tools = [tool for tool, _ in self._tools]
        for definition in added:
            tool = _tool(decoded(definition, ToolEntry, "messages"), "messages")
            if tool not in tools:
                self._tools.append((tool, "messages.name"))

    @property
    def paths(self) -> list[str]:
        """Those of the tools' schemas."""
        return [f"{where.removesuffix('.name')}.input_schema" for _, where in self._tools]

    def tooling(self, choice: ToolChoice | None) -> tuple[Tooling | None, ToolChoice | None]:
        """Return the tools under `choice`, and that if it is one among the caller's own tools."""
        if choice is not None and (choice.name in self._own_names or (self.own and not self._tools)):
            choice = None
        if choice is not None and choice.type == "tool" and not choice.name:
            raise missing("tool_choice.name")
        if not self._tools:
            if choice is not None and choice.type not in ("none", "auto"):
                raise BadRequestError("tool_choice needs tools to choose from.", "tool_choice", "invalid_value")
            return None, choice
        tools = distinct(self._tools)
        if choice is None:
            return Tooling(tools=tools), None
        if choice.type == "tool":
            name = chosen_name(tools, choice.name, "tool_choice.name", custom=False)
            return Tooling(tools=tools, choice="named", name=name, parallel=False), choice
        word = "required" if choice.type == "any" else choice.type
        return Tooling(tools=tools, choice=word, parallel=not choice.disable_parallel_tool_use), choice


def _tool(entry: ToolEntry, where: str) -> Tool:
    if entry.type == "function":
        raise BadRequestError(
            f"{where}.type: Give a custom tool, with its input_schema.", f"{where}.type", "invalid_value"
        )
    if not entry.name:
        raise missing(f"{where}.name")
    if entry.input_schema is None:
        raise missing(f"{where}.input_schema")
    schema, mark = f"{where}.input_schema", entry.cache_control if isinstance(entry.cache_control, dict) else None
    return function_tool(
        entry.name, entry.description, entry.input_schema, schema, strict=entry.strict, cache_control=mark
    )


class _Placed(NamedTuple):
    """A block of a turn, its path, and its JSON; b"" for a text that was no block."""

    block: Block
    where: str
    json: bytes = b""

    @property
    def is_own(self) -> bool:
        """Whether it is of a tool that the provider runs, or its bookkeeping."""
        return self.block.type not in _READ and self.block.type.endswith(PROVIDERS_OWN)

    @property
    def definition(self) -> dict[str, Any] | None:
        """Of a tool that it adds by value."""
        tool = self.block.tool if self.block.type == "tool_addition" else None
        return tool["definition"] if isinstance(tool, dict) and isinstance(tool.get("definition"), dict) else None


class _Conversation:
    """The turns of a request, each with what it is in this dialect."""

    def __init__(self, system: str | list[msgspec.Raw] | None, messages: Sequence[MessageTurn]) -> None:
        """Raises `BadRequestError` that names the block."""
        self.turns: list[Turn] = []
        self.paths: list[str] = []
        """Of the message that each turn comes from."""
        self.foreign: list[str] = []
        """Types of blocks and sources that only a server with this dialect can read, newer ones among them."""
        self.added_tools: list[dict[str, Any]] = []
        """Definitions of tools that turns of the system add."""
        if not messages:
            raise BadRequestError("messages: at least one message is required.", "messages", "empty_array")
        check_sizes(0, sum(len(turn.content) for turn in messages if isinstance(turn.content, list)))
        self._read_system(system)
        # Earlier turns without content say nothing.
        said = [
            (index, turn)
            for index, turn in enumerate(messages)
            if turn.content or turn.has_controls or index == len(messages) - 1
        ]
        # As Anthropic does it: consecutive turns of the same role are one turn.
        for (role, controlled), group in groupby(
            said, key=lambda pair: (pair[1].role, pair[0] if pair[1].has_controls else None)
        ):
            same = list(group)
            if controlled is not None and role == "system":
                self._read_controlled(messages, controlled)
            else:
                placed = [block for index, turn in same for block in _placed(turn, f"messages.{index}")]
                self._read(role, placed, f"messages.{same[0][0]}")
        check_sizes(len(self.turns), 0)

    def _read_system(self, system: str | list[msgspec.Raw] | None) -> None:
        if isinstance(system, str):
            if system := without_billing(system):
                self._add([Turn.of("system", system)], "system")
            return
        placed = []
        for index, raw in enumerate(system or ()):
            block = decoded(raw, TextBlock, f"system.{index}")
            if not block.text.startswith(BILLING_HEADER):
                said = Block(type="text", text=block.text, cache_control=block.cache_control)
                placed.append(_Placed(said, f"system.{index}", bytes(raw)))
        if text := _BETWEEN.join([located.block.text or "" for located in placed]):
            self._add([_written(Turn.of("system", text), placed)], "system")

    def _read(self, role: str, placed: Sequence[_Placed], where: str) -> None:
        if role == "user" and not placed:
            raise BadRequestError(f"{where}: a user message must have content.", where, "invalid_value")
        read = {"user": self._user, "assistant": self._assistant, "system": self._system}[role]
        self._add(read(placed), where)

    def _read_controlled(self, messages: Sequence[MessageTurn], number: int) -> None:
        """Read a turn of the system that says more than its content: a block of the turn before where that is all."""
        turn, where = messages[number], f"messages.{number}"
        own = Opaque(DIALECT, _encode(_as_given(turn)), TURN)
        placed = _placed(turn, where)
        read = self._system(placed)
        is_cleared = turn.clear_at == "next_user_message" and "user" in [later.role for later in messages[number:]]
        if placed and not is_cleared:
            self._add([_with_opaque(read[0], (own,))], where)
        elif self.turns:
            self.turns[-1] = _with_opaque(self.turns[-1], (*_blocks_of(self.turns[-1]), own))

    def _add(self, turns: Iterable[Turn], where: str) -> None:
        for turn in turns:
            self.turns.append(turn)
            self.paths.append(where)

    def _user(self, placed: Sequence[_Placed]) -> list[Turn]:
        """Results of tools come first: they answer the calls right before."""
        turns: list[Turn] = []
        content: list[Content] = []
        others: list[_Placed] = []
        for located in placed:
            if located.block.type == "tool_result":
                turn, shown = self._result(located)
                turns.append(turn)
                content += shown
            else:
                others.append(located)
        for located in others:
            content += [] if located.is_own else self._content(located.block, located.where)
        if content or others:
            is_text = not [part for part in content if type(part) is not Text]
            turns.append(_written(Turn.of("user", _text_in(content) if is_text else content), others))
        return turns

    def _result(self, placed: _Placed) -> tuple[Turn, list[Content]]:
        """Return the result of a tool, which is text for other servers, and what else it has, for the user's own
        turn."""
        block, where = placed.block, placed.where
        shown: list[Content] = []
        if not block.tool_use_id:
            raise missing(f"{where}.tool_use_id")
        if isinstance(block.content, list):
            blocks = decoded(block.content, list[ResultBlock], f"{where}.content")
            read = [
                part for index, inner in enumerate(blocks) for part in self._content(inner, f"{where}.content.{index}")
            ]
            text, shown = _text_in(read), [part for part in read if type(part) is not Text]
        else:
            text = "" if block.content is None else decoded(block.content, str, f"{where}.content")
        if shown:
            kind = "file" if all(isinstance(part, Media) and part.kind == "file" for part in shown) else "image"
            text = _BETWEEN.join(filter(None, [text, f"(The {kind} of this result follows in the next message.)"]))
        said = f"{FAILED_RESULT}{text}" if block.is_error else text
        return _written(Turn.of("tool", said, call_id=given_call_id(block.tool_use_id)), [placed]), shown

    def _assistant(self, placed: Sequence[_Placed]) -> list[Turn]:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[Call] = []
        for located in placed:
            block = located.block
            if block.type == "text":
                texts.append(_text(block.text, located.where))
            elif block.type == "tool_use":
                calls.append(_call(block, located.where))
            elif block.type == "thinking":
                # Signed thoughts are for their model alone.
                thoughts.append(block.thinking or "" if block.signature in (None, "", UNSIGNED) else "")
            elif not located.is_own:
                self._content(block, located.where)
        turn = Turn.of("assistant", "".join(texts), calls=calls, thoughts=_BETWEEN.join(filter(None, thoughts)))
        return [_written(turn, [located for located in placed if located.block.signature != UNSIGNED])]

    def _system(self, placed: Sequence[_Placed]) -> list[Turn]:
        texts: list[str] = []
        for located in placed:
            if (change := _CHANGES.get(located.block.type)) is not None:
                tool = located.definition or (located.block.tool if isinstance(located.block.tool, dict) else {})
                texts.append(change.format(tool.get("name") or tool.get("tool_name")))
                self.added_tools += [located.definition] if located.definition else []
            elif located.block.type == "text":
                texts.append(_text(located.block.text, located.where))
            else:
                self.foreign.append(located.block.type)
        return [_written(Turn.of("system", without_billing(_BETWEEN.join(texts))), placed)]

    def _content(self, block: Block | ResultBlock, where: str) -> list[Content]:
        """Return what a block of a user's turn, or of a tool's result, is; nothing for what is foreign."""
        match block.type:
            case "text":
                return [Text(_text(block.text, where))]
            case "image" | "document":
                if not isinstance(block.source, Source):
                    raise missing(f"{where}.source")
                read = _image if block.type == "image" else _document
                if content := read(block, block.source, f"{where}.source"):
                    return content
                self.foreign.append(f"{block.type} with source {block.source.type}")
                return []
            case "search_result":
                head = [block.title, f"({block.source})" if isinstance(block.source, str) else None]
                text = _joined(block.content, f"{where}.content")
                return [Text(_lines(" ".join(filter(None, head)), text))]
            case "tool_reference":
                # A found tool, which every model has been given anyway.
                return [Text(f"Tool {block.tool_name} is available.")]
        if block.type in _CHATS_OWN:
            raise BadRequestError(f"{where}: Unsupported block of type {block.type}.", f"{where}.type")
        self.foreign.append(block.type)
        return []


# Every model has been given these tools from the beginning.
_CHANGES = {
    "tool_addition": "The tool {} is available from now on.",
    "tool_removal": "The tool {} is not available any more.",
}


def _placed(turn: MessageTurn, where: str) -> list[_Placed]:
    if not turn.content:
        return []
    if isinstance(turn.content, str):
        return [_Placed(Block(type="text", text=turn.content), f"{where}.content.0")]
    placed = []
    for index, raw in enumerate(turn.content):
        path, json = f"{where}.content.{index}", bytes(raw)
        placed.append(_Placed(decoded(raw, Block, path), path, json))
        refuse_turn(json, path)
    return placed


def _written(turn: Turn, placed: Sequence[_Placed]) -> Turn:
    """Return the turn with the blocks as they were given, unless it says the same: a text alone. It may say more: the
    images of results, which are in the blocks of these."""
    if not turn.media and (not placed or (len(placed) == 1 and _is_text_alone(placed[0].block))):
        return turn
    # Anthropic refuses blank texts, which agents that were interrupted keep in their histories.
    said = tuple([_opaque(located) for located in placed if not _is_blank(located.block)])
    return _with_opaque(turn, said or (Opaque(DIALECT, b""),))


def _with_opaque(turn: Turn, opaque: tuple[Opaque, ...]) -> Turn:
    is_marked = bool([block for block in opaque if _MARK in block.json])
    return msgspec.structs.replace(turn.with_opaque(opaque), cache_mark=is_marked)


def _opaque(located: _Placed) -> Opaque:
    block = located.block
    json = located.json or _encode({"type": "text", "text": block.text})
    if block.type == "tool_result" and isinstance(block.content, list) and b"text" in json:
        tool_result = msgspec.json.decode(json, type=dict[str, Any])
        json = _encode(tool_result | {"content": [part for part in tool_result["content"] if not _is_blank_part(part)]})
    seal = block.signature or block.data or "" if block.type in _THOUGHTS else ""
    return Opaque(DIALECT, json, block.type, seal)


def _as_given(turn: MessageTurn) -> dict[str, Any]:
    fields = {name: value for name in ("output_config", "clear_at") if (value := getattr(turn, name)) is not None}
    return {"role": turn.role, "content": turn.content or []} | fields


def _blocks_of(turn: Turn) -> tuple[Opaque, ...]:
    """Return what a turn is here, also if it is a text alone."""
    text = _encode({"type": "text", "text": turn.text})
    return turn.opaque or (Opaque(DIALECT, text, "text"),) * bool(turn.text)


def _is_text_alone(block: Block) -> bool:
    return block.type == "text" and block.cache_control is None and block.citations is None


def _is_blank(block: Block) -> bool:
    return block.type == "text" and not (block.text or "").strip()


def _is_blank_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and not str(part.get("text") or "").strip()


def _call(block: Block, where: str) -> Call:
    if not block.id:
        raise missing(f"{where}.id")
    if not block.name:
        raise missing(f"{where}.name")
    # Arguments that were cut off are texts in some clients' histories.
    arguments = block.input if isinstance(block.input, str) else _encode(block.input or {}).decode()
    return Call(id=given_call_id(block.id), name=block.name, arguments=arguments or "{}")


def _image(block: Block | ResultBlock, source: Source, where: str) -> list[Content]:
    if source.type == "base64":
        return [medium("image", {"url": _data_url(source, where)}, {"url": f"{where}.media_type"})]
    if source.type == "url" and source.url:
        return [medium("image", {"url": source.url}, {"url": f"{where}.url"})]
    return []


def _document(block: Block | ResultBlock, source: Source, where: str) -> list[Content]:
    head = _lines(block.title, block.context)
    if source.type == "text":
        return [Text(_lines(head, source.data))]
    if source.type == "content":
        return [Text(_lines(head, _joined(source.content, f"{where}.content")))]
    name = block.title or "document.pdf"
    if source.type == "url" and source.url:
        return [medium("file", {"filename": name, "file_data": source.url}, {"file_data": f"{where}.url"})]
    if source.type != "base64":
        return []
    data = _data_url(source, where)
    if (text := text_of(data)) is not None:
        return [Text(_lines(head, text))]
    file = medium("file", {"filename": name, "file_data": data}, {"file_data": f"{where}.data"})
    return [Text(block.context), file] if block.context else [file]


def _data_url(source: Source, where: str) -> str:
    if not source.media_type:
        raise missing(f"{where}.media_type")
    if not source.data:
        raise missing(f"{where}.data")
    return source.data if source.data.startswith("data:") else f"data:{source.media_type};base64,{source.data}"


def _joined(content: str | Sequence[Any] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return _BETWEEN.join([block.text for block in decoded(content, list[TextBlock], where)])


def _text_in(content: Iterable[Content]) -> str:
    return _BETWEEN.join([part.text for part in content if type(part) is Text])


def _lines(*texts: str | None) -> str:
    return "\n".join(filter(None, texts))


def _text(text: str | None, where: str) -> str:
    if text is None:
        raise missing(f"{where}.text")
    return text
