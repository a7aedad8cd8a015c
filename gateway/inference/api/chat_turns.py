"""The messages of a chat as models are given them: roles, content parts and tool calls, each checked."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from classifier.features.stray_text import without_billing
from gateway.base.errors import bad_request
from gateway.inference.api.caller_urls import refuse_urls
from gateway.inference.api.constraints import CUSTOM, arguments_of
from gateway.inference.api.schemas import (
    MAX_MESSAGES,
    MAX_PARTS,
    ContentPart,
    FunctionCall,
    Message,
    MessageToolCall,
)
from tiers.chat_state import DETAILS, EXTRA, PART_TYPES, audio_reference, state_blocks, state_json
from tiers.conversation import Call, Content, MediaKind, Opaque, Text, Turn, media
from tiers.server_words import looks_like_url, url_problem

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


def turns_of(messages: list[Message]) -> list[Turn]:
    """The conversation. Raises `ApiError` 400 for a message that no model could read."""
    if not messages:
        raise bad_request("messages is empty: give at least one message.", "messages", "empty_array")
    if len(messages) > MAX_MESSAGES:
        raise bad_request(
            f"messages holds {len(messages)}; at most {MAX_MESSAGES} fit one request.", "messages", "array_too_long"
        )
    parts = sum(map(_num_parts, messages))
    if parts > MAX_PARTS:
        raise bad_request(
            f"messages hold {parts} content parts and tool calls; at most {MAX_PARTS} fit one request.",
            "messages",
            "array_too_long",
        )
    ids, last = _CallIds(), len(messages) - 1
    return [_turn(message, place, ids, is_last=place == last) for place, message in enumerate(messages)]


class _CallIds:
    """Ids for calls and results that have none, as some servers' have: results answer the calls in their order."""

    def __init__(self) -> None:
        self._unanswered: list[str] = []

    def of_calls(self, message: int, calls: Sequence[MessageToolCall]) -> list[str]:
        self._unanswered = [call.id or f"call_{message}_{place}" for place, call in enumerate(calls)]
        return list(self._unanswered)

    def of_result(self, given: str | None) -> str | None:
        """The id of the call that a result answers; None if it is unknown."""
        if given in self._unanswered:
            self._unanswered.remove(given)
        elif not given and self._unanswered:
            return self._unanswered.pop(0)
        return given or None


def _num_parts(message: Message) -> int:
    parts = len(message.content) if isinstance(message.content, list) else 0
    return parts if message.tool_calls is None else parts + len(message.tool_calls)


def _turn(message: Message, number: int, ids: _CallIds, *, is_last: bool) -> Turn:
    where = f"messages[{number}]"
    if message.role not in ROLES:
        raise bad_request(
            f"Invalid role {message.role!r}: allowed are system, developer, user, assistant and tool.", f"{where}.role"
        )
    if message.role == "function" or message.function_call is not None:
        message = _of_tools(message)
    calls = _calls(message, number, ids)
    answered = ids.of_result(message.tool_call_id) if message.role == "tool" else None
    if message.role == "tool" and answered is None:
        raise bad_request(
            "A message of the role tool needs the tool_call_id that it answers.",
            f"{where}.tool_call_id",
            "missing_required_parameter",
        )
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, list) and any(_stands_alone(part, role) for part in message.content):
        parts = (_content_part(part, f"{where}.content[{place}]") for place, part in enumerate(message.content))
        return Turn.of(role, parts, name=message.name, calls=calls, call_id=answered)
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
    opaque = _state(message) if role == "assistant" else ()
    given = message.content if isinstance(message.content, list) else ()
    if marked := not calls and bool([part for part in given if part.cache_control is not None]):
        opaque += _marked(message, given)
    return Turn.of(
        role,
        content,
        name=message.name,
        calls=calls,
        call_id=answered,
        thoughts=thoughts if isinstance(thoughts, str) else "",
        opaque=opaque,
        cache_mark=marked,
    )


def _of_tools(message: Message) -> Message:
    """A call of a function, or its result, of the API's first years as those of tools."""
    if message.role == "function":
        return msgspec.structs.replace(message, role="tool", name=None)
    calls = message.tool_calls or [MessageToolCall(function=message.function_call)]
    return msgspec.structs.replace(message, tool_calls=calls)


def _state(message: Message) -> tuple[Opaque, ...]:
    """What an assistant's turn has that its server needs back."""
    details, extra = message.reasoning_details, message.extra_content
    heard = audio_reference(message.audio) if message.audio else ()
    return heard if details is extra is msgspec.UNSET else (*state_blocks({DETAILS: details, EXTRA: extra}), *heard)


def _marked(message: Message, parts: Sequence[ContentPart]) -> tuple[Opaque, ...]:
    """Texts with marks of a cache in the form of Anthropic, whose tiers alone can do anything with them."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": part.text or part.refusal or ""}
        | ({"cache_control": part.cache_control} if part.cache_control is not None else {})
        for part in parts
    ]
    if message.role == "tool":
        mark = {"cache_control": last} if (last := blocks[-1].pop("cache_control", None)) is not None else {}
        blocks = [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": blocks} | mark]
    return tuple(Opaque("messages", _encode(one), one["type"]) for one in blocks)


def _calls(message: Message, number: int, ids: _CallIds) -> tuple[Call, ...]:
    if not message.tool_calls:
        return ()
    where = f"messages[{number}]"
    if message.role != "assistant":
        raise bad_request(
            f"Only an assistant calls tools, not a {message.role}.", f"{where}.tool_calls", "invalid_value"
        )
    for place, call in enumerate(message.tool_calls):
        if _type(call) not in ("function", CUSTOM):
            raise bad_request(
                f"Unsupported tool call type {call.type!r}.", f"{where}.tool_calls[{place}].type", "invalid_value"
            )
        if (call.function if _type(call) == "function" else call.custom) is None:
            raise bad_request(
                f"A tool call of type {_type(call)!r} needs the object {_type(call)}.",
                f"{where}.tool_calls[{place}].{_type(call)}",
                "missing_required_parameter",
            )
    return tuple(map(_call, message.tool_calls, ids.of_calls(number, message.tool_calls)))


def _type(call: MessageToolCall) -> str:
    return call.type or "function"


def _call(call: MessageToolCall, call_id: str) -> Call:
    if call.custom is not None and call.type == CUSTOM:
        return Call(id=call_id, name=call.custom.name, arguments=arguments_of(call.custom.input))
    function, extra = call.function or FunctionCall(name=""), state_json(call.extra_content)
    arguments = function.arguments or "{}"
    text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
    source = Opaque("chat", extra) if extra else None
    return Call(id=call_id, name=function.name, arguments=text, source=source)


def _text(content: str | list[ContentPart] | None, where: str, role: str, *, must_say: bool) -> str:
    if isinstance(content, str):
        return content
    if not content:
        if must_say:
            raise bad_request("A message needs content: a string or a list of parts.", where, "invalid_value")
        return ""
    texts = [
        _part(part, f"{where}[{place}]", must_say=must_say)
        for place, part in enumerate(content)
        if role != "assistant" or part.type not in THOUGHTS
    ]
    return "\n".join(texts)


def _thoughts(content: str | list[ContentPart] | None) -> str:
    """What an assistant's parts say of its thoughts; servers give them as a text, or as parts (Mistral)."""
    if not isinstance(content, list):
        return ""
    found: list[str] = []
    for part in content:
        if part.type in THOUGHTS:
            given = part.thinking if isinstance(part.thinking, list) else [{"text": part.thinking or part.text}]
            found += [one["text"] for one in given if isinstance(one, dict) and isinstance(one.get("text"), str)]
    return "".join(found)


def _part(part: ContentPart, where: str, *, must_say: bool = True) -> str:
    if part.type in _TEXTS and (part.text is not None or not must_say):
        return part.text or ""
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in (*_TEXTS, "refusal"):
        name = "refusal" if part.type == "refusal" else "text"
        raise bad_request(f"A part of type {part.type!r} needs the field {name}.", f"{where}.{name}")
    raise bad_request(
        f"Invalid content type {part.type!r}: allowed are text, refusal, {', '.join(MEDIA_TYPES)}.", f"{where}.type"
    )


def _stands_alone(part: ContentPart, role: str) -> bool:
    """Whether a part is more than some of the turn's text: a medium, or the end of what OpenAI is to cache, which only
    turns of the system and the user may have."""
    return _kind(part) in MEDIA_TYPES or (part.prompt_cache_breakpoint is not None and role in ("system", "user"))


def _content_part(part: ContentPart, where: str) -> Content:
    found = _unmarked_part(part, where)
    mark = part.prompt_cache_breakpoint
    return found if mark is None else msgspec.structs.replace(found, breakpoint=mark)


def _unmarked_part(part: ContentPart, where: str) -> Content:
    if _kind(part) not in MEDIA_TYPES:
        return Text(_part(part, where))
    kind = _kind(part)
    given = getattr(part, kind)
    where = f"{where}.{kind}"
    if isinstance(given, str) and kind in ("image_url", "video_url"):
        given = {"url": given}
    if not isinstance(given, dict):
        raise bad_request(f"A part of type {kind!r} needs the object {kind}.", where, "invalid_value")
    names = MEDIA_TYPES[kind]
    bodies = [name for name in names if given.get(name) is not None]
    if not bodies or not all(isinstance(given[name], str) for name in bodies):
        raise bad_request(f"{kind} needs {' or '.join(names)}, as text.", f"{where}.{names[0]}", "invalid_value")
    if len(given) > MAX_MEDIA_FIELDS or any(isinstance(value, (dict, list)) for value in given.values()):
        raise bad_request(
            f"{kind} has fields that no server reads: allowed are {MAX_MEDIA_FIELDS} plain values.",
            where,
            "invalid_value",
        )
    if kind == "file" and (problem := _file_problem(str(given.get("file_data") or ""))):
        raise bad_request(
            f"A file is given as its bytes, or by its public address: {problem}.", f"{where}.file_data", "invalid_value"
        )
    if kind == "file" and "file_data" not in bodies and _OWN_FILE.fullmatch(given["file_id"]):
        raise bad_request(
            f"There is no uploaded file {given['file_id']!r}: it may have expired.",
            f"{where}.file_id",
            "file_not_found",
        )
    if kind in ("image_url", "video_url") and (problem := _media_problem(given["url"])):
        raise bad_request(
            f"{'An image' if kind == 'image_url' else 'A video'} is given as a data: URL of its bytes, or by its "
            f"public https: or http: address: {problem}.",
            f"{where}.url",
            "invalid_value",
        )
    refuse_urls({kind: given}, where.rpartition(".")[0])
    if kind == "file" and (text := text_of(str(given.get("file_data")))) is not None:
        return Text(f"{given['filename']}\n{text}" if given.get("filename") else text)
    return media(_KINDS[kind], given)


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
