"""Habits of servers and clients, as rows of data: what each matches, what is done, and where it was seen.

The rows are files of the folder `quirks`, each read once. A row matches by exact fields: a server, a family of models,
a dialect, a field and its value. What needs any other condition is Python where the dialect is, with its source.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

_FOLDER = Path(__file__).with_name("quirks")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every row has."""

    source: str
    """A published page, or the report of a refusal."""
    seen: str
    """The month in which it was read."""
    says: str = ""
    """The words of the source that count, or why the row is as it is."""


Rows = TypeVar("Rows")


def read_rows(name: str, form: type[Rows]) -> Rows:
    """Return the rows of a file. Raises `msgspec.ValidationError` for a field that `form` does not have."""
    return msgspec.toml.decode((_FOLDER / f"{name}.toml").read_bytes(), type=form)
