"""Parts of a request that are decoded where they are needed: a server with the same API gets them as they are."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from gateway.base.errors import ApiError
from gateway.inference.api.reading.parsing import refusal_of
from tiers.native_content import NativeBlock, NativeContent

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class Readable(Protocol):
    """A block and its JSON; b"" for a text that was no block."""

    @property
    def block(self) -> Any: ...

    @property
    def json(self) -> bytes: ...


def decoded(given: Any, kind: type[T], where: str) -> T:
    """Return `given`, JSON or data, as `kind`. Raises `ApiError` 400 that names the field below `where`."""
    try:
        if isinstance(given, msgspec.Raw):
            return msgspec.json.decode(given, type=kind)
        return msgspec.convert(given, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        refused = refusal_of(error)
        body = refused.body
        path = where if body.param is None else f"{where}.{body.param}"
        message = body.message.replace("the body", where) if body.param is None else body.message
        raise ApiError(refused.status, message.replace(body.param or where, path), param=path, code=body.code) from None


def native_of(said: Sequence[Readable]) -> NativeContent | None:
    """Return the blocks as they were given; None where a chat says the same: of a text alone."""
    if len(said) == 1 and _is_text_alone(said[0]):
        return None
    return NativeContent("anthropic", tuple(map(_native, said))) if said else None


def _native(one: Readable) -> NativeBlock:
    block = one.block
    json = one.json or _encode({"type": "text", "text": block.text})
    if block.type not in ("thinking", "redacted_thinking"):
        return NativeBlock(json=json, type=block.type)
    return NativeBlock(json=json, type=block.type, seal=block.signature or block.data or "")


def _is_text_alone(one: Readable) -> bool:
    block = one.block
    return block.type == "text" and block.cache_control is None and block.citations is None
