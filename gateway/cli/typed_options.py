"""Options of a command from the fields of a struct: a field's type, bounds and default are those of its option, and the
text under the field is the help."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from gateway.base.field_texts import texts_under_fields
from gateway.cli.options import Command, by_words

_ANY_PATH = click.Path(path_type=Path)


def options_of(kind: type[msgspec.Struct], argument: str = "options") -> Callable[[Command], Command]:
    """Give a command an option for each field of `kind`, and the value of them all as its `argument`.

    The encoded name of a field is its option's: `field(name="from")` is `--from`. `Meta(title=…)` is its metavar;
    `Meta(extra=…)` are further attributes of the option: a `type` or an `envvar` of click's, `short` for a letter such
    as `-y`, `off` for the name that makes a boolean false, `option` False for a field that has none. A tuple is an
    option that may be repeated, one of numbers takes several words. A boolean that may be None or is true by default
    has a `--no-…` as well.
    """
    types = get_type_hints(kind, include_extras=True)
    fields = [
        field for field in msgspec.structs.fields(kind) if _plain(types[field.name]).attributes.get("option", True)
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_value(*arguments: Any, **options: Any) -> Any:
            values = {field.encode_name: options.pop(field.name) for field in fields}
            try:
                value = msgspec.convert(values, kind)
            except msgspec.ValidationError as error:
                from tiers.dialects.decoding import explained

                raise click.UsageError(explained(error, kind)) from error
            return command(*arguments, **options, **{argument: value})

        texts: dict[str, str] = {}
        for base in reversed(kind.__mro__):
            if base.__module__ != msgspec.Struct.__module__ and issubclass(base, msgspec.Struct):
                texts |= texts_under_fields(base.__module__)[base.__name__]
        for field in reversed(fields):
            with_value = _option(field, types[field.name], texts.get(field.name))(with_value)
        return with_value  # type: ignore[return-value]

    return decorate


class _Plain(NamedTuple):
    """A type without None and without what annotates it."""

    kind: Any
    bounds: dict[str, Any]
    attributes: dict[str, Any]
    """Of its option, as click has them; and `short` and `off`."""


def _option(field: msgspec.structs.FieldInfo, annotation: Any, text: str | None) -> Callable[[Command], Command]:
    kind, bounds, attributes = _plain(annotation)
    name = f"--{field.encode_name.replace('_', '-')}"
    names = [name, *([attributes.pop("short")] if "short" in attributes else [])]
    # Two spaces stand in front of the default of a page of help.
    shown: dict[str, Any] = {"help": text and text.replace(". [", ".  [")}
    if field.required:
        shown["required"] = True
    elif get_origin(kind) is not tuple:
        shown["default"] = field.default
    if kind is bool:
        shown["is_flag"] = True
        has_off = field.default is not False or "off" in attributes
        off = attributes.pop("off", f"--no-{name.removeprefix('--')}")
        names[0] += f"/{off}" if has_off else ""
    elif get_origin(kind) is tuple:
        part = _plain(get_args(kind)[0])
        if part.kind in (int, float) and "type" not in part.attributes:
            words = " ".join(map(str, field.default))
            shown |= {"default": words, "callback": by_words(part.kind), "show_default": bool(words)}
        else:
            shown |= {"multiple": True, "type": _type_of(part)} | part.attributes
    else:
        shown["type"] = _type_of(_Plain(kind, bounds, attributes))
    return click.option(*names, field.name, **shown | attributes)


def _plain(annotation: Any) -> _Plain:
    """Return a type without None and without what annotates it, and that."""
    if get_origin(annotation) is Annotated:
        kind, bounds, attributes = _plain(get_args(annotation)[0])
        for meta in get_args(annotation)[1:]:
            bounds, attributes = bounds | _bounds(meta), attributes | _attributes(meta)
        return _Plain(kind, bounds, attributes)
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(part for part in get_args(annotation) if part is not NoneType))
    return _Plain(annotation, {}, {})


def _bounds(meta: msgspec.Meta) -> dict[str, Any]:
    """Return the bounds of a number as click has them."""
    low, high = (meta.gt if meta.ge is None else meta.ge), (meta.lt if meta.le is None else meta.le)
    bounds = {"min": low, "max": high, "min_open": meta.gt is not None, "max_open": meta.lt is not None}
    return {name: value for name, value in bounds.items() if value is not None and value is not False}


def _attributes(meta: msgspec.Meta) -> dict[str, Any]:
    """Return further attributes of an option; what `field_types` says of a path is a type of click's."""
    extra = dict(meta.extra or {})
    for rule, exists in (("exists", True), ("new", False)):
        if (what := extra.pop(rule, None)) is not None:
            extra["type"] = click.Path(
                exists=exists, file_okay=what == "file", dir_okay=what == "folder", path_type=Path
            )
    return extra | ({"metavar": meta.title} if meta.title else {})


def _type_of(plain: _Plain) -> Any:
    kind, bounds, _ = plain
    if get_origin(kind) is Literal:
        return click.Choice(list(get_args(kind)))
    if bounds:
        return (click.IntRange if kind is int else click.FloatRange)(**bounds)
    return _ANY_PATH if kind is Path else kind
