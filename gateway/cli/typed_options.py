"""Options of a command from the fields of a struct: a field's type, bounds and default are those of its option, and the
text under the field is the help."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from gateway.base.field_texts import texts_under_fields
from gateway.cli.options import Command, by_words

_ANY_PATH = click.Path(path_type=Path)


def options_of(kind: type[msgspec.Struct]) -> Callable[[Command], Command]:
    """Give a command an option for each field of `kind`, and the value of them all as its argument `options`.

    The encoded name of a field is its option's: `field(name="from")` is `--from`. `Meta(title=…)` is its metavar;
    `Meta(extra=…)` are further attributes of the option, such as a `type` of click's. A tuple of texts is an option
    that may be repeated, one of numbers takes several words. A boolean that may be None has a `--no-…` as well.
    """
    fields = msgspec.structs.fields(kind)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_value(*arguments: Any, **given: Any) -> Any:
            values = {field.encode_name: given.pop(field.name) for field in fields}
            try:
                options = msgspec.convert(values, kind)
            except msgspec.ValidationError as error:
                from tiers.dialects.decoding import explained

                raise click.UsageError(explained(error, kind)) from error
            return command(*arguments, options=options, **given)

        types = get_type_hints(kind, include_extras=True)
        texts = texts_under_fields(kind.__module__)[kind.__name__]
        for field in reversed(fields):
            with_value = _option(field, types[field.name], texts.get(field.name))(with_value)
        return with_value  # type: ignore[return-value]

    return decorate


def _option(field: msgspec.structs.FieldInfo, annotation: Any, text: str | None) -> Callable[[Command], Command]:
    kind, metas = _plain(annotation)
    name = f"--{field.encode_name.replace('_', '-')}"
    # Two spaces stand in front of the default of a page of help.
    attributes: dict[str, Any] = {"help": text and text.replace(". [", ".  [")}
    if field.required:
        attributes["required"] = True
    elif kind is bool:
        attributes |= {"default": field.default, "is_flag": True}
        name += f"/--no-{name.removeprefix('--')}" if field.default is None else ""
    elif get_origin(kind) is tuple and get_args(kind)[0] is not str:
        words = " ".join(map(str, field.default))
        attributes |= {"default": words, "callback": by_words(get_args(kind)[0]), "show_default": bool(words)}
    elif get_origin(kind) is not tuple:
        attributes["default"] = field.default
    if get_origin(kind) is tuple:
        attributes["multiple"] = get_args(kind)[0] is str
    elif kind is not bool:
        attributes["type"] = _type_of(kind, {name: value for meta in metas for name, value in _bounds(meta).items()})
    for meta in metas:
        attributes |= ({"metavar": meta.title} if meta.title else {}) | _paths(meta.extra or {})
    return click.option(name, field.name, **attributes)


def _plain(annotation: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Return a type without None and without what annotates it, and that."""
    if get_origin(annotation) is Annotated:
        kind, metas = _plain(get_args(annotation)[0])
        return kind, [*metas, *get_args(annotation)[1:]]
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(part for part in get_args(annotation) if part is not NoneType))
    return annotation, []


def _bounds(meta: msgspec.Meta) -> dict[str, Any]:
    """Return the bounds of a number as click has them."""
    low, high = (meta.gt if meta.ge is None else meta.ge), (meta.lt if meta.le is None else meta.le)
    bounds = {"min": low, "max": high, "min_open": meta.gt is not None, "max_open": meta.lt is not None}
    return {name: value for name, value in bounds.items() if value is not None and value is not False}


def _paths(extra: dict[str, Any]) -> dict[str, Any]:
    """Return what a type of `field_types` says of a path, as click has it; other attributes as they are."""
    match extra:
        case {"exists": kind}:
            path = click.Path(exists=True, file_okay=kind == "file", dir_okay=kind == "folder", path_type=Path)
        case {"new": kind}:
            path = click.Path(file_okay=kind == "file", dir_okay=kind == "folder", path_type=Path)
        case _:
            return extra
    return {"type": path}


def _type_of(kind: Any, bounds: dict[str, Any]) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(list(get_args(kind)))
    if bounds:
        return (click.IntRange if kind is int else click.FloatRange)(**bounds)
    return _ANY_PATH if kind is Path else kind
