"""Which call a piece of a streamed chat's tool calls belongs to, where a server gives no index, one for all of them, an
empty id, or name and id again in every piece."""

import json
from typing import Any

import msgspec

from tiers.errors import TierError
from tiers.tool_types import ToolCallDelta, new_call_id


class CallPiece(msgspec.Struct, frozen=True):
    """A piece as the server sent it. `place`: its index; None without one. `arguments`: text, or an object at once."""

    place: int | None
    id: str
    name: str
    arguments: Any

    @property
    def says_something(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.id or self.name or self.arguments)


class _Open(msgspec.Struct):
    """A call as it grows. `given_id`: as the server sent it; "" if it sent none."""

    number: int
    given_id: str
    name: str
    place: int | None
    arguments: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are an object, to which nothing can be added."""
        return self.arguments[-1].rstrip()[-1:] == "}" and _is_json(self.text)

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self.arguments)


class Calls:
    """The calls of one choice in the order in which they began, which is how they are numbered from here on."""

    def __init__(self) -> None:
        self._calls: list[_Open] = []
        self._ids: set[str] = set()

    def read(self, piece: CallPiece) -> ToolCallDelta:
        """Return the piece with the number of its call: id and name only in the first one, and an id in every case.

        Raises TierError for arguments of no call.
        """
        arguments = arguments_text(piece.arguments)
        call = self._continued(piece, arguments)
        if call is not None:
            call.given_id = call.given_id or piece.id
            # The name may come after the id, in one piece.
            name = piece.name if not call.name else ""
            call.name = call.name or name
            if piece.id and call.is_whole:
                # The whole call, once more.
                arguments = ""
            elif arguments:
                call.arguments.append(arguments)
            return ToolCallDelta(index=call.number, name=name, arguments=arguments)
        return self.begin(piece)

    def begin(self, piece: CallPiece) -> ToolCallDelta:
        """Return the piece as the first one of a call. Raises TierError if it names none."""
        arguments = arguments_text(piece.arguments)
        if not (piece.id or piece.name):
            raise TierError("the server sent arguments of a call that it has not named")
        call = _Open(len(self._calls), piece.id, piece.name, piece.place, [arguments])
        self._calls.append(call)
        return ToolCallDelta(index=call.number, id=self._own_id(piece.id), name=piece.name, arguments=arguments)

    def _own_id(self, given: str) -> str:
        own = given if given and given not in self._ids else new_call_id()
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
        known = same_id or (last if piece.place is None else self._at(piece.place))
        if known is None or (piece.place is not None and known.place is not None and piece.place != known.place):
            return None
        if piece.name and known.name and piece.name != known.name:
            return None
        if same_id is None and piece.id and piece.name and known.given_id:
            return None
        # Name and id come again, or the next call has the same: then the one before is whole, and this one has more.
        is_next = bool(arguments) and known.is_whole and not (same_id is not None and arguments == known.text)
        return None if is_next else known

    def _at(self, place: int) -> _Open | None:
        return next((call for call in reversed(self._calls) if call.place == place), None)


def arguments_text(arguments: Any) -> str:
    """Return the arguments as JSON text, as a server gave them: as text, as an object, as a text of a text, or not at
    all."""
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
