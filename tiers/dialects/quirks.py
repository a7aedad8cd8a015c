"""Habits of servers and clients, as rows of data: what each matches, what is done, and where it was seen.

The rows are files of the folder `quirks`, each read once. A row matches by exact fields: a server, a family of models,
a dialect, a field and its value. What needs any other condition is Python where the dialect is, with its source.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

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


Dialect = Literal["chat", "completions", "messages", "responses"]


class Edit(Row, frozen=True, kw_only=True, tag_field="edit"):
    """A habit of clients: something that a body of these dialects has in another form. Paths of fields have dots."""

    dialects: frozenset[Dialect]


class ValueEdit(Edit, frozen=True, kw_only=True, tag="value"):
    """A value that is given otherwise, wherever one of the fields has it; of lists, in each of their objects."""

    fields: tuple[str, ...]
    words: dict[str, str] = msgspec.field(default_factory=dict)
    """Words, and those that stand for them here. All of the field's texts are written in lower case."""
    values: tuple[Any, ...] = ()
    by: Any = None
    """What stands for each of the values."""
    removed: bool = False
    """The field is left out if it has one of the values."""
    named: bool = False
    """The name of a field that is left out is reported to the caller."""
    sets: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields that the value means at the top of the body, where they are not given."""

    def apply(self, body: dict[str, Any]) -> Iterator[str]:
        """Change a body; yield the names of fields that are left out."""
        for field in self.fields:
            for table, name in _places(body, field.split(".")):
                value = table[name]
                if self.words and isinstance(value, str):
                    table[name] = self.words.get(value.lower(), value.lower())
                elif any(type(value) is type(one) and value == one for one in self.values):
                    if self.removed:
                        del table[name]
                        yield from (field,) if self.named else ()
                    elif self.by is not None:
                        table[name] = self.by
                    for other, meant in self.sets.items():
                        body.setdefault(other, copy.copy(meant))


class MoveEdit(Edit, frozen=True, kw_only=True, tag="move"):
    """A field that stands elsewhere. The first origin with a value counts if the target is not given."""

    origins: tuple[str, ...] = msgspec.field(name="from")
    """Paths. The object that a field is moved out of is left out; an object is not moved into itself."""
    target: str = msgspec.field(name="to")
    copied: bool = False
    """It stays at its origin, too."""
    only: tuple[Any, ...] = ()
    """Values that are moved; all if there are none."""
    least: int | None = None
    """Whole numbers from this one on are moved, and nothing else."""

    def apply(self, body: dict[str, Any]) -> Iterator[str]:
        """Change a body. No field is left out."""
        *parents, last = self.target.split(".")
        for origin in self.origins:
            path = origin.split(".")
            table = body
            for parent in path[:-1]:
                table = _table(table, parent)
            if path[-1] not in table or not self._is_moved(value := table[path[-1]], origin):
                continue
            if not self.copied:
                del body[path[0]]
            is_within = origin.startswith(f"{self.target}.")
            if value is None and not is_within:
                continue
            table = body
            for parent in parents:
                table[parent] = inner = _table(table, parent)
                table = inner
            if is_within or table.get(last) is None:
                table[last] = value
        return iter(())

    def _is_moved(self, value: Any, origin: str) -> bool:
        if isinstance(value, dict) and self.target.startswith(f"{origin}."):
            return False
        if self.least is not None:
            return type(value) is int and value >= self.least
        return not self.only or (isinstance(value, str) and value in self.only)


def edit_body(body: dict[str, Any], dialect: Dialect) -> list[str]:
    """Write a body as its dialect has it, by the rows of clients; return the names of fields that are left out."""
    return [name for edit in client_rows().edits if dialect in edit.dialects for name in edit.apply(body)]


def _places(node: Any, path: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects that have a field at the end of the path, and its name; of lists, of each of their entries."""
    if isinstance(node, list):
        for entry in node:
            yield from _places(entry, path)
    elif isinstance(node, dict) and path[0] in node:
        if len(path) == 1:
            yield node, path[0]
        else:
            yield from _places(node[path[0]], path[1:])


def _table(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object that a field is; an empty one if it is none."""
    value = table.get(name)
    return value if isinstance(value, dict) else {}


class ClientRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of clients."""

    clients: tuple[ClientRule, ...]
    prompts: tuple[Prompt, ...]
    edits: tuple[ValueEdit | MoveEdit, ...]
    """In the order in which they are applied."""


@cache
def client_rows() -> ClientRows:
    """Return the rows of clients, read once."""
    return read_rows("clients", ClientRows)
