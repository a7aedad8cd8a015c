"""Read a chat, or a text completion, of OpenAI's API: what decoding could not check is checked here."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, cast

import msgspec

from tiers.conversation import Call, Content, FieldNames, MediaKind, Opaque, ReadRequest, Text, Turn, media
from tiers.dialects.caller_urls import refuse_urls
from tiers.dialects.chat_opaque import DETAILS, EXTRA, PART_TYPES, audio_reference, opaque_blocks, opaque_json
from tiers.dialects.chat_schemas import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_PROMPTS,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    FunctionCall,
    Message,
    MessageToolCall,
    ResponseFormat,
    Sampling,
)
from tiers.dialects.constraints import (
    CUSTOM,
    arguments_of,
    format_of,
    grammar_of,
    template_variables_of,
    tooling_of,
)
from tiers.dialects.rules import ALL_SAMPLING, AUDIO, MODALITIES, SERVICE_FIELDS, SUFFIX
from tiers.errors import BadRequestError
from tiers.prompt_bounds import num_bytes
from tiers.server_words import looks_like_url, url_problem

PRIORITY_OF_SERVICE_TIER = {"auto": 1, "default": 1, "scale": 1, "priority": 0, "flex": 2, "batch": 2}
# Those that providers have; `batch` is our own.
SERVICE_TIERS_ELSEWHERE = ("auto", "default", "flex", "priority", "scale")
# OpenAI's default of the older API; chat has none.
COMPLETION_MAX_TOKENS = 16
_COMPLETION_NAMES = FieldNames({"top_logprobs": "logprobs"})
MAX_ECHOED_BYTES = 1 << 22
"""Bytes of repeated prompts in one answer."""
# Bytes of a token: few have as many.
_TOKEN_BYTES = 16
# Claude Code's first system block; its numbers change with every request.
BILLING_HEADER = "x-anthropic-billing-header:"
ROLES = ("system", "developer", "user", "assistant", "tool", "function")

# Types of parts that are no text, with the fields of which one at least is needed.
MEDIA_TYPES: Mapping[str, tuple[str, ...]] = {
    "image_url": ("url",),
    "video_url": ("url",),
    "input_audio": ("data",),
    "file": ("file_data", "file_id"),
}
# As the Responses API has it.
_OTHER_NAMES = {"input_image": "image_url"}
MAX_MEDIA_FIELDS = 16
_KINDS: Mapping[str, MediaKind] = {part: kind for kind, part in PART_TYPES.items()}
# A file that every model can read, once it is decoded.
_TEXT_FILE = re.compile(r"(?:text/[\w.+-]+|application/(?:json|xml|yaml|x-yaml|toml|javascript|x-ndjson|x-sh|sql))\b")
_OWN_FILE = re.compile(r"file-[0-9a-f]{32}")  # Providers' ids are other ones.
# The last two are what the same part is called in the Responses API.
_TEXTS = ("text", "input_text", "output_text")
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_encode = msgspec.json.Encoder().encode


def read_chat(body: ChatRequest) -> ReadRequest:
    """Return what a chat asks for. Raises `BadRequestError`."""
    if body.max_tokens == 0:
        raise BadRequestError("max_tokens is 0: an answer needs at least 1.", "max_tokens", "invalid_value")
    if body.max_tokens and body.max_completion_tokens:
        raise BadRequestError("Give max_completion_tokens or max_tokens, not both.", "max_tokens", "invalid_value")
    if body.top_logprobs and not body.logprobs:
        raise BadRequestError("top_logprobs needs logprobs to be true.", "top_logprobs", "invalid_value")
    _check_sampling(body)
    passed = _service_fields(body)
    if body.service_tier is not None and body.service_tier not in SERVICE_TIERS_ELSEWHERE:
        del passed["service_tier"]
    return ReadRequest(
        turns=turns_of(body.messages),
        tooling=tooling_of(body),
        response_format=format_of(body.response_format),
        reasoning_effort=body.reasoning_effort,
        reasoning_budget=body.thinking_token_budget,
        template_variables=template_variables_of(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        priority=priority_of(body.service_tier, body.priority),
        service_tier=body.service_tier,
        passed=passed,
        extra=_media_fields(body),
        store=body.store is not False,
        metadata=body.metadata,
        **_shared(body, body.response_format),
        user=body.user or body.safety_identifier,
    )


def read_completion(body: CompletionRequest) -> ReadRequest:
    """Return what a text completion asks for. Raises `BadRequestError`."""
    return ReadRequest(
        prompts=_prompts(body),
        logprobs=body.logprobs,
        priority=body.priority,
        passed=_service_fields(body),
        extra={SUFFIX: body.suffix} if body.suffix else {},
        echo=bool(body.echo),
        best_of=body.best_of,
        is_usual_limit=body.max_tokens is None,
        names=_COMPLETION_NAMES,
        **_shared(body, None),
        user=body.user,
    )


def _shared(body: Sampling, response_format: ResponseFormat | None) -> dict[str, Any]:
    """The fields that both have in common."""
    return {
        "model": body.model,
        "grammar": grammar_of(response_format, body.structured_outputs),
        "sampling": _sampling(body),
        "max_tokens": _token_limit(body),
        "stop": _stops(body),
        "include_stop": bool(body.include_stop_str_in_output),
        "n": body.n or 1,
        "stream": bool(body.stream),
        "explicit": tuple(_explicit_fields(body)),
    }


def _sampling(body: Sampling) -> dict[str, Any]:
    fields = _sampling_fields(body)
    if not fields:
        return fields
    if "top_k" in fields:
        fields["top_k"] = max(fields["top_k"], 0)  # -1 is vLLM's way to switch it off
    if "logit_bias" in fields:
        fields["logit_bias"] = {int(token): bias for token, bias in fields["logit_bias"].items()}
    if "stop_token_ids" in fields:
        fields["stop_token_ids"] = tuple(fields["stop_token_ids"])
    return fields


def priority_of(service_tier: str | None, priority: int | None = None) -> int | None:
    """Return the scheduling class of `service_tier`, or the one that the caller names. Raises `BadRequestError`."""
    if service_tier is None:
        return priority
    if (usual := PRIORITY_OF_SERVICE_TIER.get(service_tier)) is None:
        allowed = ", ".join(PRIORITY_OF_SERVICE_TIER)
        raise BadRequestError(f"Invalid service_tier {service_tier!r}: allowed are {allowed}.", "service_tier")
    return usual if priority is None else priority


def _media_fields(body: ChatRequest) -> dict[str, Any]:
    """The fields of a chat whose answer is to have more than text."""
    fields = {MODALITIES: body.modalities, AUDIO: body.audio}
    return {name: value for name, value in fields.items() if value not in (None, {}, [], ["text"])}


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    if body.max_tokens == 0 and not body.echo:
        raise BadRequestError(
            "max_tokens is 0: give at least 1, or echo with logprobs to score the prompt alone.",
            "max_tokens",
            "invalid_value",
        )
    _check_best_of(body)
    _check_sampling(body)
    prompts = prompts_of(body.prompt, "prompt")
    check_count(len(prompts), MAX_PROMPTS, "prompt holds {} prompts", "prompt")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise BadRequestError(
                "A prompt is empty: give some text.", f"prompt[{index}]" if index else "prompt", "empty"
            )
    if body.echo:
        _check_echo(prompts, body.n or 1)
    return prompts


def _check_echo(prompts: Sequence[str | list[int]], n: int) -> None:
    """Raises `BadRequestError` if the repeated prompts are too long, each in each of its `n` choices."""
    size = n * sum(_TOKEN_BYTES * len(prompt) if isinstance(prompt, list) else num_bytes(prompt) for prompt in prompts)
    if size > MAX_ECHOED_BYTES:
        raise BadRequestError(
            f"echo repeats {size} bytes of prompts in {n * len(prompts)} choices; an answer may repeat "
            f"{MAX_ECHOED_BYTES}. Ask for fewer choices or shorter prompts.",
            "echo",
            "answer_too_large",
        )


def _check_best_of(body: CompletionRequest) -> None:
    wanted = body.n or 1
    if body.best_of is None or body.best_of == wanted:
        return
    if body.best_of < wanted:
        raise BadRequestError(
            f"best_of is {body.best_of}: of fewer than n = {wanted} choices no {wanted} can be returned.",
            "best_of",
            "invalid_value",
        )
    if body.stream:
        raise BadRequestError(
            "best_of above n cannot be streamed: the best choices are known once all have ended.",
            "best_of",
            "invalid_value",
        )


def prompts_of(prompt: str | list[str | int | list[int]], param: str) -> list[str | list[int]]:
    """The texts, or lists of token ids, that `param` gives, one or several."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequestError(f"{param} is empty: give at least one.", param, "empty_array")
    # Millions of token ids may be given, so they are looked at in one pass.
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [cast(list[int], prompt)]
    if kinds in ({str}, {list}):
        return cast(list[str | list[int]], prompt)
    raise BadRequestError(f"{param} mixes texts and token ids: give texts, token ids, or lists of one kind.", param)


def _check_sampling(body: Sampling) -> None:
    """Checks common to both APIs."""
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("stream_options is only allowed when stream is true.", "stream_options", "invalid_value")
    for name in body.logit_bias or {}:
        if not name.isascii() or not name.isdigit() or len(name) > 9:
            raise BadRequestError(f"logit_bias maps token ids to biases; {name!r} is no token id.", "logit_bias")
    if body.min_tokens is not None and (limit := _token_limit(body)) is not None and body.min_tokens > limit:
        raise BadRequestError(
            f"min_tokens {body.min_tokens} is above the token limit {limit}.", "min_tokens", "invalid_value"
        )


def _token_limit(body: Sampling) -> int | None:
    """The limit on generated tokens, by either name; None (chat only) for as many as the context allows."""
    if isinstance(body, ChatRequest):
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def _stops(body: Sampling) -> tuple[str, ...]:
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def _only(name: str, body: Sampling) -> tuple[Any]:
    return (getattr(body, name),)


class _Fields:
    """Fields of both APIs by name: called with a body, it returns those that are set. Most bodies set none."""

    def __init__(self, *names: str) -> None:
        self._of: dict[type[Sampling], tuple[list[str], Callable[[Sampling], Any], tuple[None, ...]]] = {}
        for api in (ChatRequest, CompletionRequest):
            own_names = [name for name in names if name in api.__struct_fields__]
            # With one name it returns no tuple.
            values_of = attrgetter(*own_names) if len(own_names) > 1 else partial(_only, own_names[0])
            self._of[api] = own_names, values_of, (None,) * len(own_names)

    def __call__(self, body: Sampling) -> dict[str, Any]:
        names, values_of, unset = self._of[ChatRequest if isinstance(body, ChatRequest) else CompletionRequest]
        values = values_of(body)
        if values == unset:
            return {}
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


_sampling_fields = _Fields(*ALL_SAMPLING, "logit_bias")
# What is not sent to a server elsewhere where it has its usual value, unless the caller said so.
_explicit_fields = _Fields(*ALL_SAMPLING, "n", "top_logprobs", "tool_choice", "parallel_tool_calls")
_service_fields = _Fields(*SERVICE_FIELDS)


def turns_of(messages: list[Message]) -> list[Turn]:
    """The conversation. Raises `BadRequestError` for a message that no model could read."""
    if not messages:
        raise BadRequestError("messages is empty: give at least one message.", "messages", "empty_array")
    check_sizes(len(messages), sum(map(_num_parts, messages)))
    ids, last = CallIds(), len(messages) - 1
    return [_turn(message, index, ids, is_last=index == last) for index, message in enumerate(messages)]


def check_sizes(messages: int, parts: int) -> None:
    """Raises `BadRequestError` for a conversation of too many messages, or parts and calls of tools."""
    check_count(messages, MAX_MESSAGES, "messages holds {}", "messages")
    check_count(parts, MAX_PARTS, "messages hold {} content parts and tool calls", "messages")


def check_count(count: int, most: int, what: str, param: str) -> None:
    """Raises `BadRequestError` where more than `most` were given. `what`: the sentence that says how many, {}."""
    if count > most:
        message = f"{what.format(count)}; at most {most} fit one request."
        raise BadRequestError(message, param, "array_too_long")


def without_billing(system: str) -> str:
    """Return a system message without the billing header that Claude Code begins it with: a line that is another one in
    every request, so that no digest of it would be found again."""
    return system.partition("\n")[2].lstrip("\n") if system.startswith(BILLING_HEADER) else system


class CallIds:
    """Ids for calls and results that have none, as some servers' have: results answer the calls in their order."""

    def __init__(self) -> None:
        self._unanswered: list[str] = []

    def of_calls(self, turn: int, ids: Iterable[str | None]) -> list[str]:
        """Return the ids of all calls of the turn with this number, whose own ids are `ids`."""
        self._unanswered = [own or f"call_{turn}_{index}" for index, own in enumerate(ids)]
        return list(self._unanswered)

    def of_result(self, call_id: str | None) -> str | None:
        """Return the id of the call that a result answers; None if it is unknown."""
        if call_id in self._unanswered:
            self._unanswered.remove(call_id)
        elif not call_id and self._unanswered:
            return self._unanswered.pop(0)
        return call_id or None


def _num_parts(message: Message) -> int:
    parts = len(message.content) if isinstance(message.content, list) else 0
    return parts if message.tool_calls is None else parts + len(message.tool_calls)


def _turn(message: Message, number: int, ids: CallIds, *, is_last: bool) -> Turn:
    where = f"messages[{number}]"
    if message.role not in ROLES:
        raise BadRequestError(
            f"Invalid role {message.role!r}: allowed are system, developer, user, assistant and tool.", f"{where}.role"
        )
    if message.role == "function" or message.function_call is not None:
        message = _of_tools(message)
    calls = _calls(message, number, ids)
    answered = ids.of_result(message.tool_call_id) if message.role == "tool" else None
    if message.role == "tool" and answered is None:
        raise BadRequestError(
            "A message of the role tool needs the tool_call_id that it answers.",
            f"{where}.tool_call_id",
            "missing_required_parameter",
        )
    role = "system" if message.role == "developer" else message.role
    content_parts = message.content if isinstance(message.content, list) else ()
    marks = [part.cache_control for part in content_parts if part.cache_control is not None]
    if any(_stands_alone(part, role) for part in content_parts):
        parts = (_content_part(part, f"{where}.content[{index}]") for index, part in enumerate(content_parts))
        return Turn.of(role, parts, name=message.name, calls=calls, call_id=answered, cache_mark=bool(marks))
    # What is asked for is not empty; earlier turns may be.
    must_say = is_last and role == "user"
    content = _text(message.content, f"{where}.content", role, must_say=must_say) or message.refusal or ""
    if not content and isinstance(message.audio, dict):
        content = str(message.audio.get("transcript") or "")
    if role == "system":
        # It changes with every request, so that no prefix would ever be cached, and means nothing to other servers.
        content = without_billing(content)
    thoughts: Any = ""
    if role == "assistant":
        thoughts = message.reasoning_content or message.reasoning or _thoughts(message.content)
    opaque = _opaque_blocks(message) if role == "assistant" else ()
    said: str | list[Content] = content
    if marks and calls and content and isinstance(marks[-1], dict):
        said = [Text(content, cache_control=marks[-1])]
    elif marks and not calls:
        opaque += _cache_marked_texts(message, content_parts)
    return Turn.of(
        role,
        said,
        name=message.name,
        calls=calls,
        call_id=answered,
        thoughts=thoughts if isinstance(thoughts, str) else "",
        opaque=opaque,
        cache_mark=bool(marks),
    )


def _of_tools(message: Message) -> Message:
    """A call of a function, or its result, of the API's first years as those of tools."""
    if message.role == "function":
        return msgspec.structs.replace(message, role="tool", name=None)
    calls = message.tool_calls or [MessageToolCall(function=message.function_call)]
    return msgspec.structs.replace(message, tool_calls=calls)


def _opaque_blocks(message: Message) -> tuple[Opaque, ...]:
    """What an assistant's turn has that its server needs back."""
    details, extra = message.reasoning_details, message.extra_content
    heard = audio_reference(message.audio) if message.audio else ()
    return heard if details is extra is msgspec.UNSET else (*opaque_blocks({DETAILS: details, EXTRA: extra}), *heard)


def _cache_marked_texts(message: Message, parts: Sequence[ContentPart]) -> tuple[Opaque, ...]:
    """Texts with marks of a cache in the form of Anthropic, whose tiers alone can do anything with them."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": part.text or part.refusal or ""}
        | ({"cache_control": part.cache_control} if part.cache_control is not None else {})
        for part in parts
    ]
    if message.role == "tool":
        mark = {"cache_control": last} if (last := blocks[-1].pop("cache_control", None)) is not None else {}
        blocks = [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": blocks} | mark]
    return tuple(Opaque("messages", _encode(block), block["type"]) for block in blocks)


def _calls(message: Message, number: int, ids: CallIds) -> tuple[Call, ...]:
    if not message.tool_calls:
        return ()
    where = f"messages[{number}]"
    if message.role != "assistant":
        raise BadRequestError(
            f"Only an assistant calls tools, not a {message.role}.", f"{where}.tool_calls", "invalid_value"
        )
    for index, call in enumerate(message.tool_calls):
        if _type(call) not in ("function", CUSTOM):
            raise BadRequestError(
                f"Unsupported tool call type {call.type!r}.", f"{where}.tool_calls[{index}].type", "invalid_value"
            )
        if (call.function if _type(call) == "function" else call.custom) is None:
            raise BadRequestError(
                f"A tool call of type {_type(call)!r} needs the object {_type(call)}.",
                f"{where}.tool_calls[{index}].{_type(call)}",
                "missing_required_parameter",
            )
    return tuple(map(_call, message.tool_calls, ids.of_calls(number, [call.id for call in message.tool_calls])))


def _type(call: MessageToolCall) -> str:
    return call.type or "function"


def _call(call: MessageToolCall, call_id: str) -> Call:
    if call.custom is not None and call.type == CUSTOM:
        return Call(id=call_id, name=call.custom.name, arguments=arguments_of(call.custom.input))
    function, extra = call.function or FunctionCall(name=""), opaque_json(call.extra_content)
    arguments = function.arguments or "{}"
    text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
    source = Opaque("chat", extra) if extra else None
    return Call(id=call_id, name=function.name, arguments=text, source=source)


def _text(content: str | list[ContentPart] | None, where: str, role: str, *, must_say: bool) -> str:
    if isinstance(content, str):
        return content
    if not content:
        if must_say:
            raise BadRequestError("A message needs content: a string or a list of parts.", where, "invalid_value")
        return ""
    texts = [
        _part(part, f"{where}[{index}]", must_say=must_say)
        for index, part in enumerate(content)
        if role != "assistant" or part.type not in THOUGHTS
    ]
    return "\n".join(texts)


def _thoughts(content: str | list[ContentPart] | None) -> str:
    """What an assistant's parts say of its thoughts; servers give them as a text, or as parts (Mistral)."""
    if not isinstance(content, list):
        return ""
    texts: list[str] = []
    for part in content:
        if part.type in THOUGHTS:
            thinking = part.thinking if isinstance(part.thinking, list) else [{"text": part.thinking or part.text}]
            texts += [
                piece["text"] for piece in thinking if isinstance(piece, dict) and isinstance(piece.get("text"), str)
            ]
    return "".join(texts)


def _part(part: ContentPart, where: str, *, must_say: bool = True) -> str:
    if part.type in _TEXTS and (part.text is not None or not must_say):
        return part.text or ""
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in (*_TEXTS, "refusal"):
        name = "refusal" if part.type == "refusal" else "text"
        raise BadRequestError(f"A part of type {part.type!r} needs the field {name}.", f"{where}.{name}")
    raise BadRequestError(
        f"Invalid content type {part.type!r}: allowed are text, refusal, {', '.join(MEDIA_TYPES)}.", f"{where}.type"
    )


def _stands_alone(part: ContentPart, role: str) -> bool:
    """Whether a part is more than some of the turn's text: a medium, or the end of what OpenAI is to cache, which only
    turns of the system and the user may have."""
    return _kind(part) in MEDIA_TYPES or (part.prompt_cache_breakpoint is not None and role in ("system", "user"))


def _content_part(part: ContentPart, where: str) -> Content:
    block = _unmarked_part(part, where)
    mark, control = part.prompt_cache_breakpoint, part.cache_control
    control = control if isinstance(control, dict) else None
    return block if mark is control is None else msgspec.structs.replace(block, breakpoint=mark, cache_control=control)


def _unmarked_part(part: ContentPart, where: str) -> Content:
    kind = _kind(part)
    if kind not in MEDIA_TYPES:
        return Text(_part(part, where))
    value = getattr(part, kind)
    if isinstance(value, str) and kind in ("image_url", "video_url"):
        value = {"url": value}
    return medium_part(kind, value, f"{where}.{kind}")


def medium_part(kind: str, value: Any, where: str) -> Content:
    """Return the medium that is the object at `where` of a part of the type `kind`. Raises `BadRequestError`."""
    if not isinstance(value, dict):
        raise BadRequestError(f"A part of type {kind!r} needs the object {kind}.", where, "invalid_value")
    names = MEDIA_TYPES[kind]
    bodies = [name for name in names if value.get(name) is not None]
    if not bodies or not all(isinstance(value[name], str) for name in bodies):
        raise BadRequestError(f"{kind} needs {' or '.join(names)}, as text.", f"{where}.{names[0]}", "invalid_value")
    if len(value) > MAX_MEDIA_FIELDS or any(isinstance(inner, (dict, list)) for inner in value.values()):
        raise BadRequestError(
            f"{kind} has fields that no server reads: allowed are {MAX_MEDIA_FIELDS} plain values.",
            where,
            "invalid_value",
        )
    block = medium(_KINDS[kind], value, {name: f"{where}.{name}" for name in names})
    refuse_urls({kind: value}, where.rpartition(".")[0])
    return block


def medium(kind: MediaKind, fields: dict[str, Any], paths: Mapping[str, str]) -> Content:
    """Return an image, a video, audio or a file whose `fields` have a chat's names; a file of text as its text.
    `paths`: those of the fields, in the caller's words. Raises `BadRequestError`."""
    if kind == "file" and (problem := _file_problem(str(fields.get("file_data") or ""))):
        raise BadRequestError(
            f"A file is given as its bytes, or by its public address: {problem}.", paths["file_data"], "invalid_value"
        )
    if kind == "file" and fields.get("file_data") is None and _OWN_FILE.fullmatch(fields["file_id"]):
        raise BadRequestError(
            f"There is no uploaded file {fields['file_id']!r}: it may have expired.", paths["file_id"], "file_not_found"
        )
    if kind in ("image", "video") and (problem := _media_problem(fields["url"])):
        raise BadRequestError(
            f"{'An image' if kind == 'image' else 'A video'} is given as a data: URL of its bytes, or by its public "
            f"https: or http: address: {problem}.",
            paths["url"],
            "invalid_value",
        )
    if kind == "file" and (text := text_of(str(fields.get("file_data")))) is not None:
        return Text(f"{fields['filename']}\n{text}" if fields.get("filename") else text)
    return media(kind, fields)


def text_of(data_url: str) -> str | None:
    """The text of a file that is one, such as a page or JSON; None for another file."""
    head, _, body = data_url.partition(";base64,")
    if not body or not _TEXT_FILE.match(head.removeprefix("data:")):
        return None
    try:
        return base64.b64decode(body).decode(errors="replace")
    except ValueError:
        return None


def _kind(part: ContentPart) -> str:
    return _OTHER_NAMES.get(part.type, part.type)


def _media_problem(url: str) -> str:
    if url[:5].lower() == "data:":
        return "" if url[:11].lower() in ("data:image/", "data:video/") else "its data are no image or video"
    return url_problem(url)


def _file_problem(data: str) -> str:
    return url_problem(data) if looks_like_url(data) else ""
