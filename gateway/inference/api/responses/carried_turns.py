"""What a server needs back of a turn, carried by the client in a reasoning item of its own: where texts may not be
stored, as with `"store": false` of Codex, nothing else keeps it.

Of texts and calls nothing is in it: those are the client's other items, so that what is screened is what is sent.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.inference.answering.answer import Answer
from gateway.inference.api.responses.native_items import OWN_SEAL
from inference_core.io.json_errors import JSON_ERRORS
from tiers.chat_state import FORM, MOST_STATE_BYTES, kept_state, with_kept_state, without_thoughts
from tiers.native_content import Form, NativeBlock, NativeContent
from tiers.tier import ChatMessage

CARRIED = f"{OWN_SEAL}turn."
"""What `encrypted_content` of such an item begins with."""
_TEXT, _CALL = "text", "call"
_SLOTS = {"text": _TEXT, "tool_use": _CALL}


class _Turn(msgspec.Struct, frozen=True, array_like=True):
    """Who made a turn, and its blocks; a block of type `text` or `call` stands for what the client itself sends."""

    maker: str
    form: Form
    blocks: tuple[NativeBlock, ...]


def carried(answer: Answer) -> str | None:
    """Return the `encrypted_content` of the state that the server of a finished answer needs back; None for none."""
    choice = answer.choices[0]
    blocks = tuple(piece.block for piece in choice.native if piece.form != FORM and piece.block is not None)
    content = kept_state(choice)
    if blocks:
        content = NativeContent(next(piece.form for piece in choice.native if piece.form != FORM), blocks)
        content = content if content.is_sealed else None
    content = None if content is None else without_thoughts(content)
    if content is None or content.form == "responses" or not 0 < content.size <= MOST_STATE_BYTES:
        return None
    turn = _Turn(answer.maker, content.form, tuple(_bare(content)))
    return CARRIED + base64.urlsafe_b64encode(_encode(turn)).decode()


def with_carried(message: ChatMessage, seal: str) -> ChatMessage:
    """Return a turn with what its client carried of it; as it is, if that is none of ours or of another turn."""
    try:
        turn = _decode(base64.urlsafe_b64decode(seal.removeprefix(CARRIED)))
        if turn.form == FORM:
            return msgspec.structs.replace(with_kept_state(message, NativeContent(FORM, turn.blocks)), maker=turn.maker)
        blocks = turn.blocks if turn.form == "bedrock" else tuple(_filled(turn, message))
    except (binascii.Error, ValueError, LookupError, TypeError, AttributeError, *JSON_ERRORS):
        return message
    return msgspec.structs.replace(message, kept=NativeContent(turn.form, blocks), maker=turn.maker)


def _bare(content: NativeContent) -> Iterator[NativeBlock]:
    """The blocks without texts and calls: of Anthropic's, what has a seal; of Gemini's, parts with the seal alone."""
    for block in content.blocks:
        if content.form == "anthropic":
            if block.seal:
                yield block
            elif (slot := _SLOTS.get(block.type)) is not None:
                yield NativeBlock(json=b"", type=slot)
        elif content.form == "gemini":
            part = msgspec.json.decode(block.json, type=dict[str, Any])
            is_text = part.pop("text", None) is not None
            if (call := part.get("functionCall")) is not None:
                # An id is the server's own, or ours, which it does not know.
                part["functionCall"] = {"id": call["id"]} if call.get("id") else {}
                yield NativeBlock(json=_json(part), type=_CALL, seal=block.seal)
            elif is_text and not part.get("thought"):
                yield NativeBlock(json=_json(part), type=_TEXT, seal=block.seal)
        else:
            yield block


def _filled(turn: _Turn, message: ChatMessage) -> Iterator[NativeBlock]:
    """The blocks with the texts and calls of `message` in their places. Raises ValueError where they are others."""
    calls, text = list(message.tool_calls), message.content
    for block in turn.blocks:
        kept = msgspec.json.decode(block.json, type=dict[str, Any]) if block.json else {}
        if block.type == _TEXT:
            said = kept | ({"text": text} if turn.form == "gemini" else {"type": "text", "text": text})
            if text:
                yield NativeBlock(json=_json(said), type="text", seal=block.seal)
            text = ""
        elif block.type == _CALL:
            if not calls:
                raise ValueError("fewer calls than were made")
            call = calls.pop(0)
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
            if turn.form == "gemini":
                said = kept | {"functionCall": kept["functionCall"] | {"name": call.name, "args": arguments}}
                yield NativeBlock(json=_json(said), type="part", seal=block.seal)
            else:
                said = {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
                yield NativeBlock(json=_json(said), type="tool_use")
        else:
            yield block
    if calls or text:
        raise ValueError("more was said than this turn had")


_json = msgspec.json.Encoder().encode
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Turn).decode
