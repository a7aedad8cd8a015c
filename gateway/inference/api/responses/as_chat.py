"""What a request to `/v1/responses` asks for, said as a chat: there is one way from a body to a tier."""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from gateway.base.errors import ApiError, ContextLengthError, bad_request
from gateway.base.inference_request import InferenceRequest
from gateway.inference.api.parsing import refuse_given
from gateway.inference.api.responses.native_items import (
    CARRIED,
    COMPACTION,
    OWN_SEAL,
    GivenItems,
    is_callers,
    native_item,
    with_carried,
)
from gateway.inference.api.responses.schemas import Item, Part, ResponsesRequest, TextFormat
from gateway.inference.api.responses.tools import chat_choice, chat_tools, flat_name
from tiers.conversation import NativeRequest, Opaque
from tiers.dialects.chat_schemas import (
    ChatRequest,
    ContentPart,
    FunctionCall,
    JsonSchemaFormat,
    Message,
    MessageToolCall,
    ResponseFormat,
)
from tiers.dialects.constraints import arguments_of

# By what names the caller knows the fields of the chat.
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
LOGPROBS, SEALED_REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"


class Chat(msgspec.Struct, frozen=True):
    """The chat, and for each of its messages the items that it was; None where no server would get them. `carried`:
    what its client carries of a message for the server that made it."""

    request: ChatRequest
    opaque: list[tuple[Opaque, ...]] | None
    native: NativeRequest | None
    carried: dict[int, str] = {}
    carries: bool = False

    def with_own(self, request: InferenceRequest) -> InferenceRequest:
        """`request`, which says the chat, with what a server with this API gets instead, and what servers get back."""
        if self.carries:
            request = request.with_generation(wants_opaque=True)
        messages = list(request.generation.messages or ())
        if self.opaque is not None:
            messages = [turn.with_opaque(said) for turn, said in zip(messages, self.opaque, strict=True)]
            request = request.with_generation(messages=messages, native=self.native)
        if self.carried:
            for place, seal in self.carried.items():
                messages[place] = with_carried(messages[place], seal)
            request = request.with_generation(messages=messages)
        return request


NOT_WRITTEN: tuple[Opaque, ...] = (Opaque("responses", b""),)


class _Turn(NamedTuple):
    """A message of the chat and the item that it comes from; one that only carries its item has empty thoughts, and so
    has one whose item carries the state of the message before it."""

    message: Message
    block: Opaque | None = None
    carried: str = ""


def chat_of(
    body: ResponsesRequest, earlier: Sequence[Item] = (), given: GivenItems | None = None, before: Sequence[Any] = ()
) -> Chat:
    """The chat that says the same. `earlier`: the conversation of `previous_response_id`, and `before` its items as
    data; `given`: the items of `body`. Raises `ApiError` 400 that names the parameter."""
    _check(body)
    instructions = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    logprobs = wants_logprobs(body)
    joined = list(_joined(_all_turns(body.input, earlier, given, before)))
    opaque = None
    if given is not None:
        # Instructions are a field of their own there.
        opaque = [NOT_WRITTEN] * len(instructions)
        opaque += [tuple(blocks) or NOT_WRITTEN for _, blocks, _ in joined]
    own = () if given is None else given.native.server_tools
    callers = [tool for tool in body.tools or () if given is None or is_callers(tool.type, tool.execution)]
    choice = body.tool_choice
    if not isinstance(choice, str | None) and (choice.type in own or (own and choice.type == "allowed_tools")):
        choice = None
    request = ChatRequest(
        model=body.model,
        messages=[*instructions, *(message for message, _, _ in joined)],
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs if logprobs else None,
        tools=None if body.tools is None or (own and not callers) else chat_tools(callers),
        tool_choice=None if own and not callers else chat_choice(choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text.format if body.text else None),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        verbosity=body.text.verbosity if body.text else None,
        stream=body.stream,
        store=body.store,
        metadata=body.metadata,
        service_tier=body.service_tier,
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        prompt_cache_options=body.prompt_cache_options,
    )
    carried = {place: seal for place, (_, _, seal) in enumerate(joined, len(instructions)) if seal}
    carries = bool(body.tools) and SEALED_REASONING in (body.include or ())
    return Chat(request, opaque, None if given is None else given.native, carried, carries)


def wants_logprobs(body: ResponsesRequest) -> bool:
    """Whether the answer's text comes with log-probabilities."""
    return bool(body.top_logprobs) or LOGPROBS in (body.include or ())


def sealed(thoughts: str) -> str:
    """`encrypted_content` of a reasoning item: what agents send back to go on without stored responses."""
    return OWN_SEAL + base64.urlsafe_b64encode(thoughts.encode(errors="replace")).decode()


def renamed(error: ApiError) -> ApiError:
    """A refusal of the chat in the words of this API."""
    param = error.body.param
    head, dot, rest = (param or "").partition(".")
    name, bracket, place = head.partition("[")
    if param is None or name not in _NAMES:
        return error
    message = error.body.message.replace(name, _NAMES[name], 1)
    if isinstance(error, ContextLengthError):
        return error.named(_NAMES[name])
    # Where instructions stand before it, a place in the chat is none in the input.
    where = _NAMES[name] + ("" if name == "messages" else bracket + place + dot + rest)
    return ApiError(error.status, message, param=where, code=error.body.code, type_=error.body.type)


_INSTEAD = {
    "conversation": "give previous_response_id to go on from a stored response",
    "background": "an answer is given on the connection that asked for it. Leave it out",
}


def _check(body: ResponsesRequest) -> None:
    refuse_given(body, ("prompt", "moderation"))
    for name, said in _INSTEAD.items():
        if getattr(body, name):
            raise bad_request(f"Unsupported parameter {name}: {said}.", name, "unsupported_parameter")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options", "invalid_value")


def _all_turns(
    body_input: str | Sequence[Item], earlier: Sequence[Item], given: GivenItems | None, before: Sequence[Any]
) -> Iterator[_Turn]:
    """The turns of the earlier items and of the given ones, which errors name by their place."""
    if not (body_input or earlier):
        raise bad_request("input is empty: give a text or at least one item.", "input", "empty_array")
    for place, item in enumerate(earlier):
        yield from _paired(item, "previous_response_id", None if given is None else before[place])
    if isinstance(body_input, str):
        block = None if given is None else native_item(given.items[0])
        yield _Turn(Message(role="user", content=body_input), block)
        return
    for place, item in enumerate(body_input):
        yield from _paired(item, f"input[{place}]", None if given is None else given.items[place])


def _paired(item: Item, where: str, said: Mapping[str, Any] | None) -> Iterator[_Turn]:
    """The turns of an item; the first one carries it."""
    seal = item.encrypted_content or ""
    if item.type == "reasoning" and seal.startswith(CARRIED):
        yield _Turn(Message(role="assistant", reasoning_content=""), carried=seal)
        return
    block = None if said is None else native_item(said)
    for turn in _turns(item, where, is_native=said is not None):
        yield _Turn(turn, block)
        block = None


def _turns(item: Item, where: str, *, is_native: bool) -> Iterator[Message]:
    if item.type == "message":
        if item.role not in ("user", "assistant", "system", "developer"):
            raise bad_request(
                f"Invalid role {item.role!r}: allowed are user, assistant, system and developer.", f"{where}.role"
            )
        yield Message(role=item.role, content=_content(item.content, where))
    elif item.type in ("function_call", "custom_tool_call"):
        custom = item.type == "custom_tool_call"
        if item.call_id is None or item.name is None:
            raise bad_request(f"A {item.type} needs call_id and name.", where, "missing_required_parameter")
        called = flat_name(item.name, item.namespace)
        arguments = arguments_of(item.input or "") if custom else item.arguments
        function = FunctionCall(name=called, arguments=arguments)
        yield Message(role="assistant", tool_calls=[MessageToolCall(id=item.call_id, function=function)])
    elif item.type in ("function_call_output", "custom_tool_call_output") or (
        item.call_id is not None and item.type.endswith("_output")
    ):
        if item.call_id is None:
            raise bad_request(f"A {item.type} needs call_id.", where, "missing_required_parameter")
        yield Message(role="tool", tool_call_id=item.call_id, content=_content(_output(item), where))
    elif item.call_id is not None and item.type.endswith("_call"):
        # OpenAI's tools that the caller runs: to other models they are functions of these names.
        function = FunctionCall(
            name=item.name or item.type.removesuffix("_call"),
            arguments=item.arguments or _json(item.action or item.operation or {}),
        )
        yield Message(role="assistant", tool_calls=[MessageToolCall(id=item.call_id, function=function)])
    elif item.type == "reasoning":
        if (thoughts := _thoughts(item)) or is_native:
            yield Message(role="assistant", reasoning_content=thoughts or "")
    elif item.type in COMPACTION:
        yield Message(role="user", content=UNREADABLE)
    elif item.type == "agent_message" and (said := "\n".join(part.text for part in _parts(item) if part.text)):
        # What one agent of Codex said to another.
        yield Message(role="user", content=said)
    elif is_native:
        yield Message(role="assistant", reasoning_content="")
    else:
        raise bad_request(
            f"Unsupported item of type {item.type[:64]!r}: allowed are message, reasoning, function_call, "
            "custom_tool_call, their outputs and item_reference.",
            f"{where}.type",
            "unsupported_content",
        )


UNREADABLE = "(What came before was compacted by another provider, which alone can read it.)"
_json = partial(json.dumps, ensure_ascii=False)


def _output(item: Item) -> str | list[Part] | None:
    """What a tool gave: a text or parts, a screenshot, or JSON of another form as its text."""
    if item.output is None and item.tools:
        found = msgspec.to_builtins(item.tools)
        return _json([{name: value for name, value in tool.items() if value is not None} for tool in found])
    said = item.output
    if isinstance(said, dict) and isinstance(said.get("image_url"), str):
        said = [{"type": "input_image", "image_url": said["image_url"]}]
    try:
        return msgspec.convert(said, str | list[Part] | None)
    except msgspec.ValidationError:
        return _json(said)


def _parts(item: Item) -> Sequence[Part]:
    return [Part(type="text", text=item.content)] if isinstance(item.content, str) else item.content or ()


def _thoughts(item: Item) -> str | None:
    """The text of a reasoning item: ours in full, else its summary. What a server has sealed is for its maker alone."""
    if text := "".join(part.text or "" for part in _parts(item)):
        return text
    if item.encrypted_content is not None:
        if not item.encrypted_content.startswith(OWN_SEAL):
            return None
        try:
            return base64.urlsafe_b64decode(item.encrypted_content.removeprefix(OWN_SEAL)).decode()
        except (binascii.Error, ValueError):
            return None
    return "\n".join(part.text or "" for part in item.summary or ()) or None


def _joined(turns: Iterable[_Turn]) -> Iterator[tuple[Message, list[Opaque], str]]:
    """An assistant's thoughts, text and calls, which come as items of their own, as the one turn that they were, with
    these items and what is carried of it. Thoughts that nothing of the assistant follows are left out."""
    turn: Message | None = None
    state = ""
    calls: list[MessageToolCall] = []
    thoughts: list[str] = []
    items: list[Opaque] = []
    waiting: list[str] = []  # thoughts before the next item
    unplaced: list[Opaque] = []
    for message, block, carried in turns:
        if carried:
            state = carried if turn is not None and turn.role == "assistant" else ""
            continue
        block_list = [] if block is None else [block]
        if message.reasoning_content is not None:
            waiting.append(message.reasoning_content)
            unplaced += block_list
            continue
        if message.role != "assistant":
            unplaced = [one for one in unplaced if one.type != "reasoning"]
        if turn is not None and turn.role == message.role == "assistant" and (message.tool_calls or calls):
            # Between calls and their results there is no turn of its own.
            turn = _saying(turn, message.content)
            calls += message.tool_calls or ()
            thoughts += waiting
            items += unplaced + block_list
        else:
            if turn is not None:
                yield _with(turn, calls, thoughts), items, state
            turn, calls, state = message, list(message.tool_calls or ()), ""
            thoughts = waiting if message.role == "assistant" else []
            items = unplaced + block_list
        waiting, unplaced = [], []
    if turn is not None:
        items += [one for one in unplaced if one.type != "reasoning"]
        yield _with(turn, calls, thoughts), items, state


def _saying(turn: Message, more: str | list[ContentPart] | None) -> Message:
    """The turn with more content after its own."""
    if not more or not turn.content:
        return turn if not more else msgspec.structs.replace(turn, content=more)
    parts = [[ContentPart(type="text", text=one)] if isinstance(one, str) else one for one in (turn.content, more)]
    return msgspec.structs.replace(turn, content=[*parts[0], *parts[1]])


def _with(turn: Message, calls: list[MessageToolCall], thoughts: list[str]) -> Message:
    if not calls and not thoughts:
        return turn
    thought = "\n".join(filter(None, thoughts)) or None
    return msgspec.structs.replace(turn, tool_calls=calls or None, reasoning_content=thought)


def _content(content: str | Sequence[Part] | None, where: str) -> str | list[ContentPart] | None:
    if content is None or isinstance(content, str):
        return content
    return [_part(part, f"{where}.content[{place}]") for place, part in enumerate(content)]


def _part(part: Part, where: str) -> ContentPart:
    found = _unmarked_part(part, where)
    mark = part.prompt_cache_breakpoint
    return found if mark is None else msgspec.structs.replace(found, prompt_cache_breakpoint=mark)


def _unmarked_part(part: Part, where: str) -> ContentPart:
    if part.type in ("input_text", "output_text", "text") and part.text is not None:
        return ContentPart(type="text", text=part.text)
    if part.type == "refusal" and part.refusal is not None:
        return ContentPart(type="refusal", refusal=part.refusal)
    if part.type == "input_image":
        if part.image_url is None:
            raise bad_request("An input_image needs its image_url.", f"{where}.image_url", "missing_required_parameter")
        return ContentPart(type="image_url", image_url=_given(part, url="image_url", detail="detail"))
    if part.type == "input_file":
        file = _given(part, file_data="file_data", file_id="file_id", filename="filename")
        if part.file_url is not None:
            file["file_data"] = part.file_url
        return ContentPart(type="file", file=file)
    if part.type == "input_audio":
        return ContentPart(type="input_audio", input_audio=part.input_audio)
    raise bad_request(
        f"Unsupported content of type {part.type[:64]!r}: allowed are input_text, input_image, input_file, "
        "input_audio, output_text and refusal.",
        f"{where}.type",
        "unsupported_content",
    )


def _given(part: Part, **names: str) -> dict[str, str]:
    """The fields of a part that are given, by their names in a chat."""
    return {name: value for name, field in names.items() if (value := getattr(part, field)) is not None}


def _format(form: TextFormat | None) -> ResponseFormat | None:
    if form is None:
        return None
    if form.type != "json_schema":
        return ResponseFormat(type=form.type)
    if form.name is None:
        raise bad_request("You must provide text.format.name.", "text.format.name", "missing_required_parameter")
    schema = JsonSchemaFormat(name=form.name, schema=form.schema, strict=form.strict, description=form.description)
    return ResponseFormat(type="json_schema", json_schema=schema)
