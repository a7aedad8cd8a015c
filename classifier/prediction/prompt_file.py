"""Files of prompts, one JSON object a line with `id` and `prompt`; errors name the line."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from classifier.errors import PromptFileError
from inference_core.io.text_file import without_mark


class PromptRow(msgspec.Struct, frozen=True):
    """One prompt; other fields of its line are ignored."""

    id: str | int
    prompt: str


def read_prompts(path: Path) -> Iterator[PromptRow]:
    """Return the rows in file order without empty lines. Raises `PromptFileError` naming the file and the line."""
    decoder = msgspec.json.Decoder(PromptRow)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(without_mark(file), start=1):
                if line.strip():
                    yield _row(decoder, line, f"{path}, line {number}")
    except OSError as error:
        raise PromptFileError(f"{path} cannot be read: {error.strerror or error}.") from error


def _row(decoder: msgspec.json.Decoder[PromptRow], line: bytes, where: str) -> PromptRow:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PromptFileError(
            f'{where}: {error}. A line is an object with an "id" (text or number) and a "prompt" (text).'
        ) from error
