"""Read a request of the Responses API: its items become turns, and errors name the item, part or field."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from inference_core.protocol import Grammar
from tiers.conversation import Call, Content, FieldNames, Opaque, ReadRequest, Text, Turn
from tiers.dialects.caller_urls import refuse_urls
from tiers.dialects.chat_request import (
    SERVICE_TIERS_ELSEWHERE,
    CallIds,
    check_count,
    medium,
    medium_part,
    priority_of,
    without_billing,
)
from tiers.dialects.chat_schemas import MAX_MESSAGES, MAX_PARTS
from tiers.dialects.constraints import arguments_of, check_packable, schema_grammar
from tiers.dialects.responses_items import (
    CARRIED,
    COMPACTION,
    OWN_SEAL,
    GivenItems,
    is_callers,
    opaque_item,
    opened_seal,
    with_carried,
)
from tiers.dialects.responses_schemas import (
    FORM,
    LOGPROBS,
    SEALED_REASONING,
    Item,
    Part,
    ResponsesRequest,
    TextFormat,
)
from tiers.dialects.responses_tools import flat_name, tooling_of
from tiers.dialects.rules import SERVICE_FIELDS
from tiers.errors import BadRequestError

UNREADABLE = "(What came before was compacted by another provider, which alone can read it.)"
NOT_WRITTEN: tuple[Opaque, ...] = (Opaque(FORM, b""),)
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""What the caller calls fields that are named in a chat's words later on."""
_ROLES = ("user", "assistant", "system", "developer")
_INSTEAD = {
    "conversation": "give previous_response_id to go on from a stored response",
    "background": "an answer is given on the connection that asked for it. Leave it out",
}
_EXPLICIT = ("temperature", "top_p", "top_logprobs", "tool_choice", "parallel_tool_calls")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_TEXTS = ("input_text", "output_text", "text")
_FILE_FIELDS = ("file_data", "file_id", "filename", "file_url")
_json = partial(json.dumps, ensure_ascii=False)


def read_responses(
    body: ResponsesRequest, earlier: Sequence[Item] = (), raw: GivenItems | None = None, before: Sequence[Any] = ()
) -> ReadRequest:
    """Return what a request asks for. `earlier`: the conversation of `previous_response_id`, and `before` its items as
    data; `raw`: the items of `body`, for servers with this API. Raises `BadRequestError`."""
    _check(body)
    turns = _turns(body, earlier, raw, before)
    logprobs = wants_logprobs(body)
    own = () if raw is None else raw.opaque.server_tools
    callers = [tool for tool in body.tools or () if raw is None or is_callers(tool.type, tool.execution)]
    choice = body.tool_choice
    is_own = not isinstance(choice, str | None) and choice.type in (*own, "allowed_tools")
    if own and (is_own or not callers):
        choice = None
    sampling = {name: value for name in ("temperature", "top_p") if (value := getattr(body, name)) is not None}
    form = body.text.format if body.text else None
    explicit = {**sampling, "top_logprobs": body.top_logprobs if logprobs else None, "tool_choice": choice}
    explicit["parallel_tool_calls"] = body.parallel_tool_calls
    return ReadRequest(
        model=body.model,
        turns=turns.turns,
        tooling=tooling_of(callers, choice, parallel=body.parallel_tool_calls),
        grammar=_grammar(form),
        response_format=_format(form),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        sampling=sampling,
        logprobs=(body.top_logprobs or 0) if logprobs else None,
        max_tokens=body.max_output_tokens,
        stream=bool(body.stream),
        priority=priority_of(body.service_tier),
        service_tier=body.service_tier,
        explicit=tuple([name for name in _EXPLICIT if explicit.get(name) is not None]),
        passed=_service_fields(body),
        opaque=None if raw is None else raw.opaque,
        wants_opaque=bool(body.tools) and SEALED_REASONING in (body.include or ()),
        store=body.store is not False,
        metadata=body.metadata,
        user=body.user or body.safety_identifier,
        names=FieldNames(_NAMES, tuple(turns.paths)),
    )


def wants_logprobs(body: ResponsesRequest) -> bool:
    """Return whether the answer's text comes with log-probabilities."""
    return bool(body.top_logprobs) or LOGPROBS in (body.include or ())


def _check(body: ResponsesRequest) -> None:
    for name in ("prompt", "moderation"):
        if getattr(body, name) is not None:
            raise BadRequestError(f"Unsupported parameter {name}: leave it out.", name, "unsupported_parameter")
    for name, instead in _INSTEAD.items():
        if getattr(body, name):
            raise BadRequestError(f"Unsupported parameter {name}: {instead}.", name, "unsupported_parameter")
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("stream_options is only allowed when stream is true.", "stream_options", "invalid_value")


def _service_fields(body: ResponsesRequest) -> dict[str, Any]:
    fields = {name: getattr(body, name) for name in SERVICE_FIELDS if name != "verbosity"}
    fields["verbosity"] = body.text.verbosity if body.text else None
    if body.service_tier not in SERVICE_TIERS_ELSEWHERE:
        del fields["service_tier"]
    return {name: value for name, value in fields.items() if value is not None}


def _grammar(form: TextFormat | None) -> Grammar | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Grammar(kind="json_object", param="text.format")
    if form.type != "json_schema":
        raise BadRequestError(
            f"Invalid text.format.type {form.type!r}: allowed are text, json_object and json_schema.",
            "text.format.type",
            "invalid_value",
        )
    for name in ("name", "schema"):
        if getattr(form, name) is None:
            where = f"text.format.{name}"
            raise BadRequestError(f"You must provide {where}.", where, "missing_required_parameter")
    return schema_grammar(form.schema or {}, "text.format.schema")


def _format(form: TextFormat | None) -> dict[str, Any] | None:
    """Return the format as a chat has it; None where it asks for nothing."""
    if form is None or form.type == "text":
        return None
    if form.type != "json_schema":
        return {"type": form.type}
    fields = {name: getattr(form, name) for name in ("name", "schema", "strict", "description")}
    schema = {name: value for name, value in fields.items() if value is not None}
    check_packable(schema, "text.format")
    return {"type": form.type, "json_schema": schema}


def _turns(body: ResponsesRequest, earlier: Sequence[Item], raw: GivenItems | None, before: Sequence[Any]) -> "_Turns":
    turns = _Turns(keeps_items=raw is not None)
    if body.instructions is not None:
        turns.add_part("system", "instructions", body.instructions)
    if not (body.input or earlier):
        raise BadRequestError("input is empty: give a text or at least one item.", "input", "empty_array")
    for index, item in enumerate(earlier):
        turns.add(item, "previous_response_id", None if raw is None else before[index])
    if isinstance(body.input, str):
        turns.add_part("user", "input", body.input, () if raw is None else _opaque(raw.items[0]))
    else:
        for index, item in enumerate(body.input):
            turns.add(item, f"input[{index}]", None if raw is None else raw.items[index])
    turns.end()
    return turns


def _opaque(item: Mapping[str, Any]) -> tuple[Opaque, ...]:
    block = opaque_item(item)
    return () if block is None else (block,)


class _OpenTurn(msgspec.Struct):
    """A turn that further items may be part of."""

    role: str
    where: str
    """The path of its first item."""
    content: list[Content]
    num_parts: int
    """Parts of contents that are lists."""
    calls: list[Call]
    thoughts: list[str]
    opaque: list[Opaque]
    call_id: str | None = None
    """Of the call whose result it is."""
    carried: str = ""
    """What its client carries of it for the server that made it."""


class _Turns:
    """The turns that items are. An assistant's thoughts, text and calls come as items of their own, and are the one
    turn that they were. Thoughts that nothing of the assistant follows are left out."""

    def __init__(self, *, keeps_items: bool) -> None:
        """`keeps_items`: whether each turn also has its items as they were given."""
        self.turns: list[Turn] = []
        self.paths: list[str] = []
        self._keeps_items = keeps_items
        self._ids = CallIds()
        self._open: _OpenTurn | None = None
        self._thoughts: list[str] = []
        """Before the next item."""
        self._unplaced: list[Opaque] = []
        """Items before the next one that say nothing to models of other servers."""
        self._num_parts = 0
        self._empty: str | None = None
        """The path of the content that the last item lacks, if it is a user's."""

    def add(self, item: Item, where: str, data: Mapping[str, Any] | None) -> None:
        """Add the item at `where`. `data`: it as it was given. Raises `BadRequestError`."""
        kind, seal = item.type, item.encrypted_content or ""
        if kind == "reasoning" and seal.startswith(CARRIED):
            if self._open is not None and self._open.role == "assistant":
                self._open.carried = seal
            return
        opaque = () if data is None else _opaque(data)
        if kind == "message":
            if item.role not in _ROLES:
                raise BadRequestError(
                    f"Invalid role {item.role!r}: allowed are user, assistant, system and developer.", f"{where}.role"
                )
            role = "system" if item.role == "developer" else item.role
            self.add_part(role, where, _content(item.content, f"{where}.content", role), opaque)
            self._empty = f"{where}.content" if role == "user" and item.content in (None, []) else None
        elif kind in ("function_call", "custom_tool_call"):
            for name in ("call_id", "name"):
                if getattr(item, name) is None:
                    raise BadRequestError(
                        f"A {kind} needs call_id and name.", f"{where}.{name}", "missing_required_parameter"
                    )
            is_custom = kind == "custom_tool_call"
            arguments = arguments_of(item.input or "") if is_custom else _arguments(item)
            call = Call(id=item.call_id or "", name=flat_name(item.name or "", item.namespace), arguments=arguments)
            self.add_part("assistant", where, "", opaque, calls=(call,))
        elif kind.endswith("_output") and (item.call_id is not None or kind in _RESULTS):
            if item.call_id is None:
                raise BadRequestError(f"A {kind} needs call_id.", f"{where}.call_id", "missing_required_parameter")
            content = _content(_output(item), f"{where}.output", "tool")
            self.add_part("tool", where, content, opaque, call_id=item.call_id)
        elif kind.endswith("_call") and item.call_id is not None:
            # OpenAI's tools that the caller runs: to other models they are functions of these names.
            arguments = _arguments(item, item.action or item.operation or {})
            call = Call(id=item.call_id, name=item.name or kind.removesuffix("_call"), arguments=arguments)
            self.add_part("assistant", where, "", opaque, calls=(call,))
        elif kind == "reasoning":
            if (thoughts := _thoughts(item)) or data is not None:
                self._think(thoughts, opaque)
        elif kind in COMPACTION:
            self.add_part("user", where, UNREADABLE, opaque)
        elif kind == "agent_message" and (text := "\n".join(part.text for part in _parts(item) if part.text)):
            # What one agent of Codex said to another.
            self.add_part("user", where, text, opaque)
        elif data is not None:
            self._think("", opaque)
        else:
            raise BadRequestError(
                f"Unsupported item of type {kind[:64]!r}: allowed are message, reasoning, function_call, "
                "custom_tool_call, their outputs and item_reference.",
                f"{where}.type",
                "unsupported_content",
            )

    def add_part(
        self,
        role: str,
        where: str,
        content: str | list[Content],
        opaque: Sequence[Opaque] = (),
        *,
        calls: Sequence[Call] = (),
        call_id: str | None = None,
    ) -> None:
        """Add what the item at `where` says."""
        num_parts = 0 if isinstance(content, str) else len(content)
        blocks: list[Content] = ([Text(content)] if content else []) if isinstance(content, str) else content
        if role != "assistant":
            self._unplaced = [block for block in self._unplaced if block.type != "reasoning"]
        turn = self._open
        if turn is not None and turn.role == role == "assistant" and (calls or turn.calls):
            # Between calls and their results there is no turn of its own.
            turn.content += blocks
            turn.num_parts += num_parts
            turn.calls += calls
            turn.thoughts += self._thoughts
            turn.opaque += self._unplaced
        else:
            self._close()
            thoughts = self._thoughts if role == "assistant" else []
            turn = _OpenTurn(role, where, blocks, num_parts, list(calls), thoughts, self._unplaced, call_id)
            self._open = turn
        turn.opaque += opaque
        self._thoughts, self._unplaced, self._empty = [], [], None

    def _think(self, thoughts: str, opaque: Sequence[Opaque]) -> None:
        self._thoughts.append(thoughts)
        self._unplaced += opaque

    def end(self) -> None:
        """No further item comes. Raises `BadRequestError` for too many turns or parts, and for none."""
        if self._empty is not None:
            # What is asked for is not empty; earlier turns may be.
            raise BadRequestError("A message needs content: a string or a list of parts.", self._empty, "invalid_value")
        if self._open is not None:
            self._open.opaque += [block for block in self._unplaced if block.type != "reasoning"]
        self._close()
        if not self.turns:
            raise BadRequestError("input is empty: give at least one message.", "input", "empty_array")
        check_count(len(self.turns), MAX_MESSAGES, "input holds {}", "input")
        check_count(self._num_parts, MAX_PARTS, "input holds {} content parts and tool calls", "input")

    def _close(self) -> None:
        """End the open turn, if there is one."""
        if (turn := self._open) is None:
            return
        calls, call_id = turn.calls, turn.call_id
        if calls:
            ids = self._ids.of_calls(len(self.turns), [call.id for call in calls])
            calls = [
                call if call.id == own else msgspec.structs.replace(call, id=own)
                for call, own in zip(calls, ids, strict=True)
            ]
        if turn.role == "tool" and (call_id := self._ids.of_result(call_id)) is None:
            raise BadRequestError(
                "The result of a call needs the call_id that it answers.",
                f"{turn.where}.call_id",
                "missing_required_parameter",
            )
        opaque = (tuple(turn.opaque) or NOT_WRITTEN) if self._keeps_items else ()
        made = Turn.of(
            turn.role,
            _said(turn),
            calls=calls,
            thoughts="\n".join(filter(None, turn.thoughts)),
            call_id=call_id,
            opaque=opaque,
        )
        self.turns.append(with_carried(made, turn.carried) if turn.carried else made)
        self.paths.append(turn.where)
        self._num_parts += turn.num_parts + len(calls)


def _said(turn: _OpenTurn) -> str | list[Content]:
    """Return a text alone as such: nearly all turns are one."""
    content = turn.content
    if len(content) != 1 and turn.role != "system":
        return content
    if not all(isinstance(block, Text) and block.breakpoint is None for block in content):
        return content
    text = "\n".join([block.text for block in content if isinstance(block, Text)])
    return without_billing(text) if turn.role == "system" else text


def _arguments(item: Item, otherwise: Any = None) -> str:
    """Return the arguments of a call as JSON."""
    if not item.arguments:
        return "{}" if otherwise is None else _json(otherwise)
    return item.arguments if isinstance(item.arguments, str) else msgspec.json.encode(item.arguments).decode()


def _output(item: Item) -> str | list[Part] | None:
    """What a tool gave: a text or parts, a screenshot, or JSON of another form as its text."""
    if isinstance(item.output, str):
        return item.output
    if item.output is None and item.tools:
        tools = msgspec.to_builtins(item.tools)
        return _json([{name: value for name, value in tool.items() if value is not None} for tool in tools])
    output = item.output
    if isinstance(output, dict) and isinstance(output.get("image_url"), str):
        output = [{"type": "input_image", "image_url": output["image_url"]}]
    try:
        return msgspec.convert(output, str | list[Part] | None)
    except msgspec.ValidationError:
        return _json(output)


def _parts(item: Item) -> Sequence[Part]:
    return [Part(type="text", text=item.content)] if isinstance(item.content, str) else item.content or ()


def _thoughts(item: Item) -> str:
    """The text of a reasoning item: ours in full, else its summary. What a server has sealed is for its model alone."""
    if text := "".join(part.text or "" for part in _parts(item)):
        return text
    if item.encrypted_content is not None:
        return opened_seal(item.encrypted_content) if item.encrypted_content.startswith(OWN_SEAL) else ""
    return "\n".join(part.text or "" for part in item.summary or ())


def _content(content: str | Sequence[Part] | None, where: str, role: str) -> str | list[Content]:
    if content is None or isinstance(content, str):
        return content or ""
    # Only turns of the system and the user may have marks.
    has_marks = role in ("system", "user")
    return [_part(part, f"{where}[{index}]", has_marks=has_marks) for index, part in enumerate(content)]


def _part(part: Part, where: str, *, has_marks: bool) -> Content:
    block = _unmarked_part(part, where)
    mark = part.prompt_cache_breakpoint
    return block if mark is None or not has_marks else msgspec.structs.replace(block, breakpoint=mark)


def _unmarked_part(part: Part, where: str) -> Content:
    kind = part.type
    if kind in _TEXTS or kind == "refusal":
        name = "refusal" if kind == "refusal" else "text"
        if (text := getattr(part, name)) is None:
            raise _lacking(kind, name, where)
        return Text(text)
    if kind == "input_image":
        if part.image_url is None:
            raise _lacking(kind, "image_url", where)
        detail = {} if part.detail is None else {"detail": part.detail}
        return medium("image", {"url": part.image_url} | detail, {"url": f"{where}.image_url"})
    if kind == "input_file":
        return _file(part, where)
    if kind == "input_audio":
        return medium_part("input_audio", part.input_audio, f"{where}.input_audio")
    raise BadRequestError(
        f"Unsupported content of type {kind[:64]!r}: allowed are input_text, input_image, input_file, "
        "input_audio, output_text and refusal.",
        f"{where}.type",
        "unsupported_content",
    )


def _file(part: Part, where: str) -> Content:
    fields = {name: value for name in _FILE_FIELDS if (value := getattr(part, name)) is not None}
    if fields.keys() <= {"filename"}:
        raise _lacking("input_file", "file_data, file_url or file_id", where, "file_data")
    source = "file_data"
    if "file_url" in fields:
        source, fields["file_data"] = "file_url", fields.pop("file_url")
    block = medium("file", fields, {"file_data": f"{where}.{source}", "file_id": f"{where}.file_id"})
    refuse_urls({"file_id": part.file_id}, where)
    return block


def _lacking(kind: str, what: str, where: str, name: str = "") -> BadRequestError:
    """Return the refusal of a part at `where` without its field."""
    field = f"{where}.{name or what}"
    return BadRequestError(f"A part of the type {kind} needs its {what}.", field, "missing_required_parameter")
