"""The order of a stream's blocks for APIs whose blocks cannot be interleaved: thoughts, texts and calls.

While a call's arguments are incomplete, pieces of anything else wait; servers send calls one after another, so that
nearly nothing ever does.
"""

import re
from typing import Literal, NamedTuple

import msgspec

from tiers.tier import Delta
from tiers.tool_types import ToolCallDelta

BlockKey = Literal["thinking", "text", "refusal"] | int

# In text between strings: what opens or closes something. In a string: what ends it, or an escape, which may be cut.
_OUTSIDE = re.compile(r'[{}\[\]"]')
_INSIDE = re.compile(r'"|\\(.|\Z)', re.DOTALL)


class Piece(NamedTuple):
    """A piece of the block `key`: `thinking`, `text`, `refusal`, or the call of that number."""

    key: BlockKey
    text: str
    call: ToolCallDelta | None = None


def pieces_of(delta: Delta) -> list[Piece]:
    """The pieces of one delta, in the order that `Delta` promises."""
    pieces = []
    if delta.reasoning:
        pieces.append(Piece("thinking", delta.reasoning))
    if delta.text:
        pieces.append(Piece("refusal" if delta.refusal else "text", delta.text))
    pieces += [Piece(call.index, call.arguments, call) for call in delta.tool_calls]
    return pieces


class BlockOrder:
    """Passes pieces on such that a block has ended when a piece of another one comes.

    There is one block per call; pieces that come for it after its end are dropped. Thoughts and texts that go on after
    another block are blocks of their own.
    """

    def __init__(self) -> None:
        self._open: BlockKey | None = None
        self._arguments = _Arguments()  # of the open call
        self._ended_calls: set[int] = set()
        self._waiting: dict[BlockKey, list[Piece]] = {}  # by block, oldest first

    @property
    def passes_text(self) -> bool:
        """Whether a piece of text would be passed on at once, as more of the open block."""
        return self._open == "text" and not self._waiting

    def put(self, piece: Piece) -> list[Piece]:
        """Return the pieces that can be shown now; their order is that of blocks."""
        if piece.key != self._open:
            if self._waiting or self._is_incomplete:
                self._waiting.setdefault(piece.key, []).append(piece)
                return []
            if piece.key in self._ended_calls:
                return []
            self._begin(piece.key)
        if piece.call is not None:
            self._arguments.add(piece.text)
        ready = [piece]
        while self._waiting and not self._is_incomplete:
            ready += self._next()
        return ready

    def rest(self) -> list[Piece]:
        """Return what still waits, after the last piece: nothing more comes for the open block."""
        ready: list[Piece] = []
        while self._waiting:
            ready += self._next()
        return ready

    def _next(self) -> list[Piece]:
        """Turn to the block that has waited longest; return its pieces."""
        key = next(iter(self._waiting))
        pieces = self._waiting.pop(key)
        if key in self._ended_calls:
            return []
        self._begin(key)
        for piece in pieces:
            self._arguments.add(piece.text)
        return pieces

    def _begin(self, key: BlockKey) -> None:
        if isinstance(self._open, int):
            self._ended_calls.add(self._open)
        self._open, self._arguments = key, _Arguments()

    @property
    def _is_incomplete(self) -> bool:
        """Whether more of the open call's arguments must come."""
        return isinstance(self._open, int) and not self._arguments.are_whole


class _Arguments:
    """The arguments of a call as they come. Every character is looked at once, and only if someone asks."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._read = 0  # how many pieces have been looked at
        self._depth = 0
        self._in_string = self._cut_escape = False
        self._whole: bool | None = None  # once brackets are closed: whether it is an object

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    @property
    def are_whole(self) -> bool:
        """Whether they are a JSON object, to which nothing can be added."""
        while self._whole is None and self._read < len(self._pieces):
            self._scan(self._pieces[self._read])
            self._read += 1
        return bool(self._whole)

    def _scan(self, text: str) -> None:
        at, self._cut_escape = int(self._cut_escape and text != ""), self._cut_escape and text == ""
        while (match := (_INSIDE if self._in_string else _OUTSIDE).search(text, at)) is not None:
            at, mark = match.end(), match[0]
            if mark == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                self._cut_escape = mark == "\\"
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    self._whole = is_object("".join(self._pieces))
                    return


def is_object(arguments: str) -> bool:
    """Whether the arguments of a call are a whole JSON object."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
