"""Habits of servers and clients, as rows of data: what each matches, what is done, and where it was seen.

The rows are files of the folder `quirks`, each read once. A row matches by exact fields: a server, a family of models,
a dialect, a field and its value. What needs any other condition is Python where the dialect is, with its source.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

_FOLDER = Path(__file__).with_name("quirks")
_NO_WORDS: Mapping[str, str] = {}


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


def pattern_of(text: str, words: Mapping[str, str] = _NO_WORDS) -> re.Pattern[str]:
    """Return the compiled pattern of a row, without regard to case. A name in braces stands for the pattern that
    `words` has of it."""
    for name, part in words.items():
        text = text.replace(f"{{{name}}}", part)
    return re.compile(text, re.IGNORECASE | re.DOTALL)


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text in a request that says what the request is for."""

    means: Literal["housekeeping", "compaction", "plan"]
    place: Literal["system", "turn"]
    """Where the text is: in a system message, or in the last turn of the user."""
    text: str


class ClientRule(Row, frozen=True, kw_only=True):
    """How one client and its sessions are recognised."""

    name: str
    version: str
    """The newest version that was looked at."""
    products: tuple[str, ...] = ()
    """What its `user-agent` begins with, in lower case, up to the slash."""
    signs: tuple[str, ...] = ()
    """Headers that nothing else sends."""
    openings: tuple[str, ...] = ()
    """What its first system message begins with, for a client whose headers say nothing."""
    session: tuple[str, ...] = ()
    """Headers with the id of the session, in order of trust."""
    agent: tuple[str, ...] = ()
    """Headers with the id of the agent that asks, in order of trust."""
    parent: tuple[str, ...] = ()
    """Headers with the id of the agent that started it, in order of trust."""
    subagent: tuple[str, ...] = ()
    """Headers that say which kind of agent asks, in order of trust."""
    marks: tuple[Mark, ...] = ()
    """Of those that mean different things, the first one that is there counts."""


class Prompt(Row, frozen=True, kw_only=True):
    """A background prompt of a front end, which its user never asked for."""

    client: str
    place: Literal["turn", "system"]
    """The message that has it: the last one, or a system message before the user's."""
    begins: tuple[str, ...] = ("",)
    """Texts of which its message begins with one; an empty text where the conversation is first."""
    ends: str = ""
    """The text that its message ends with; empty where the conversation is last."""


class ClientRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of clients."""

    clients: tuple[ClientRule, ...]
    prompts: tuple[Prompt, ...]


@cache
def client_rows() -> ClientRows:
    """Return the rows of clients, read once."""
    return read_rows("clients", ClientRows)
