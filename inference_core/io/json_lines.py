"""Files of JSON lines, as people write them: each line is one row."""

import codecs
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from inference_core.io.files import JSON_ERRORS

Row = TypeVar("Row")


def json_lines(path: Path, row: type[Row], error_type: type[Exception], hint: str = "") -> Iterator[tuple[str, Row]]:
    """Yield the rows in file order, each with its file and line for messages; a file may be gzipped or begin with a
    byte order mark, and empty lines are skipped.

    Raises `error_type`, with the `hint` where a line is no such row.
    """
    decoder = msgspec.json.Decoder(row)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                written = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if written.strip():
                    where = f"{path}, line {number}"
                    try:
                        parsed = decoder.decode(written)
                    except JSON_ERRORS as error:
                        raise error_type(f"{where}: {error}{hint}") from error
                    yield where, parsed
    except (OSError, EOFError) as error:
        raise error_type(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
