"""Text files that people write: UTF-8, with or without the byte order mark that some editors put first."""

import codecs
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path


class NotUtf8Error(OSError):
    """A file in another encoding, such as Latin-1; the message says where and what to do. It is an `OSError`, because
    a caller treats it as any file that cannot be read."""

    def __init__(self, path: Path, byte: int, line: int) -> None:
        said = f"it is not UTF-8: byte 0x{byte:02x} in line {line}; save it as UTF-8"
        super().__init__(errno.EILSEQ, said, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def read_text_file(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte order mark. Raises `OSError`, such as `NotUtf8Error`."""
    content = path.read_bytes()
    try:
        # Lines end as in a file that is opened as text.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotUtf8Error(path, content[error.start], content.count(b"\n", 0, error.start) + 1) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file that was opened as bytes, the first one without a byte order mark."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix(codecs.BOM_UTF8)
