"""Answers of servers as structs, whatever their small liberties, so that one odd field never costs an answer.

A field of another type is read as what it plainly means, or else has its neutral value. A character that a server cut
in two (it escaped each half of a surrogate pair on its own, often in two events) is joined. A piece of a streamed
chat's tool calls finds its call where a server gives no index, one for all of them, an empty id, a name in pieces, or
name and id again in every piece.
"""

import json
import math
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from inference_core.io.files import JSON_ERRORS
from tiers.conversation import ToolCallDelta, new_call_id
from tiers.dialects.event_stream import BOM, ServerSentEvent
from tiers.dialects.usage_counter import Tally
from tiers.errors import TierError
from tiers.tier import Delta, TextLogprob

_HIGH = ("\ud800", "\udbff")
REPLACEMENT = "\ufffd"


class SplitCharacters:
    """Joins the halves in the deltas of one answer. What has no other half becomes U+FFFD."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], str] = {}

    def joined(self, deltas: list[Delta]) -> list[Delta]:
        """Return `deltas` without halves; the first half at the end of a text waits for its second."""
        for delta in deltas:
            if delta.text:
                delta.text = self._join((delta.index, "text"), delta.text)
            if delta.reasoning:
                delta.reasoning = self._join((delta.index, "reasoning"), delta.reasoning)
            if delta.tool_calls:
                delta.tool_calls = [
                    msgspec.structs.replace(
                        call,
                        id=whole(call.id),
                        name=whole(call.name),
                        arguments=self._join((delta.index, f"call {call.index}"), call.arguments),
                    )
                    for call in delta.tool_calls
                ]
            if delta.logprobs:
                delta.logprobs = [_scored(drawn) for drawn in delta.logprobs]
        return deltas

    def rest(self) -> list[Delta]:
        """Return what still waits in texts, at the end of the answer."""
        if not self._held:
            return []
        waiting = [index for (index, where), half in self._held.items() if half and where == "text"]
        self._held.clear()
        return [Delta(index=index, text=REPLACEMENT) for index in waiting]

    def _join(self, where: tuple[int, str], text: str) -> str:
        text = self._held.pop(where, "") + text
        if text and _HIGH[0] <= text[-1] <= _HIGH[1]:
            self._held[where], text = text[-1], text[:-1]
        return whole(text)


def whole(text: str) -> str:
    """Return `text` with its pairs joined, and U+FFFD for each half alone."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _scored(drawn: TextLogprob) -> TextLogprob:
    top = [(whole(token), data, logprob) for token, data, logprob in drawn.top]
    return msgspec.structs.replace(drawn, token=whole(drawn.token), top=top)


T = TypeVar("T")
LEAST_LOGPROB = -9999.0
"""OpenAI's own value for a log-probability of minus infinity, which JSON does not have."""
_MOST_DIGITS = 40
"""Of a number that is written as a string."""
_UNREADABLE = (ValueError, RecursionError, MemoryError)


class NotAnObjectError(TierError):
    """What should be one JSON object is none."""


class LenientDecoder(Generic[T]):
    """Decodes JSON to `kind`. The strict decoder reads nearly all; only what it refuses is read field by field."""

    def __init__(self, kind: type[T], what: str) -> None:
        """`what`: the name of such an object in errors."""
        self.strict: Callable[[bytes | msgspec.Raw], T] = msgspec.json.Decoder(kind).decode
        self._kind: Any = kind
        self._what = what

    def __call__(self, data: bytes | msgspec.Raw, tally: Tally | None = None) -> T:
        """Return `data` as `kind`. `tally`: of the answer, which learns of halves of characters in it.

        Raises NotAnObjectError for what is not JSON, or not an object.
        """
        try:
            return self.strict(data)
        except JSON_ERRORS as error:
            return self.lenient(data, tally, error)

    def event(self, event: ServerSentEvent, tally: Tally) -> T | None:
        """Return the data of an event as `kind`; None for one that only says that the stream is over."""
        try:
            return self.strict(event.data)
        except JSON_ERRORS as error:
            return None if event.is_end else self.lenient(event.data, tally, error)

    def lenient(self, data: bytes | msgspec.Raw, tally: Tally | None, error: Exception) -> T:
        """Return what the strict decoder refused with `error`."""
        repaired: T = self._fitted(bytes(data), tally, self._kind, error)
        return repaired

    def _fitted(self, data: bytes, tally: Tally | None, kind: Any, error: Exception | None) -> Any:
        try:
            value, form = plain_json(data, tally), _form(kind)
            if isinstance(form, inspect.StructType) and not isinstance(value, dict):
                raise _OddError
            return _fitted(value, form)
        except (_OddError, *_UNREADABLE) as reason:
            shown = repr(data[:200].decode(errors="replace"))
            # A text: the frame, which the reason's traceback holds, would hold the reason.
            why = str((error or "another form") if isinstance(reason, _OddError) else reason)
            raise NotAnObjectError(f"the server sent what is not {self._what} ({why}): {shown}") from error


# What stands around objects without meaning anything: marks of events, of records and of pages that no script may read.
_AROUND = re.compile(r"(?:[\s\0\x1e,]|(?:data|event): ?|\[DONE\]|\)\]\}'?)*")
_SCANNER = json.JSONDecoder(strict=False)


def objects_in(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the objects of what is not one: several after each other, in a list, or in a text that was made JSON
    twice; and what follows them, which may be an object that is cut off. Empty values say nothing."""
    text = data.removeprefix(BOM).decode(errors="replace")
    all_objects: list[bytes] = []
    at = _end_of_marks(text, 0)
    while at < len(text):
        try:
            value, end = _SCANNER.raw_decode(text, at)
        except _UNREADABLE:
            return all_objects, text[at:].encode()
        objects: list[bytes] | None = None
        if isinstance(value, dict):
            objects = [text[at:end].encode()]
        elif isinstance(value, list) and all(isinstance(element, dict) for element in value):
            objects = [json.dumps(element).encode() for element in value]
        elif isinstance(value, str) and value[:1] in ("{", "["):
            inner, rest = objects_in(value.encode(errors="replace"))
            objects = None if rest else inner
        elif value is None or value == "":
            objects = []
        if objects is None:
            return all_objects, text[at:].encode()
        all_objects += objects
        at = _end_of_marks(text, end)
    return all_objects, b""


def _end_of_marks(text: str, at: int) -> int:
    marks = _AROUND.match(text, at)
    return at if marks is None else marks.end()


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


def fitted(value: Any, kind: Any) -> Any:
    """Return plain JSON as `kind`, which takes some value of this type."""
    return _fitted(value, _form(kind))


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
        first = form.fields[0]
        kinds = first.type.types if isinstance(first.type, inspect.UnionType) else (first.type,)
        if not isinstance(value, str | list) or any(isinstance(kind, inspect.IntType) for kind in kinds):
            raise _OddError
        # What an object would have in its first field stands for it.
        value = {first.encode_name: value}
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
            kinds = form.types if isinstance(form, inspect.UnionType) else (form,)
            if not any(isinstance(kind, inspect.StructType) for kind in kinds):
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


def _real(value: Any, form: Any) -> float:
    return LEAST_LOGPROB if value == -math.inf else _number(value, form)


def _whole_number(value: Any, form: inspect.IntType) -> int:
    number = int(_number(value, form))
    if (form.ge is not None and number < form.ge) or (form.le is not None and number > form.le):
        raise _OddError
    return number


def _truth(value: Any, form: Any) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
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
    return {name: _fitted(member, form.value_type) for name, member in value.items()}


_SCALARS: dict[type[inspect.Type], Callable[[Any, Any], Any]] = {
    inspect.StrType: _text,
    inspect.IntType: _whole_number,
    inspect.FloatType: _real,
    inspect.BoolType: _truth,
    inspect.DictType: _object,
}


_NO_ARGUMENTS = ("", "{}", "[]", "null", '""', "None", "undefined")
"""What servers send for none, or before them."""


class Arguments:
    """The arguments of one call as they grow, as JSON text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self._pieces)

    @property
    def is_whole(self) -> bool:
        """Whether they are an object, to which nothing can be added."""
        return "".join(self._pieces[-1:]).rstrip()[-1:] == "}" and _is_json(self.text)

    def add(self, more: str) -> str:
        """Return what a piece adds; "" for one that comes once more, or that stands for none: others may still come,
        and the end of the answer says that there are none."""
        start = more.lstrip()[:1]
        if not self._pieces:
            more = "" if more.strip() in _NO_ARGUMENTS else _mended(more)
        elif start == "{" and len(more) >= self._size > 1 and more.startswith(self.text):
            # All of them so far: an object within another hardly ever arrives at once with all that is around it.
            more = more[self._size :]
        elif start not in ",]}" and self.is_whole:
            more = ""
        if more:
            self._pieces.append(more)
            self._size += len(more)
        return more


def _mended(text: str) -> str:
    """Return the first piece of arguments: one object where that came twice, after an empty one, in a block of code,
    before a mark of the model's template, or with breaks in its texts."""
    if text[:3] == "{}{":
        text = text[2:]
    if text[-1] not in "}`>" or _is_json(text):
        return text
    objects, rest = objects_in(_FENCE.sub("", text).encode(errors="surrogatepass"))
    is_one = len({*objects}) == 1 and (not rest or rest[:1] == b"<")
    return json.dumps(plain_json(objects[0]), ensure_ascii=False) if is_one else text


_FENCE = re.compile(r"^```(?:json)?|```$")


class CallPiece(msgspec.Struct, frozen=True):
    """A piece as the server sent it."""

    place: int | None
    """The call's index; None without one."""
    id: str
    name: str
    arguments: Any
    """Text, or an object at once."""

    @property
    def says_something(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.id or self.name or self.arguments)


class _Open(msgspec.Struct):
    """A call as it grows."""

    number: int
    given_id: str
    """The id as the server sent it; "" if it sent none."""
    own_id: str
    """The id that the caller gets, with the name; "" once it has been sent."""
    place: int | None
    arguments: Arguments
    name: str = ""


class Calls:
    """The calls of one choice in the order in which they began, which is how they are numbered from here on. `names`:
    of the tools, by which a name that comes in pieces is known."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = names
        self._calls: list[_Open] = []
        self._ids: set[str] = set()

    def read(self, piece: CallPiece) -> ToolCallDelta | None:
        """Return the piece with the number of its call: id and name only in the first one, and an id in every case.
        None if it says nothing yet: a call waits for its whole name. Raises TierError for arguments of no call."""
        arguments = arguments_text(piece.arguments)
        call = self._continued(piece, arguments)
        if call is None:
            call = self._begun(piece)
        call.given_id = call.given_id or piece.id
        if call.own_id and piece.name:
            call.name = self._longer(call.name, piece.name) or call.name or piece.name
        arguments = call.arguments.add(arguments)
        is_known = not (call.own_id or arguments)
        return None if is_known or (call.own_id and self._is_cut(call)) else _passed(call, arguments)

    def begin(self, piece: CallPiece) -> ToolCallDelta:
        """Return the piece as a whole call. Raises TierError if it names none."""
        call = self._begun(piece)
        call.name = piece.name
        arguments = arguments_text(piece.arguments)
        added = call.arguments.add(arguments)
        return msgspec.structs.replace(_passed(call, ""), arguments=added or "{}"[: 2 * bool(arguments)])

    def rest(self) -> list[ToolCallDelta]:
        """Return the calls that still wait for more of their names, at the end of the answer."""
        return [_passed(call, "") for call in self._calls if call.own_id]

    @property
    def are_known(self) -> bool:
        """Whether there is any."""
        return bool(self._calls)

    def _begun(self, piece: CallPiece) -> _Open:
        if not (piece.id or piece.name):
            raise TierError("the server sent arguments of a call that it has not named")
        call = _Open(len(self._calls), piece.id, self._own_id(piece.id), piece.place, Arguments())
        self._calls.append(call)
        return call

    def _is_cut(self, call: _Open) -> bool:
        """Whether more of the name may come."""
        is_begun = not call.arguments.text and call.name not in self._names and self._longer(call.name, "")
        return not call.name or bool(is_begun)

    def _longer(self, name: str, more: str) -> str:
        """Return what a name is with a further piece of it, which may repeat it; "" if no tool's begins so."""
        longer = more if more.startswith(name) else name + more
        return longer if any(tool_name.startswith(longer) for tool_name in self._names) else ""

    def _own_id(self, given_id: str) -> str:
        own = given_id if given_id and given_id not in self._ids else new_call_id()
        self._ids.add(own)
        return own

    def _continued(self, piece: CallPiece, arguments: str) -> _Open | None:
        """Return the call that `piece` goes on with; None for the first piece of one."""
        if not self._calls:
            return None
        last = self._calls[-1]
        # The usual piece: more arguments of an open call.
        if not piece.id and not piece.name:
            return last if piece.place is None else self._at(piece.place) or last
        same_id = next((call for call in reversed(self._calls) if piece.id and call.given_id == piece.id), None)
        candidate = same_id or (last if piece.place is None else self._at(piece.place))
        if candidate is None or (
            piece.place is not None and candidate.place is not None and piece.place != candidate.place
        ):
            return None
        if piece.name and candidate.name and piece.name != candidate.name:
            return candidate if candidate.own_id and self._longer(candidate.name, piece.name) else None
        if same_id is None and piece.id and piece.name and candidate.given_id:
            return None
        # Name and id come again, or the next call has the same: then the one before is whole, and this one has more.
        is_again = same_id is not None and arguments == candidate.arguments.text
        is_next = bool(arguments) and not is_again and candidate.arguments.is_whole
        return None if is_next else candidate

    def _at(self, position: int) -> _Open | None:
        return next((call for call in reversed(self._calls) if call.place == position), None)


def _passed(call: _Open, arguments: str) -> ToolCallDelta:
    """Return more arguments of a call; the first time its id, its name and all of them."""
    if not call.own_id:
        return ToolCallDelta(index=call.number, arguments=arguments)
    own, call.own_id = call.own_id, ""
    return ToolCallDelta(index=call.number, id=own, name=call.name, arguments=call.arguments.text)


def arguments_text(arguments: Any) -> str:
    """Return the arguments as JSON text, given by a server as text, an object, a text of a text, or not at all."""
    if isinstance(arguments, str):
        return _opened(arguments) if arguments[:2] == '"{' else arguments
    if arguments is None:
        return ""
    try:
        return msgspec.json.encode(arguments).decode()
    except UnicodeEncodeError:
        # Halves of characters stay escapes.
        return json.dumps(arguments)


def _opened(text: str) -> str:
    """The arguments in a text that was made JSON twice; `text` itself, if it is none."""
    try:
        inner = msgspec.json.decode(text, type=str)
    except (ValueError, RecursionError):
        return text
    return inner if _is_json(inner) else text


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
