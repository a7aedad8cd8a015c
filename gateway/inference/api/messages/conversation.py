"""The messages of a request as those of a chat: blocks become texts, parts, calls and results of tools, next to what
they were.

Ids of calls are as Anthropic's clients expect them: in its characters, and never twice in a conversation. A server's
own id that is neither is carried inside, so that the server gets it back. Parts of a request are decoded where they
are needed: a server with the same API gets them as they are.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from gateway.base.errors import ApiError, bad_request
from gateway.inference.api.messages.schemas import Turn
from tiers.conversation import FAILED_RESULT, PROVIDERS_OWN, TURN, Opaque
from tiers.dialects.caller_urls import refuse_turn
from tiers.dialects.chat_request import BILLING_HEADER, text_of
from tiers.dialects.chat_schemas import ContentPart, FunctionCall, Message, MessageToolCall
from tiers.dialects.decoding import decoded
from tiers.dialects.messages import DIALECT, UNSIGNED, Block, ResultBlock, Source, Text, given_call_id

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class Readable(Protocol):
    """A block and its JSON; b"" for a text that was no block."""

    @property
    def block(self) -> Any: ...

    @property
    def json(self) -> bytes: ...


def opaque_of(said: Sequence[Readable], message: Message) -> tuple[Opaque, ...]:
    """Return the blocks as they were given; none where `message` says the same: of a text alone. A message may have
    more: the images of results, which are in the blocks of these."""
    if isinstance(message.content, str) and (not said or (len(said) == 1 and _is_text_alone(said[0]))):
        return ()
    # Anthropic refuses blank texts, which agents that were interrupted keep in their histories.
    return tuple(_opaque(one) for one in said if not _is_blank(one.block)) or (Opaque(DIALECT, b""),)


def _opaque(one: Readable) -> Opaque:
    block = one.block
    json = one.json or _encode({"type": "text", "text": block.text})
    if block.type == "tool_result" and isinstance(block.content, list) and b"text" in json:
        given = msgspec.json.decode(json, type=dict[str, Any])
        json = _encode(given | {"content": [part for part in given["content"] if not _is_blank_text(part)]})
    if block.type not in ("thinking", "redacted_thinking"):
        return Opaque(DIALECT, json, block.type)
    return Opaque(DIALECT, json, block.type, block.signature or block.data or "")


def _is_blank(block: Any) -> bool:
    return block.type == "text" and not (block.text or "").strip()


def _is_blank_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and not str(part.get("text") or "").strip()


def _is_text_alone(one: Readable) -> bool:
    block = one.block
    return block.type == "text" and block.cache_control is None and block.citations is None


# Between blocks, which are paragraphs of their own. An assistant's are pieces of one text.
_BETWEEN = "\n\n"
# Parts of OpenAI's APIs.
_CHATS_OWN = ("input_text", "output_text", "refusal", "image_url", "input_image", "file", "input_file")
_READ = ("text", "image", "document", "search_result", "tool_result")


class Placed(NamedTuple):
    """A block, its JSON and its place: the numbers of its message and in it."""

    message: int
    place: int
    block: Block
    json: bytes = b""

    @property
    def where(self) -> str:
        """The path of the block in the request."""
        return f"messages.{self.message}.content.{self.place}"

    @property
    def is_own(self) -> bool:
        """Whether it is of a tool that the provider runs, or its bookkeeping."""
        return self.block.type not in _READ and self.block.type.endswith(PROVIDERS_OWN)

    @property
    def definition(self) -> dict[str, Any] | None:
        """Of a tool that it adds by value."""
        tool = self.block.tool if self.block.type == "tool_addition" else None
        return tool["definition"] if isinstance(tool, dict) and isinstance(tool.get("definition"), dict) else None


class Conversation(NamedTuple):
    """The messages of the chat, for each the path of the message that it comes from, and what it is here. `foreign`:
    types of blocks and sources that only a server with this API can read, newer ones among them. `added_tools`:
    definitions of tools that turns of the system add."""

    messages: list[Message]
    origins: list[str]
    opaque: list[tuple[Opaque, ...]]
    foreign: list[str]
    added_tools: list[dict[str, Any]]


Said = tuple[Message, Sequence[Placed]]


def conversation_of(system: str | list[msgspec.Raw] | None, turns: Sequence[Turn]) -> Conversation:
    """The chat that says the same. Raises `ApiError` 400 that names the block."""
    if not turns:
        raise bad_request("messages: at least one message is required.", "messages", "empty_array")
    chat = Conversation([], [], [], [], [])
    blocks = _system_blocks(system)
    if text := _BETWEEN.join(one.block.text or "" for one in blocks):
        chat.messages.append(Message(role="system", content=text))
        chat.origins.append("system")
        chat.opaque.append(() if isinstance(system, str) else opaque_of(blocks, chat.messages[-1]))
    # Earlier turns without content say nothing.
    said_turns = [
        (place, turn)
        for place, turn in enumerate(turns)
        if turn.content or turn.has_controls or place == len(turns) - 1
    ]
    # As Anthropic does it: consecutive turns of the same role are one turn.
    for (role, controlled), group in groupby(
        said_turns, key=lambda one: (one[1].role, one[0] if one[1].has_controls else None)
    ):
        same = list(group)
        first, placed = same[0][0], [one for place, turn in same for one in _placed(place, turn)]
        where = f"messages.{first}"
        if role == "user" and not placed:
            raise bad_request(f"{where}: a user message must have content.", where, "invalid_value")
        said = _CONVERSIONS[role](placed, chat.foreign)
        chat.added_tools.extend(one.definition for one in placed if role == "system" and one.definition)
        if role == "system" and controlled is not None:
            turn = turns[first]
            cleared = turn.clear_at == "next_user_message" and "user" in [later.role for later in turns[first:]]
            own = Opaque(DIALECT, _encode(_as_written(turn)), TURN)
            said = [] if cleared or not placed else said
            if not said and chat.messages:
                chat.opaque[-1] = (*_blocks(chat.messages[-1], chat.opaque[-1]), own)
        else:
            own = None
        for message, read in said:
            chat.messages.append(message)
            chat.origins.append(where)
            chat.opaque.append(opaque_of(read, message) if own is None else (own,))
    return chat


def _as_written(turn: Turn) -> dict[str, Any]:
    fields = {name: value for name in ("output_config", "clear_at") if (value := getattr(turn, name)) is not None}
    return {"role": turn.role, "content": turn.content or []} | fields


def _blocks(message: Message, opaque: tuple[Opaque, ...]) -> tuple[Opaque, ...]:
    """What a message is here, also if it is a text alone."""
    text = _encode({"type": "text", "text": message.content})
    return opaque or (Opaque(DIALECT, text, "text"),) * bool(message.content)


def _system_blocks(system: str | list[msgspec.Raw] | None) -> list[Placed]:
    if system is None or isinstance(system, str):
        return [Placed(0, 0, Block(type="text", text=system))] if system else []
    texts = [(decoded(raw, Text, f"system.{place}"), raw) for place, raw in enumerate(system)]
    return [
        Placed(0, place, Block(type="text", text=text.text, cache_control=text.cache_control), bytes(raw))
        for place, (text, raw) in enumerate(texts)
        if not text.text.startswith(BILLING_HEADER)
    ]


def _placed(number: int, turn: Turn) -> list[Placed]:
    if not turn.content:
        return []
    if isinstance(turn.content, str):
        return [Placed(number, 0, Block(type="text", text=turn.content))]
    placed = [
        Placed(number, place, decoded(raw, Block, f"messages.{number}.content.{place}"), bytes(raw))
        for place, raw in enumerate(turn.content)
    ]
    for one in placed:
        refuse_turn(one.json, one.where)
    return placed


def _user(placed: Sequence[Placed], foreign: list[str]) -> list[Said]:
    """Results of tools come first: they answer the calls right before."""
    messages: list[Said] = []
    parts: list[ContentPart] = []
    for one in placed:
        if one.block.type == "tool_result":
            message, shown = _result(one, foreign)
            messages.append((message, [one]))
            parts += shown
    others = [one for one in placed if one.block.type != "tool_result"]
    for one in others:
        parts += [] if one.is_own else _read(one.block, one, foreign)
    if parts or others:
        is_text = all(part.type == "text" for part in parts)
        messages.append((Message(role="user", content=_text_of(parts) if is_text else parts), others))
    return messages


def _result(placed: Placed, foreign: list[str]) -> tuple[Message, list[ContentPart]]:
    """The result of a tool, which is text in OpenAI's API, and what else it has, for the user's own turn."""
    block, shown = placed.block, []
    if not block.tool_use_id:
        raise _missing(f"{placed.where}.tool_use_id")
    if isinstance(block.content, list):
        blocks = decoded(block.content, list[ResultBlock], f"{placed.where}.content")
        read = [part for one in blocks for part in _read(one, placed, foreign)]
        text, shown = _text_of(read), [part for part in read if part.type != "text"]
    else:
        text = "" if block.content is None else decoded(block.content, str, f"{placed.where}.content")
    if shown:
        kind = "file" if all(part.type == "file" for part in shown) else "image"
        text = _BETWEEN.join(filter(None, [text, f"(The {kind} of this result follows in the next message.)"]))
    content = f"{FAILED_RESULT}{text}" if block.is_error else text
    return Message(role="tool", tool_call_id=given_call_id(block.tool_use_id), content=content), shown


def _text_of(parts: Sequence[ContentPart]) -> str:
    return _BETWEEN.join(part.text or "" for part in parts if part.type == "text")


def _assistant(placed: Sequence[Placed], foreign: list[str]) -> list[Said]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[MessageToolCall] = []
    for one in placed:
        block = one.block
        if block.type == "text":
            texts.append(_text(block.text, one))
        elif block.type == "tool_use":
            calls.append(_call(block, one))
        elif block.type == "thinking":
            # Signed thoughts are for their maker alone.
            thoughts.append(block.thinking or "" if block.signature in (None, "", UNSIGNED) else "")
        elif not one.is_own:
            _read(block, one, foreign)
    thought = _BETWEEN.join(filter(None, thoughts)) or None
    said = "".join(texts)
    turn = Message(role="assistant", content=said, reasoning_content=thought, tool_calls=calls or None)
    return [(turn, [one for one in placed if one.block.type != "thinking" or one.block.signature != UNSIGNED])]


def _system(placed: Sequence[Placed], foreign: list[str]) -> list[Said]:
    texts: list[str] = []
    for one in placed:
        if (change := _CHANGES.get(one.block.type)) is not None:
            tool = one.definition or (one.block.tool if isinstance(one.block.tool, dict) else {})
            texts.append(change.format(tool.get("name") or tool.get("tool_name")))
        elif one.block.type == "text":
            texts.append(_text(one.block.text, one))
        else:
            foreign.append(one.block.type)
    return [(Message(role="system", content=_BETWEEN.join(texts)), placed)]


# Every model has been given these tools from the beginning.
_CHANGES = {
    "tool_addition": "The tool {} is available from now on.",
    "tool_removal": "The tool {} is not available any more.",
}
_CONVERSIONS = {"user": _user, "assistant": _assistant, "system": _system}


def _call(block: Block, placed: Placed) -> MessageToolCall:
    if not block.id:
        raise _missing(f"{placed.where}.id")
    if not block.name:
        raise _missing(f"{placed.where}.name")
    # Arguments that were cut off are texts in some clients' histories.
    arguments = block.input if isinstance(block.input, str) else _encode(block.input or {}).decode()
    return MessageToolCall(id=given_call_id(block.id), function=FunctionCall(name=block.name, arguments=arguments))


def _read(block: Block | ResultBlock, placed: Placed, foreign: list[str]) -> list[ContentPart]:
    """The parts that a block of a user's turn, or of a tool's result, is; none for what is `foreign`."""
    if block.type == "text":
        return [_text_part(_text(block.text, placed))]
    if block.type == "image":
        image = _image(_source(block, placed), placed)
        foreign += [] if image else [_foreign_source(block)]
        return image
    if block.type == "document":
        document = _document(block, _source(block, placed), placed)
        foreign += [] if document else [_foreign_source(block)]
        return document
    if block.type == "search_result":
        head = " ".join(filter(None, [block.title, f"({block.source})" if isinstance(block.source, str) else None]))
        return [_text_part(_lines(head, _joined(block.content, f"{placed.where}.content")))]
    if block.type == "tool_reference":
        # A found tool, which every model has been given anyway.
        return [_text_part(f"Tool {block.tool_name} is available.")]
    if block.type in _CHATS_OWN:
        raise bad_request(f"{placed.where}: Unsupported block of type {block.type}.", f"{placed.where}.type")
    foreign.append(block.type)
    return []


def _foreign_source(block: Block | ResultBlock) -> str:
    return f"{block.type} with source {block.source.type if isinstance(block.source, Source) else ''}"


def _source(block: Block | ResultBlock, placed: Placed) -> Source:
    if not isinstance(block.source, Source):
        raise _missing(f"{placed.where}.source")
    return block.source


def _image(source: Source, placed: Placed) -> list[ContentPart]:
    if source.type == "base64":
        return [ContentPart(type="image_url", image_url={"url": _data_url(source, placed)})]
    if source.type == "url" and source.url:
        return [ContentPart(type="image_url", image_url={"url": source.url})]
    return []


def _document(block: Block | ResultBlock, source: Source, placed: Placed) -> list[ContentPart]:
    head = _lines(block.title, block.context)
    if source.type == "text":
        return [_text_part(_lines(head, source.data))]
    if source.type == "content":
        return [_text_part(_lines(head, _joined(source.content, f"{placed.where}.source.content")))]
    if source.type == "base64" and (text := text_of(_data_url(source, placed))) is not None:
        return [_text_part(_lines(head, text))]
    if source.type == "url" and source.url:
        return [ContentPart(type="file", file={"filename": block.title or "document.pdf", "file_data": source.url})]
    if source.type == "base64":
        file = {"filename": block.title or "document.pdf", "file_data": _data_url(source, placed)}
        part = ContentPart(type="file", file=file)
        return [_text_part(block.context), part] if block.context else [part]
    return []


def _data_url(source: Source, placed: Placed) -> str:
    if not source.media_type:
        raise _missing(f"{placed.where}.source.media_type")
    if not source.data:
        raise _missing(f"{placed.where}.source.data")
    return source.data if source.data.startswith("data:") else f"data:{source.media_type};base64,{source.data}"


def _joined(content: str | Sequence[Text | ResultBlock] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return _BETWEEN.join(block.text or "" for block in decoded(content, list[Text], where))


def _lines(*texts: str | None) -> str:
    return "\n".join(filter(None, texts))


def _text_part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


def _text(text: str | None, placed: Placed) -> str:
    if text is None:
        raise _missing(f"{placed.where}.text")
    return text


def _missing(where: str) -> ApiError:
    return bad_request(f"{where}: Field required.", where, "missing_required_parameter")
