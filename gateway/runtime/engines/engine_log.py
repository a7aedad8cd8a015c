"""The output of an engine: a file of bounded size, and its last lines for error messages."""

import logging
import re
from collections import deque
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)

MAX_BYTES = 4 * 2**20
"""Of the file; when it is full it becomes `NAME.log.1`, in place of the one before."""
LAST_LINES = 20
LONGEST_LINE = 500
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ENDS = re.compile(rb"[\r\n]+")


class EngineLog:
    """Appends to `path`. A disk that is full loses lines and stops nothing."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path, self._max_bytes = path, max_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._rest = b""

    def write(self, piece: bytes) -> None:
        """Add output as it comes, in pieces of any length."""
        *lines, rest = _ENDS.split(self._rest + piece)
        self._rest = rest[-2 * LONGEST_LINE :]
        self._lines.extend(filter(None, map(_printable, lines)))
        try:
            self._append(piece)
        except OSError as error:
            log.debug("%s: %s", self.path, error)

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """Return the last lines, without control characters, each of bounded length."""
        rest = _printable(self._rest)
        return [*self._lines, *([rest] if rest else [])][-count:]

    def forget_lines(self) -> None:
        """Start a new run: the lines of the one before explain nothing of it."""
        self._lines.clear()
        self._rest = b""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, piece: bytes) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self.path.open("ab", buffering=0)
            self._size = self._file.tell()
        if self._size + len(piece) > self._max_bytes:
            self.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = self.path.open("ab", buffering=0)
            self._size = 0
        self._file.write(piece)
        self._size += len(piece)


def _printable(line: bytes) -> str:
    """Return the text of a line: colours and other control sequences must not reach a terminal or a log."""
    text = _ESCAPES.sub("", line[:LONGEST_LINE].decode(errors="replace"))
    return "".join(character if character.isprintable() else "�" for character in text).strip()
