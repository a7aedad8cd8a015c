"""Read a catalogue from TOML, shipped or the operator's, and report all its problems at once, each with its entry."""

import functools
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TypeVar

import msgspec

from inference_core.io.files import prepare_types, read_text_file
from tiers.catalog.catalog import Catalog
from tiers.catalog.core_spec import with_bound_adapters
from tiers.catalog.defaults import completed, expanded
from tiers.catalog.gpu_group import with_planned_numbers
from tiers.catalog.validate import check_rules
from tiers.errors import CatalogError

S = TypeVar("S", bound=msgspec.Struct)
_BOUND = re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (\S+)")
_WORDS = {">=": "{:.15g} or more", "<=": "{:.15g} or less", ">": "more than {:.15g}", "<": "less than {:.15g}"}


def convert_entry(kind: type[S], value: object, where: str, problems: list[str]) -> S | None:
    """Convert `value` to a `kind`; on errors append one problem per field to `problems` and return None.

    `where` is the path of the entry ("" for the document). Nested structs and lists of structs are checked too, so that
    one wrong field does not hide another.
    """
    if not isinstance(value, Mapping):
        problems.append(f"{where or 'the document'}: expected a table, got {value!r}")
        return None
    fields = _fields(kind)
    before = len(problems)
    allowed = sorted({*fields, *getattr(kind, "SHORT_FORM", ())})
    unknown = sorted(value.keys() - fields.keys())
    problems.extend(f"{_join(where, key)} = {value[key]!r}: {_instead(key, allowed)}" for key in unknown)
    arguments: dict[str, object] = {}
    for key, field in fields.items():
        if key in value:
            arguments[field.name] = _convert(field.type, value[key], _join(where, key), problems)
        elif field.required:
            problems.append(f"{_join(where, key)}: missing")
    return kind(**arguments) if len(problems) == before else None


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """By their names in TOML; to read a type's annotations takes longer than to convert a table."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _convert(kind: object, value: object, where: str, problems: list[str]) -> object:
    struct = _struct_of(kind)
    if struct is not None and struct.__struct_config__.tag is None:
        return convert_entry(struct, value, where, problems)
    element = _struct_of(typing.get_args(kind)[0]) if typing.get_origin(kind) is list else None
    if element is not None and isinstance(value, list):
        return [convert_entry(element, item, f"{where}[{i}]", problems) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(f"{where} = {value!r}: must be a finite number")
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problems.append(f"{where} = {value!r}: {_plain(str(error), kind)}")
        return None


def _struct_of(kind: object) -> type[msgspec.Struct] | None:
    """Return the struct class of `kind`, alone or in a union with None."""
    members = [kind]
    if _is_union(kind):
        members = [m for m in typing.get_args(kind) if m is not type(None)]
    if len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], msgspec.Struct):
        return members[0]
    return None


def _is_union(kind: object) -> bool:
    return isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union


def _plain(message: str, kind: object) -> str:
    """Return msgspec's message in words without backticks, adding the allowed values where it omits them."""
    if message.startswith("Invalid enum value"):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        info = msgspec.inspect.type_info(members[0] if _is_union(kind) and len(members) == 1 else kind)
        info = getattr(info, "item_type", info)  # of a list's elements
        if isinstance(info, msgspec.inspect.LiteralType):
            return f"allowed: {', '.join(map(str, info.values))}"
        if isinstance(info, msgspec.inspect.EnumType):
            return f"allowed: {', '.join(str(member.value) for member in info.cls)}"
    if message.startswith("Invalid value") and "$.kind" in message:
        tags = [str(m.__struct_config__.tag) for m in typing.get_args(kind)]
        return f"kind must be one of {', '.join(tags)}"
    said = _BOUND.sub(lambda match: f"must be {_WORDS[match[1]].format(float(match[2]))}", message)
    return said.replace("`", "")


def _instead(key: str, allowed: list[str]) -> str:
    """Return what to write for a key that is not a field."""
    if key in allowed:
        return f"unknown here; {key} is for a tier with url (a server's address) and without a remote table"
    close = get_close_matches(key, allowed, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"unknown; {meant}allowed here: {', '.join(allowed)}"


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


prepare_types(Catalog)


def load_catalog(name_or_path: str) -> Catalog:
    """Read and check a catalogue: one that ships, by its name, or the path of a TOML file.

    Raises CatalogError with every problem found, not only the first.
    """
    text, origin = _read(name_or_path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{origin} is not valid TOML: {error}") from error
    return parse_catalog({"name": Path(name_or_path).stem} | table, origin)


def parse_catalog(table: dict[str, object], origin: str) -> Catalog:
    """Convert and check a decoded TOML document; `origin` names it in error messages. Raises CatalogError."""
    if "tiers" not in table:
        raise CatalogError(
            f"{origin} has no tiers: write two or more [[tiers]], each with name and url, or run `aio init`"
        )
    problems: list[str] = []
    catalog = convert_entry(Catalog, with_planned_numbers(expanded(table), problems), "", problems)
    if catalog is not None:
        catalog = with_bound_adapters(completed(catalog))
        problems += check_rules(catalog)
    if problems or catalog is None:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise CatalogError(f"{origin} has {len(problems)} problem(s):\n{lines}")
    return catalog


def shipped_catalogs() -> list[str]:
    """Return the names that `load_catalog` accepts without a path."""
    folder = resources.files("tiers.catalogs")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def _read(name_or_path: str) -> tuple[str, str]:
    if name_or_path in shipped_catalogs():
        text = resources.files("tiers.catalogs").joinpath(f"{name_or_path}.toml").read_text(encoding="utf-8")
        return text, f"catalogue '{name_or_path}'"
    path = Path(name_or_path).expanduser()
    try:
        return read_text_file(path), f"catalogue {path}"
    except OSError as error:
        names = ", ".join(shipped_catalogs())
        raise CatalogError(
            f"catalogue '{name_or_path}' cannot be read ({error}); give one of {names}, or the path of a TOML file"
        ) from error
