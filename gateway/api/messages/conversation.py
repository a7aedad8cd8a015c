"""The messages of a request as those of a chat: blocks become texts, parts, calls and results of tools."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from gateway.api.inference.schemas import ContentPart, FunctionCall, Message, MessageToolCall
from gateway.api.messages.schemas import Block, ResultBlock, Source, Text, Turn
from gateway.errors import ApiError, bad_request

# Claude Code's first system block; its numbers change with every request, so that no prefix would ever be cached.
BILLING_HEADER = "x-anthropic-billing-header:"
# Between blocks, which are paragraphs of their own. An assistant's are pieces of one text.
_BETWEEN = "\n\n"


class Placed(NamedTuple):
    """A block and its path in the request."""

    where: str
    block: Block


class Conversation(NamedTuple):
    """The messages of the chat, and for each the path of the message that it comes from."""

    messages: list[Message]
    origins: list[str]


def conversation_of(system: str | list[Text] | None, turns: Sequence[Turn]) -> Conversation:
    """The chat that says the same. Raises `ApiError` 400 that names the block."""
    if not turns:
        raise bad_request("messages: at least one message is required.", "messages", "empty_array")
    if turns[-1].role == "assistant":
        raise bad_request(
            "This model does not support assistant message prefill. The conversation must end with a user message.",
            "messages",
            "unsupported_content",
        )
    messages: list[Message] = []
    origins: list[str] = []
    if text := _system_text(system):
        messages.append(Message(role="system", content=text))
        origins.append("system")
    # As Anthropic does it: consecutive turns of the same role are one turn.
    for role, group in groupby(enumerate(turns), key=lambda numbered: numbered[1].role):
        numbered = list(group)
        where = f"messages.{numbered[0][0]}"
        placed = [one for number, turn in numbered for one in _placed(f"messages.{number}", turn)]
        for message in _CONVERSIONS[role](placed, where):
            messages.append(message)
            origins.append(where)
    return Conversation(messages, origins)


def _system_text(system: str | list[Text] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return _BETWEEN.join(block.text for block in system if not block.text.startswith(BILLING_HEADER))


def _placed(where: str, turn: Turn) -> Iterator[Placed]:
    if isinstance(turn.content, str):
        yield Placed(f"{where}.content", Block(type="text", text=turn.content))
        return
    for place, block in enumerate(turn.content):
        yield Placed(f"{where}.content.{place}", block)


def _user(placed: Sequence[Placed], where: str) -> Iterator[Message]:
    """Results of tools come first: they answer the calls right before."""
    parts: list[ContentPart] = []
    if not placed:
        raise bad_request(f"{where}: a user message must have content.", where, "invalid_value")
    for at, block in placed:
        if block.type != "tool_result":
            continue
        if not block.tool_use_id:
            raise _missing(f"{at}.tool_use_id")
        given = [] if block.content is None else block.content
        results = [ResultBlock(type="text", text=given)] if isinstance(given, str) else given
        read = [part for place, one in enumerate(results) for part in _read(one, f"{at}.content.{place}")]
        # Results are text in OpenAI's API: what is not follows in the user's own turn.
        shown = [part for part in read if part.type != "text"]
        text = _BETWEEN.join(part.text or "" for part in read if part.type == "text")
        if shown:
            number = "file" if all(part.type == "file" for part in shown) else "image"
            text = _BETWEEN.join(filter(None, [text, f"(The {number} of this result follows in the next message.)"]))
        yield Message(
            role="tool",
            tool_call_id=block.tool_use_id,
            content=f"Error: {text}" if block.is_error else text,
        )
        parts += shown
    for at, block in placed:
        if block.type != "tool_result":
            parts += _read(block, at)
    if all(part.type == "text" for part in parts):
        if parts:
            yield Message(role="user", content=_BETWEEN.join(part.text or "" for part in parts))
        return
    yield Message(role="user", content=parts)


def _assistant(placed: Sequence[Placed], where: str) -> Iterator[Message]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[MessageToolCall] = []
    for at, block in placed:
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(_call(block, at))
        elif block.type == "text":
            texts.append(_text(block.text, at))
        elif block.type != "redacted_thinking":
            raise _unknown(block.type, at, "text, thinking, redacted_thinking and tool_use")
    yield Message(
        role="assistant",
        content="".join(texts),
        reasoning_content=_BETWEEN.join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )


def _system(placed: Sequence[Placed], where: str) -> Iterator[Message]:
    for at, block in placed:
        if block.type != "text":
            raise _unknown(block.type, at, "text")
    yield Message(role="system", content=_BETWEEN.join(_text(block.text, at) for at, block in placed))


_CONVERSIONS = {"user": _user, "assistant": _assistant, "system": _system}


def _call(block: Block, where: str) -> MessageToolCall:
    if not block.id:
        raise _missing(f"{where}.id")
    if not block.name:
        raise _missing(f"{where}.name")
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return MessageToolCall(id=block.id, function=FunctionCall(name=block.name, arguments=arguments))


def _read(block: Block | ResultBlock, where: str) -> Iterable[ContentPart]:
    """The parts that a block of a user's turn, or of a tool's result, is."""
    if block.type == "text":
        return [_text_part(_text(block.text, where))]
    if block.type == "image":
        return [_image(_source(block, where), where)]
    if block.type == "document":
        return _document(block, _source(block, where), where)
    if block.type == "search_result":
        head = " ".join(filter(None, [block.title, f"({block.source})" if isinstance(block.source, str) else None]))
        return [_text_part(_lines(head, _joined(block.content)))]
    raise _unknown(block.type, where, "text, image, document, search_result and tool_result")


def _source(block: Block | ResultBlock, where: str) -> Source:
    if not isinstance(block.source, Source):
        raise _missing(f"{where}.source")
    return block.source


def _image(source: Source, where: str) -> ContentPart:
    if source.type == "base64":
        return ContentPart(type="image_url", image_url={"url": _data_url(source, where)})
    if source.type == "url" and source.url:
        return ContentPart(type="image_url", image_url={"url": source.url})
    raise _unknown_source(source, where, "base64 and url")


def _document(block: Block | ResultBlock, source: Source, where: str) -> list[ContentPart]:
    head = _lines(block.title, block.context)
    if source.type == "text":
        return [_text_part(_lines(head, source.data))]
    if source.type == "content":
        return [_text_part(_lines(head, _joined(source.content)))]
    if source.type == "base64":
        file = {"filename": block.title or "document.pdf", "file_data": _data_url(source, where)}
        part = ContentPart(type="file", file=file)
        return [_text_part(block.context), part] if block.context else [part]
    raise _unknown_source(source, where, "base64, text and content")


def _data_url(source: Source, where: str) -> str:
    if not source.media_type:
        raise _missing(f"{where}.source.media_type")
    if not source.data:
        raise _missing(f"{where}.source.data")
    return f"data:{source.media_type};base64,{source.data}"


def _joined(content: str | Sequence[Text | ResultBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return _BETWEEN.join(block.text or "" for block in content)


def _lines(*texts: str | None) -> str:
    return "\n".join(filter(None, texts))


def _text_part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


def _text(text: str | None, where: str) -> str:
    if text is None:
        raise _missing(f"{where}.text")
    return text


def _missing(where: str) -> ApiError:
    return bad_request(f"{where}: Field required.", where, "missing_required_parameter")


def _unknown(kind: str, where: str, allowed: str) -> ApiError:
    message = f"{where}.type: blocks of type {kind!r} are not supported here; allowed are {allowed}."
    return bad_request(message, f"{where}.type", "unsupported_content")


def _unknown_source(source: Source, where: str, allowed: str) -> ApiError:
    at = f"{where}.source.type"
    return bad_request(
        f"{at}: sources of type {source.type!r} are not supported here; allowed are {allowed}.",
        at,
        "unsupported_content",
    )
