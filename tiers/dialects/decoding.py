"""Decode a caller's request or a part of it, and say what is wrong with one: its path, and what is allowed there.

A body that does not decode as it is may lose fields that its API does not know, which are named to the caller, and have
values of another type that can only mean one thing.
"""

import re
from collections.abc import Callable, Collection, Iterator
from enum import EnumType
from functools import cache, cached_property
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import inspect

from tiers.dialects.rules import FORWARDABLE
from tiers.errors import BadRequestError

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)
MOST_FIELDS = 32
"""Unknown fields that are kept for a server."""
UNKNOWN, INVALID, MISSING = "unknown_parameter", "invalid_value", "missing_required_parameter"
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")


def decoded(payload: Any, kind: type[T], where: str) -> T:
    """Return `payload`, JSON or data, as `kind`. Raises `BadRequestError` that names the field below `where`."""
    try:
        if isinstance(payload, msgspec.Raw):
            return msgspec.json.decode(payload, type=kind)
        return msgspec.convert(payload, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        refused = refusal_of(error, kind)
        path = where if refused.param is None else f"{where}.{refused.param}"
        message = str(refused).replace(refused.param or "the body", path)
        raise BadRequestError(message, path, refused.code) from None


def missing(where: str) -> BadRequestError:
    """Return the refusal of a request without the field at `where`."""
    return BadRequestError(f"{where}: Field required.", where, MISSING)


def refusal_of(error: msgspec.ValidationError, kind: Any) -> BadRequestError:
    """Return what names the field that did not fit in values of type `kind`."""
    said = explained(error, kind)
    matched = _PATH.match(said)
    what, path = (matched["what"], matched["path"] or "") if matched else (said, "")
    if unknown := _UNKNOWN_FIELD.match(what):
        name = _join(path, unknown[1])
        return BadRequestError(f"Unrecognized request argument supplied: {name}.", name, UNKNOWN)
    if lacking := _MISSING_FIELD.match(what):
        name = _join(path, lacking[1])
        return BadRequestError(f"You must provide the parameter {name}.", name, MISSING)
    name = path.replace("[...]", "")
    return BadRequestError(f"Invalid value for {name or 'the body'}: {what}.", name or None, INVALID)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def explained(error: msgspec.ValidationError, kind: Any) -> str:
    """Return the words of an error in values of type `kind`, with what is allowed where that is one of a few,
    or has a form that its type describes."""
    what, at, path = [*re.split(r"( - at (?:`key` in )?`\$)", str(error), maxsplit=1), "", ""][:3]
    is_form = " matching regex " in what
    if not (is_form or what.startswith("Invalid enum value")):
        return str(error)
    names = re.sub(r"\[[^]]*\]|`$", "", path).split(".")[1:] + ["`key`"] * ("`key`" in at)
    allowed = ", ".join(map(str, dict.fromkeys(_allowed(inspect.type_info(kind), names))))
    if is_form and allowed:
        return f"{what.partition(' matching ')[0]} of {allowed}{at}{path}"
    return f"{what}; allowed are {allowed}{at}{path}" if allowed else str(error)


def _allowed(kind: Any, names: list[str]) -> Iterator[object]:
    """Yield the words that a value in the field `names` of a type of msgspec's may be."""
    for inner_kind in getattr(kind, "types", ()):
        yield from _allowed(inner_kind, names)
    for inner in ("item_type", "value_type", "type"):
        if (inner_kind := getattr(kind, inner, None)) is not None:
            yield from _allowed(inner_kind, names)
    if names == ["`key`"] and (key := getattr(kind, "key_type", None)) is not None:
        yield from _allowed(key, [])
    elif names:
        fields = [field.type for field in getattr(kind, "fields", ()) if field.encode_name == names[0]]
        for inner_kind in fields:
            yield from _allowed(inner_kind, names[1:])
    elif (extra := getattr(kind, "extra_json_schema", None)) is not None:
        yield extra["description"]
    elif (values := getattr(kind, "values", None)) is not None:
        yield from values
    elif isinstance(cls := getattr(kind, "cls", None), EnumType):
        yield from (member.value for member in cls)  # type: ignore[var-annotated]


_BOM = b"\xef\xbb\xbf"
# An escape of JSON: a pair of halves of a character, a half alone, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def whole_text(body: bytes) -> bytes:
    """Return JSON without a byte order mark, and with U+FFFD for halves of characters: clients that cut texts by UTF-16
    units send them."""
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match["half"] else match[0], body.removeprefix(_BOM))


class FieldReader(Generic[Body]):
    """Reads the JSON of a request of the type `body`, of `endpoint`.

    `harmless`: fields that are known but without effect here, although they are accepted: leaving them out changes
    nothing that the caller could miss. `forwards`: whether fields at the top that some server knows are kept for it:
    those of OpenAI's form, or `any` of Anthropic's. `mend`: changes a body that does not decode, or is refused, to what
    it plainly means, and returns the names of what it leaves out (`tiers.dialects.client_forms`). `shape`: a type that
    shows what `body` decodes later.
    """

    def __init__(
        self,
        endpoint: str,
        body: type[Body],
        harmless: tuple[str, ...] = (),
        forwards: Literal["none", "known", "any"] = "none",
        mend: Callable[[dict[str, Any]], list[str]] | None = None,
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
        return data, [] if self._mend is None else self._mend(data)

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
        return {name: data.pop(name) for name in names[:MOST_FIELDS]}


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
    return any(isinstance(member, inspect.NoneType | inspect.AnyType | inspect.RawType) for member in kinds)


def _list_shape(kind: inspect.ListType) -> _Shape:
    inner = None if isinstance(kind.item_type, inspect.StrType) else _shape_of(kind.item_type)

    def shape(data: Any, path: str, ignored: list[str]) -> Any:
        if not isinstance(data, list):
            # One alone, as serialisers of XML's kind write it.
            is_element = isinstance(kind.item_type, inspect.StrType if isinstance(data, str) else inspect.StructType)
            data = [data] if is_element and isinstance(data, str | dict) and data else [] if data == {} else data
        if not isinstance(data, list):
            return data
        elements = [value for value in data if value is not None]
        return elements if inner is None else [inner(value, f"{path[:-1]}[].", ignored) for value in elements]

    return shape


def _union_shape(kinds: tuple[inspect.Type, ...]) -> _Shape | None:
    # JSON types tell the members of a union apart: at most one is an object, and one an array.
    shapes = [inner for kind in kinds if (inner := _shape_of(kind)) is not None]
    others = [kind for kind in kinds if not isinstance(kind, inspect.NoneType)]
    is_optional = len(others) < len(kinds)
    if is_optional and all(isinstance(kind, _SCALARS) for kind in others):
        # Forms that were not filled in.
        return lambda value, path, ignored: None if value == "" else value
    if len(others) > 1:
        # A text alone can be many things here.
        shapes = [inner for kind in others if not isinstance(kind, inspect.StrType) and (inner := _shape_of(kind))]
    if not shapes:
        return None
    takes_text = any(isinstance(kind, inspect.StrType) for kind in others)
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
