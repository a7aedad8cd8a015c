"""JSON of servers as structs, whatever their small liberties: a field of another type is read as what it plainly
means, or else has its neutral value, so that one odd field never costs an answer."""

import json
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from inference_core.io.files import JSON_ERRORS
from tiers.errors import TierError
from tiers.remote.sse import BOM
from tiers.remote.usage_counter import Tally

T = TypeVar("T")
_MOST_DIGITS = 40
"""Of a number that is written as a string."""
_UNREADABLE = (ValueError, RecursionError, MemoryError)


class LenientDecoder(Generic[T]):
    """Decodes JSON to `kind`. The strict decoder reads nearly all; only what it refuses is read field by field."""

    def __init__(self, kind: type[T], what: str) -> None:
        """`what`: the name of such an object in errors."""
        self.strict: Callable[[bytes | msgspec.Raw], T] = msgspec.json.Decoder(kind).decode
        self._kind: Any = kind
        self._what = what

    def __call__(self, data: bytes | msgspec.Raw, tally: Tally | None = None) -> T:
        """Return `data` as `kind`. `tally`: of the answer, which learns of halves of characters in it.

        Raises TierError for what is not JSON, or not an object.
        """
        try:
            return self.strict(data)
        except JSON_ERRORS as error:
            return self.lenient(data, tally, error)

    def each(self, data: bytes, tally: Tally) -> list[T]:
        """Return the items of a list of `kind`. Raises TierError for what is not JSON, or not such a list."""
        found: list[T] = self._fitted(data, tally, list[self._kind], None)  # type: ignore[name-defined]
        return found

    def lenient(self, data: bytes | msgspec.Raw, tally: Tally | None, error: Exception) -> T:
        """Return what the strict decoder refused with `error`."""
        found: T = self._fitted(bytes(data), tally, self._kind, error)
        return found

    def _fitted(self, data: bytes, tally: Tally | None, kind: Any, error: Exception | None) -> Any:
        try:
            return _fitted(plain_json(data, tally), _form(kind))
        except (_OddError, *_UNREADABLE) as reason:
            shown = repr(data[:200].decode(errors="replace"))
            why = (error or "another form") if isinstance(reason, _OddError) else reason
            raise TierError(f"the server sent what is not {self._what} ({why}): {shown}") from error


def plain_json(data: bytes, tally: Tally | None = None) -> Any:
    """Return `data` as plain objects, also with a byte order mark, control characters in strings, halves of characters,
    or bytes that are not UTF-8, which become U+FFFD. Raises ValueError, RecursionError."""
    try:
        return msgspec.json.decode(data)
    except JSON_ERRORS:
        value = json.loads(data.removeprefix(BOM).decode(errors="replace"), strict=False)
    if tally is not None:
        tally.joins_characters = True
    return value


class _OddError(Exception):
    """A value is not what it should be."""


@lru_cache(256)
def _form(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _fitted(value: Any, form: inspect.Type) -> Any:
    """Return `value` in this form. Raises _OddError if it means nothing there."""
    match form:
        case inspect.StructType():
            return _struct(value, form)
        case inspect.UnionType():
            return _one_of(value, form.types)
        case inspect.ListType():
            return _items(value, form.item_type)
        case inspect.AnyType():
            return value
        case inspect.RawType():
            return msgspec.Raw(json.dumps(value).encode())
    read = _SCALARS.get(type(form))  # none for null
    if read is None:
        raise _OddError
    return read(value, form)


def _struct(value: Any, form: inspect.StructType) -> Any:
    if not isinstance(value, dict):
        raise _OddError
    fields: dict[str, Any] = {}
    for field in form.fields:
        if field.encode_name not in value:
            continue
        try:
            fields[field.name] = _fitted(value[field.encode_name], field.type)
        except _OddError:
            if field.required:
                raise
    try:
        return form.cls(**fields)
    except TypeError:
        raise _OddError from None


def _one_of(value: Any, forms: tuple[inspect.Type, ...]) -> Any:
    if value is None and any(isinstance(form, inspect.NoneType) for form in forms):
        return None
    # A text is a text where that is allowed; what is none becomes one only where it is nothing else.
    for form in sorted(forms, key=lambda form: isinstance(form, inspect.StrType) is not isinstance(value, str)):
        try:
            return _fitted(value, form)
        except _OddError:
            continue
    raise _OddError


def _items(value: Any, form: inspect.Type) -> list[Any]:
    if isinstance(value, dict):
        return [_fitted(value, form)]
    if not isinstance(value, list):
        raise _OddError
    items = []
    for item in value:
        try:
            items.append(_fitted(item, form))
        except _OddError:
            # Lists of plain values are read in step with others of the same length.
            if not isinstance(form, inspect.StructType):
                raise
    return items


def _text(value: Any, form: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise _OddError


def _number(value: Any, form: Any) -> float:
    if isinstance(value, str) and len(value) < _MOST_DIGITS:
        try:
            value = float(value)
        except ValueError:
            raise _OddError from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _OddError
    return value


def _whole_number(value: Any, form: inspect.IntType) -> int:
    number = int(_number(value, form))
    if (form.ge is not None and number < form.ge) or (form.le is not None and number > form.le):
        raise _OddError
    return number


def _truth(value: Any, form: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _OddError


def _object(value: Any, form: inspect.DictType) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except _UNREADABLE:
            raise _OddError from None
    if not isinstance(value, dict):
        raise _OddError
    if isinstance(form.value_type, inspect.AnyType):
        return value
    return {name: _fitted(one, form.value_type) for name, one in value.items()}


_SCALARS: dict[type[inspect.Type], Callable[[Any, Any], Any]] = {
    inspect.StrType: _text,
    inspect.IntType: _whole_number,
    inspect.FloatType: _number,
    inspect.BoolType: _truth,
    inspect.DictType: _object,
}
