"""What servers of OpenAI's chat API send next to text, thoughts and calls. They need back as it was: details of
reasoning (`reasoning_details`), and further content of a turn or of a call (`extra_content`). For the client alone are
`images` that a model made, a list of `image_url` parts as OpenRouter has them, and its `audio`, whose server needs the
id alone."""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.conversation import Call, MediaKind, Opaque, OpaquePiece, Thought, Turn
from tiers.deltas import CollectedChoice

FORM: Literal["chat"] = "chat"
PART_TYPES: Mapping[MediaKind, str] = {
    "image": "image_url",
    "video": "video_url",
    "audio": "input_audio",
    "file": "file",
}
"""Types of parts of a message; the object that one holds is under the same name."""
DETAILS, EXTRA, IMAGES, AUDIO = "reasoning_details", "extra_content", "images", "audio"
MOST_OPAQUE_BYTES = 2**20
"""Of all of one turn, from a client or a server."""
THOUGHTS, _CALL = "reasoning", "call"
"""Types of what is recalled besides."""
Given = msgspec.Raw | msgspec.UnsetType
_EMPTY = (b"", b"null", b"[]", b"{}")


def opaque_json(raw: Given, most: int = MOST_OPAQUE_BYTES) -> bytes:
    """Return a value as it was given, on one line; b"" for one that says nothing or has more than `most` bytes."""
    json = b"" if isinstance(raw, msgspec.UnsetType) else bytes(raw)
    if json in _EMPTY or len(json) > most:
        return b""
    try:
        msgspec.json.decode(json)
    except JSON_ERRORS:
        return b""
    return msgspec.json.format(json, indent=-1) if b"\n" in json or b"\r" in json else json


def opaque_blocks(fields: Mapping[str, Given]) -> tuple[Opaque, ...]:
    """Return those of a turn's fields that say anything."""
    return tuple(Opaque(FORM, json, name) for name, raw in fields.items() if (json := opaque_json(raw)))


def opaque_pieces(fields: Mapping[str, Given]) -> list[OpaquePiece]:
    return [OpaquePiece(FORM, block=block) for block in opaque_blocks(fields)]


def media_piece(json: bytes, name: str = IMAGES) -> OpaquePiece:
    """Return images, the JSON of a list of parts, or a piece of audio, as a piece of an answer."""
    return OpaquePiece(FORM, block=Opaque(FORM, json, name))


def audio_reference(audio: Any) -> tuple[Opaque, ...]:
    """Return what a server needs of audio that it made, in a later turn; nothing where it has no id."""
    named = audio.get("id") if isinstance(audio, dict) else None
    return (Opaque(FORM, _encode({"id": named}), AUDIO),) if isinstance(named, str) and named else ()


def opaque_fields(choice: CollectedChoice) -> tuple[Opaque, ...]:
    """Return the fields of a whole turn, whose pieces `choice` has."""
    pieces: dict[str, list[bytes]] = {}
    for block in choice.opaque.get(FORM, ()):
        pieces.setdefault(block.type, []).append(block.json)
    return tuple(Opaque(FORM, _joined(name, said), name) for name, said in pieces.items())


def image_blocks(choice: CollectedChoice) -> list[dict[str, Any]]:
    """Return the images that a model made, as blocks of Anthropic's API; none that are elsewhere."""
    if FORM not in choice.opaque:
        return []
    images = b"".join(block.json for block in opaque_fields(choice) if block.type == IMAGES)
    urls = (_IMAGE_URL.fullmatch(_url_of(part)) for part in _parts_of(images))
    sources = [{"type": "base64", "media_type": url[1], "data": url[2]} for url in urls if url is not None]
    return [{"type": "image", "source": source} for source in sources]


def _parts_of(images: bytes) -> list[Any]:
    try:
        return _listed(msgspec.json.decode(images or b"[]"))
    except JSON_ERRORS:
        return []


def _url_of(part: Any) -> str:
    """Return the address in an `image_url` part, "" without one."""
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    return url if isinstance(url, str) else ""


def image_items(choice: CollectedChoice, answer_id: str) -> list[dict[str, Any]]:
    """Return the images that a model made, as items of the Responses API."""
    done = {"type": "image_generation_call", "status": "completed"}
    made = [block["source"]["data"] for block in image_blocks(choice)]
    return [{"id": f"ig_{answer_id}_{index}", **done, "result": data} for index, data in enumerate(made)]


_IMAGE_URL = re.compile(r"data:(image/[\w.+-]+);base64,([A-Za-z0-9+/=]+)")


def recallable_blocks(choice: CollectedChoice) -> tuple[Opaque, ...]:
    """Return all that the server of an answer gets back: its own blocks, if there is sealed reasoning among them; of a
    chat thoughts, fields, and further content of calls. Nothing if it is larger than `MOST_OPAQUE_BYTES`."""
    for dialect, own in choice.opaque.items():
        if dialect != FORM:
            is_sealed = any(block.seal for block in own)
            return tuple(own) if is_sealed and size_of(own) <= MOST_OPAQUE_BYTES else ()
    blocks = [block for block in opaque_fields(choice) if block.type not in (IMAGES, AUDIO)]
    if choice.reasoning:
        blocks.append(Opaque(FORM, _encode(choice.reasoning), THOUGHTS))
    blocks += [Opaque(FORM, call.source.json, _CALL, call.id) for call in choice.tool_calls if call.source is not None]
    return tuple(blocks) if size_of(blocks) <= MOST_OPAQUE_BYTES else ()


def size_of(blocks: Iterable[Opaque]) -> int:
    """Return the bytes of all blocks."""
    return sum(len(block.json) for block in blocks)


def opaque_of(message: Turn) -> list[Opaque]:
    """Return the fields of a turn that only its server gets, as a client gave them."""
    return [block for block in message.opaque if block.dialect == FORM]


def opaque_names(message: Turn) -> list[str]:
    """Return the names of all that only the server of a turn gets, as a client gave them."""
    names = ["messages.reasoning_content"] if message.thoughts else []
    names += [f"messages.{block.type}" for block in opaque_of(message)]
    return names + [f"messages.tool_calls.{EXTRA}"] * any(call.source is not None for call in message.calls)


def opaque_texts(message: Turn) -> list[str]:
    """Return the texts in a turn's details of reasoning."""
    details = [
        detail
        for block in opaque_of(message)
        if block.type == DETAILS
        for detail in _listed(msgspec.json.decode(block.json))
    ]
    said = [detail.get(name) for detail in details if isinstance(detail, dict) for name in _TEXTS]
    return [text for text in said if isinstance(text, str)]


def without_opaque(message: Turn) -> Turn:
    """Return a turn as every model of the API may read it."""
    blocks = [block for block in message.blocks if not isinstance(block, Thought)]
    return message.with_blocks(
        msgspec.structs.replace(block, source=None) if isinstance(block, Call) else block
        for block in blocks
        if not (isinstance(block, Opaque) and block.dialect == FORM)
    )


def with_recalled(message: Turn) -> Turn:
    """Return a turn with what its server said, of which its client gave back less."""
    recalled = [block for block in message.recalled if block.dialect == FORM]
    if not recalled:
        return message
    own = {block.type: block for block in recalled if block.type != _CALL}
    extra = {block.seal: Opaque(FORM, block.json) for block in recalled if block.type == _CALL}
    thought = own.pop(THOUGHTS, None)
    fields = {block.type: block for block in opaque_of(message)} | own
    return msgspec.structs.replace(
        message,
        recalled=(),
        blocks=Turn.of(
            message.role,
            message.content_blocks,
            calls=[msgspec.structs.replace(call, source=extra.get(call.id, call.source)) for call in message.calls],
            thoughts=message.thoughts if thought is None else msgspec.json.decode(thought.json, type=str),
            opaque=[*(block for block in message.opaque if block.dialect != FORM), *fields.values()],
        ).blocks,
    )


def _joined(name: str, pieces: list[bytes]) -> bytes:
    """One field of its pieces: images and details follow each other, texts are joined; else the last one holds."""
    if name == IMAGES:
        return b"[" + b",".join(piece.strip()[1:-1] for piece in pieces) + b"]"
    if len(pieces) == 1 or name not in (DETAILS, AUDIO):
        return pieces[-1]
    if name == AUDIO:
        return _encode(_joined_audio([msgspec.json.decode(piece) for piece in pieces]))
    joined: list[Any] = []
    try:
        details = [detail for piece in pieces for detail in _listed(msgspec.json.decode(piece))]
    except JSON_ERRORS:
        return pieces[-1]
    for detail in details:
        if joined and _goes_on(joined[-1], detail):
            last = joined[-1]
            texts = {name: f"{last.get(name) or ''}{detail[name]}" for name in _TEXTS if detail.get(name)}
            joined[-1] = last | {name: value for name, value in detail.items() if value is not None} | texts
        else:
            joined.append(detail)
    return _encode(joined)


def _joined_audio(pieces: list[Any]) -> dict[str, Any]:
    """Return audio of its pieces; the bytes of each are encoded by themselves."""
    said = [piece for piece in pieces if isinstance(piece, dict)]
    joined = {name: value for piece in said for name, value in piece.items() if value is not None}
    encoded = [piece["data"] for piece in said if isinstance(piece.get("data"), str)]
    try:
        whole = base64.b64encode(b"".join(map(base64.b64decode, encoded))).decode()
    except ValueError:
        whole = "".join(encoded)
    spoken = "".join(piece["transcript"] for piece in said if isinstance(piece.get("transcript"), str))
    return joined | {"data": whole, "transcript": spoken}


_TEXTS = ("text", "summary")


def _listed(said: Any) -> list[Any]:
    return said if isinstance(said, list) else [said]


def _goes_on(last: Any, detail: Any) -> bool:
    """Whether a detail is more of the last one: both are texts of the same type and place."""
    if not (isinstance(last, dict) and isinstance(detail, dict)):
        return False
    same = last.get("type") == detail.get("type") and last.get("index") == detail.get("index")
    return same and any(detail.get(name) for name in (*_TEXTS, "signature"))


_encode = msgspec.json.Encoder().encode
