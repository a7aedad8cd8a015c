"""Bodies that do not decode as they are: fields that this API does not know, removed from a copy of the body and named
to the caller; values of another type that can only mean one thing; and what `foreign_forms` changes.
"""

import re
from collections.abc import Callable, Collection
from functools import cache, cached_property
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import inspect

from tiers.dialects.rules import FORWARDABLE

_BOM = b"\xef\xbb\xbf"
# An escape of JSON: a pair of halves of a character, a half alone, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def whole_text(body: bytes) -> bytes:
    """Return JSON without a byte order mark, and with U+FFFD for halves of characters: clients that cut texts by UTF-16
    units send them."""
    return _ESCAPE.sub(lambda one: rb"\ufffd" if one["half"] else one[0], body.removeprefix(_BOM))


Body = TypeVar("Body", bound=msgspec.Struct)

MOST_NAMES = 32
MOST_CHARS = 512
_LONGEST_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class FieldReader(Generic[Body]):
    """Reads the JSON of a request of the type `body`, of `endpoint`.

    `harmless`: fields that are known but without effect here, although they are accepted: leaving them out changes
    nothing that the caller could miss. `forwards`: whether fields at the top that some server knows are kept for it:
    those of OpenAI's form, or `any` of Anthropic's. `mend`: which of `foreign_forms.MENDS` changes a body that does not
    decode, or is refused, to what it plainly means. `shape`: a type that shows what `body` decodes later.
    """

    def __init__(
        self,
        endpoint: str,
        body: type[Body],
        harmless: tuple[str, ...] = (),
        forwards: Literal["none", "known", "any"] = "none",
        mend: str = "",
        shape: type[msgspec.Struct] | None = None,
    ) -> None:
        self.endpoint, self.forwards = endpoint, forwards
        self.decode: Callable[[bytes], Body] = msgspec.json.Decoder(body).decode
        self.harmless, self._mend = harmless, mend
        self.body, self._shape = body, shape or body

    def mended(self, body: bytes) -> Any:
        """Return the body of a request as plain objects with all in the forms of this API. Raises what `decode` does,
        but for unknown fields."""
        return self._mended(msgspec.json.decode(body))[0]

    def _mended(self, data: Any) -> tuple[Any, list[str]]:
        if not isinstance(data, dict):
            return data, []
        if self.forwards != "none" and isinstance(data.get("extra_body"), dict):
            # Clients that do not send the fields of an `extra_body` at the top mean the same.
            data = data.pop("extra_body") | data
        if not self._mend:
            return data, []
        # Most bodies decode.
        from gateway.inference.api.foreign_forms import MENDS

        return data, MENDS[self._mend](data)

    def known_part(self, body: bytes, forward: Collection[str] = ()) -> tuple[Body, list[str], dict[str, Any]]:
        """Return the request in `body` without fields that its types do not know, the names of these, and those at the
        top that are kept for a server. `forward`: further names of such fields. Values may be of other types that mean
        the same: numbers and truth values texts, and texts numbers.

        Raises what `decode` does, but for unknown fields. Takes about three times as long.
        """
        data, ignored = self._mended(msgspec.json.decode(body))
        extra: dict[str, Any] = {}
        if self.forwards != "none" and isinstance(data, dict):
            extra = self._taken(data, forward)
        for kind in (self.body, *([self._shape] if self._shape is not self.body else ())):
            if (shaped := _shape_of_body(kind)) is not None:
                data = shaped(data, "", ignored)
        ignored = list(dict.fromkeys(ignored))
        # Not `convert`, which makes no `Raw`.
        return msgspec.json.decode(msgspec.json.encode(data), type=self.body, strict=False), ignored, extra

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(field.encode_name for field in msgspec.structs.fields(self.body))

    def _taken(self, data: dict[str, Any], forward: Collection[str]) -> dict[str, Any]:
        """Take out of `data` the fields that are kept for a server."""
        names = [name for name in data if name not in self._own_names]
        if self.forwards == "known":
            names = [name for name in names if name in FORWARDABLE or name in forward]
        return {name: data.pop(name) for name in names[:MOST_NAMES]}


def shown_names(names: list[str]) -> str:
    """Return the names for a header: safe characters, and a bounded length."""
    safe = [_UNSAFE.sub("?", name[:_LONGEST_NAME]) for name in names[:MOST_NAMES]]
    text = ", ".join(safe)
    if len(text) > MOST_CHARS:
        text = text[:MOST_CHARS].rpartition(", ")[0]
    return text if len(text) == len(", ".join(safe)) and len(names) <= MOST_NAMES else f"{text}, ..."


# Returns a value as its type has it, where that can only mean one thing, without unknown fields of structs, whose names
# are added to the list. At a path.
_Shape = Callable[[Any, str, list[str]], Any]
_SCALARS = (inspect.IntType, inspect.FloatType, inspect.BoolType, inspect.LiteralType, inspect.EnumType)


@cache
def _shape_of_body(body: type[msgspec.Struct]) -> _Shape | None:
    return _shape_of(inspect.type_info(body))


def _shape_of(kind: inspect.Type) -> _Shape | None:
    """Return what shapes values of `kind`; None if they stay as they are."""
    if isinstance(kind, inspect.StructType):
        return _struct_shape(kind)
    if isinstance(kind, inspect.ListType):
        return _list_shape(kind)
    if isinstance(kind, inspect.UnionType):
        return _union_shape(kind.types)
    if isinstance(kind, inspect.DictType):
        # PHP writes an empty object as a list.
        return lambda value, path, ignored: {} if value == [] else value
    if isinstance(kind, inspect.StrType):
        return lambda value, path, ignored: value if isinstance(value, _NO_TEXT) else _text(value)
    return None


_NO_TEXT = (str, dict, list, type(None))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _struct_shape(kind: inspect.StructType) -> _Shape:
    inner = {field.encode_name: _shape_of(field.type) for field in kind.fields}
    defaulted = [field.encode_name for field in kind.fields if not (field.required or _takes_null(field.type))]

    def shape(data: Any, path: str, ignored: list[str]) -> Any:
        if not isinstance(data, dict):
            return data
        if kind.cls.__struct_config__.forbid_unknown_fields:
            for name in [name for name in data if name not in inner]:
                del data[name]
                ignored.append(f"{path}{name}")
        for name in defaulted:
            if name in data and data[name] is None:
                del data[name]
        for name, value in data.items():
            if (shaped := inner.get(name)) is not None:
                data[name] = shaped(value, f"{path}{name}.", ignored)
        return data

    return shape


def _takes_null(kind: inspect.Type) -> bool:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return any(isinstance(one, inspect.NoneType | inspect.AnyType | inspect.RawType) for one in kinds)


def _list_shape(kind: inspect.ListType) -> _Shape:
    inner = None if isinstance(kind.item_type, inspect.StrType) else _shape_of(kind.item_type)

    def shape(data: Any, path: str, ignored: list[str]) -> Any:
        if not isinstance(data, list):
            # One alone, as serialisers of XML's kind write it.
            one = isinstance(kind.item_type, inspect.StrType if isinstance(data, str) else inspect.StructType)
            data = [data] if one and isinstance(data, str | dict) and data else [] if data == {} else data
        if not isinstance(data, list):
            return data
        found = [value for value in data if value is not None]
        return found if inner is None else [inner(value, f"{path[:-1]}[].", ignored) for value in found]

    return shape


def _union_shape(kinds: tuple[inspect.Type, ...]) -> _Shape | None:
    # JSON types tell the members of a union apart: at most one is an object, and one an array.
    shapes = [found for one in kinds if (found := _shape_of(one)) is not None]
    others = [one for one in kinds if not isinstance(one, inspect.NoneType)]
    is_optional = len(others) < len(kinds)
    if is_optional and all(isinstance(one, _SCALARS) for one in others):
        # Forms that were not filled in.
        return lambda value, path, ignored: None if value == "" else value
    if len(others) > 1:
        # A text alone can be many things here.
        shapes = [found for one in others if not isinstance(one, inspect.StrType) and (found := _shape_of(one))]
    if not shapes:
        return None
    takes_text = any(isinstance(one, inspect.StrType) for one in others)
    empties: tuple[Any, ...] = ("", []) if is_optional and not takes_text else ()

    def shape(data: Any, path: str, ignored: list[str]) -> Any:
        if data is None or (takes_text and isinstance(data, str)):
            return data
        if data in empties and not isinstance(others[0], inspect.ListType):
            return None
        for shaped in shapes:
            data = shaped(data, path, ignored)
        return data

    return shape
