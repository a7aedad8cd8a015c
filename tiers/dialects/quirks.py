"""Habits of servers and clients, as rows of data: what each matches, what is done, and where it was seen.

The rows are files of the folder `quirks`, each read once. A row matches by exact fields: a server, a family of models,
a dialect, a field and its value. What needs any other condition is Python where the dialect is, with its source.
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
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
    at: tuple[str, ...] = ("",)
    """Paths of the objects that have it, of lists each of their objects; "" is the body itself."""
    kinds: tuple[str, ...] = ()
    """Types of these objects; any if there are none."""

    def is_of(self, kind: str) -> bool:
        """Whether it changes objects of a type."""
        return not self.kinds or kind in self.kinds


class ValueEdit(Edit, frozen=True, kw_only=True, tag="value"):
    """A value that is given otherwise, wherever one of the fields has it."""

    fields: tuple[str, ...]
    words: dict[str, str] = msgspec.field(default_factory=dict)
    """Words, and those that stand for them here. All of the field's texts are written in lower case."""
    values: tuple[Any, ...] = ()
    """The values that count; any if there are neither these nor words."""
    by: Any = None
    """What stands for the value."""
    removed: bool = False
    """The field is left out if it has one of the values."""
    named: bool = False
    """The name of a field that is left out is reported to the caller."""
    sets: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of the object that the value means, where they are not given."""

    @property
    def read(self) -> tuple[str, ...]:
        """Paths of the fields that it reads."""
        return self.fields

    def continues(self, other: "ValueEdit") -> bool:
        """Whether it has nothing but more words for the same fields."""
        return bool(self.words and other.words) and (self.kinds, self.fields) == (other.kinds, other.fields)

    def change(self, table: dict[str, Any]) -> list[str]:
        """Change one object; return the names of fields that are left out."""
        left_out = []
        for field in self.fields:
            holder, name = _holder(table, field)
            if name not in holder:
                continue
            value = holder[name]
            if self.words:
                if isinstance(value, str):
                    word = value.lower()
                    holder[name] = self.words.get(word, word)
            elif not self.values or any(type(value) is type(listed) and value == listed for listed in self.values):
                if self.removed:
                    del holder[name]
                    left_out += [field] if self.named else []
                elif self.by is not None:
                    holder[name] = self.by
                for other, meant in self.sets.items():
                    table.setdefault(other, copy.copy(meant))
        return left_out


class MoveEdit(Edit, frozen=True, kw_only=True, tag="move"):
    """A field that stands elsewhere. The first origin with a value counts if the target is not given."""

    origins: tuple[str, ...] = msgspec.field(name="from")
    """Paths. The object that a field is moved out of is left out; an object is not moved into or out of itself."""
    target: str = msgspec.field(name="to")
    copied: bool = False
    """It stays at its origin, too."""
    only: tuple[Any, ...] = ()
    """Values that are moved; all if there are none."""
    least: int | None = None
    """Whole numbers from this one on are moved, and nothing else."""

    @property
    def read(self) -> tuple[str, ...]:
        """See `ValueEdit.read`."""
        return self.origins

    def change(self, table: dict[str, Any]) -> list[str]:
        """See `ValueEdit.change`."""
        for origin in self.origins:
            holder, name = _holder(table, origin)
            if name not in holder or not self._is_moved(value := holder[name], origin):
                continue
            if not self.copied:
                del table[origin.partition(".")[0]]
            is_within = origin.startswith(f"{self.target}.")
            if value is not None or is_within:
                target, last = _holder(table, self.target, is_made=True)
                if is_within or target.get(last) is None:
                    target[last] = value
        return []

    def _is_moved(self, value: Any, origin: str) -> bool:
        if isinstance(value, dict) and (self.target.startswith(f"{origin}.") or origin.startswith(f"{self.target}.")):
            return False
        if self.least is not None:
            return type(value) is int and value >= self.least
        return not self.only or (isinstance(value, str) and value in self.only)


def edit_body(body: dict[str, Any], dialect: Dialect) -> list[str]:
    """Write a body as its dialect has it, by the rows of clients; return the names of fields that are left out."""
    left_out: list[str] = []
    objects: dict[str, list[dict[str, Any]]] = {"": [body]}
    for path, edits_of_kinds, others in _edits_of(dialect):
        for table in _objects(objects, path):
            kind = table.get("type")
            edits = edits_of_kinds.get(kind, others) if isinstance(kind, str) else others
            for heads, edit in edits:
                if not heads.isdisjoint(table):
                    left_out += edit.change(table)
    return left_out


AnyEdit = ValueEdit | MoveEdit
# The first fields that an edit reads, and the edit.
_Headed = tuple[frozenset[str], AnyEdit]


@cache
def _edits_of(dialect: Dialect) -> list[tuple[str, dict[str, list[_Headed]], list[_Headed]]]:
    """Return the edits of a dialect: the path of their objects, the edits of each type that some row names, and those
    of other objects."""
    rows = [edit for edit in client_rows().edits if dialect in edit.dialects]
    path_edits = []
    for path in dict.fromkeys(path for row in rows for path in row.at):
        edits = _joined([row for row in rows if path in row.at])
        of_kinds = {kind: [_headed(row) for row in edits if row.is_of(kind)] for row in edits for kind in row.kinds}
        path_edits.append((path, of_kinds, [_headed(row) for row in edits if not row.kinds]))
    return path_edits


def _headed(edit: AnyEdit) -> _Headed:
    return frozenset(field.partition(".")[0] for field in edit.read), edit


def _joined(edits: Iterable[AnyEdit]) -> list[AnyEdit]:
    """Return the edits; words of the same fields, whose rows differ in their source, as one edit."""
    joined: list[AnyEdit] = []
    for edit in edits:
        last = joined[-1] if joined else None
        if isinstance(edit, ValueEdit) and isinstance(last, ValueEdit) and edit.continues(last):
            joined[-1] = msgspec.structs.replace(last, words=last.words | edit.words)
        else:
            joined.append(edit)
    return joined


def _objects(objects: dict[str, list[dict[str, Any]]], path: str) -> list[dict[str, Any]]:
    """Return the objects at the end of a path; of lists, each of theirs. `objects`: those of paths before."""
    if path not in objects:
        before, _, name = path.rpartition(".")
        objects[path] = [inner for table in _objects(objects, before) for inner in _dicts(table.get(name))]
    return objects[path]


def _dicts(value: Any) -> Sequence[dict[str, Any]]:
    if isinstance(value, dict):
        return (value,)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else ()


def _holder(table: dict[str, Any], path: str, *, is_made: bool = False) -> tuple[dict[str, Any], str]:
    """Return the object that has the field at a path, and the field's name; an empty object if there is none, which is
    put there if `is_made`."""
    if "." not in path:
        return table, path
    *parents, name = path.split(".")
    for parent in parents:
        value = table.get(parent)
        inner = value if isinstance(value, dict) else {}
        if is_made:
            table[parent] = inner
        table = inner
    return table, name


class ClientRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of clients."""

    clients: tuple[ClientRule, ...]
    prompts: tuple[Prompt, ...]
    edits: tuple[AnyEdit, ...]
    """In the order in which they are applied."""


@cache
def client_rows() -> ClientRows:
    """Return the rows of clients, read once."""
    return read_rows("clients", ClientRows)
