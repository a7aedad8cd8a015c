"""Reads submitted forms: texts (an empty one counts as not given), turned into the plain data of a command;
and knobs as form fields."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from litestar.response import Response

from gateway.base.errors import ApiError, as_api_error, bad_request
from gateway.base.numbers import number
from gateway.edge.asgi import HttpRequest
from tiers.dialects.decoding import refusal_of

WAS = "was."
MOST_REASON = 1024
Wanted = TypeVar("Wanted", bound=msgspec.Struct)
Form = Mapping[str, list[str]]


class WrongField(msgspec.Struct, frozen=True, kw_only=True):
    """A form that was refused: its action, the field that is wrong, why, and what it held."""

    form: str
    field: str
    message: str
    given: Form

    def text(self, name: str) -> str:
        """Return what was written into a field."""
        return text_of(self.given, name) or ""


async def filled_in(
    request: HttpRequest,
    work: Callable[[Form], Awaitable[Response[Any]]],
    again: Callable[[WrongField, int], Awaitable[Response[Any]]],
) -> Response[Any]:
    """Return what `work` makes of the submitted form; where a field of it is wrong, the page that has the form, by
    `again` with the status. Raises `ApiError` where it is about no field."""
    form = await form_of(request)
    try:
        return await work(form)
    except ApiError as error:
        field = (error.body.param or "").removeprefix("terms.").partition(".")[0].partition("[")[0]
        if field not in form:
            raise
        wrong = WrongField(form=request.scope["path"], field=field, message=error.body.message, given=form)
        return await again(wrong, error.status)


async def form_of(request: HttpRequest) -> dict[str, list[str]]:
    """Return the form's fields with their texts, stripped and without empty ones."""
    pairs = (await request.form()).multi_items()
    texts_by_field: dict[str, list[str]] = {}
    for name, value in pairs:
        texts = texts_by_field.setdefault(name, [])
        if isinstance(value, str) and value.strip():
            texts.append(value.strip())
    return texts_by_field


def text_of(form: Form, name: str) -> str | None:
    """Return the first text of a field, None for an empty one."""
    return next(iter(form.get(name, ())), None)


async def fields_of(request: HttpRequest) -> dict[str, str]:
    """Return the form's non-empty fields, where each has one text."""
    form = await form_of(request)
    return {name: texts[0] for name, texts in form.items() if texts}


def given_of(form: Form, *names: str) -> dict[str, str]:
    """Return the first texts of those fields that are not empty."""
    return {name: text for name in names if (text := text_of(form, name)) is not None}


def list_of(form: Form, name: str) -> list[str] | None:
    """Return texts separated by commas, or of several boxes of one name; None for none."""
    return [part.strip() for text in form.get(name, ()) for part in text.split(",") if part.strip()] or None


def is_changed(form: Form, name: str) -> bool:
    """Return whether a field differs from what its form showed (`was.NAME`), so that a concurrent change is kept."""
    return list_of(form, name) != list_of(form, f"{WAS}{name}")


def parse_form(values: Mapping[str, Any], kind: type[Wanted]) -> Wanted:
    """Convert `values` (numbers still as text) to this command. Raises `ApiError` 400 naming the field."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise as_api_error(refusal_of(error, kind)) from None


def reason_of(fields: dict[str, str]) -> str:
    """Return the reason that is recorded with the change. Raises `ApiError` 400 for a missing or too long one."""
    reason = fields.get("reason", "")
    if not 1 <= len(reason) <= MOST_REASON:
        raise bad_request(f"Give a reason of 1 to {MOST_REASON} characters.", "reason", "invalid_value")
    return reason


def number_of(fields: dict[str, str], name: str, most: float, usual: float | None = None) -> float:
    """Return a field as a number from 0 to `most`; the default without it. Raises `ApiError` 400."""
    text = fields.get(name, "")
    return usual if usual is not None and not text else number(text, name, 0, most)


class KnobField(msgspec.Struct, frozen=True, kw_only=True):
    """A knob with its value and its start value as text."""

    name: str
    value: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    """All allowed values, if they can be listed; otherwise `bounds` describes them."""
    bounds: str = ""

    @property
    def is_switch(self) -> bool:
        """Return whether the knob has a list of choices."""
        return bool(self.choices)


def knob_fields(values: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]) -> list[KnobField]:
    """Return a field for each of `schemas` that has a value, in order."""
    return [_field(name, values[name], schema) for name, schema in schemas.items() if name in values]


def wanted_changes(form: Form, names: Iterable[str], schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the knobs changed in `form`, with JSON values; None for an emptied field, which means its start value.

    Only differences from what the form showed count. Raises `ApiError` 400 for a text that is not of the knob's type;
    bounds are checked where the change is applied.
    """
    return {
        name: _value(name, text_of(form, name) or "", schemas[name])
        for name in names
        if name in form and is_changed(form, name)
    }


def _field(name: str, value: Any, schema: Mapping[str, Any]) -> KnobField:
    return KnobField(
        name=name,
        value=_text(value),
        default=_text(schema.get("default")),
        description=schema.get("description", ""),
        choices=_choices(schema),
        bounds=_bounds(schema),
    )


def _choices(schema: Mapping[str, Any]) -> tuple[str, ...]:
    if "enum" in schema:
        return tuple(_text(choice) for choice in schema["enum"])
    return ("true", "false") if schema.get("type") == "boolean" else ()


def _bounds(schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"numbers with commas between them, each {_bounds(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{_bound(low)} to {_bound(high)}"
    return "" if low is None else f"{_bound(low)} or more"


def _bound(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(name: str, text: str, schema: Mapping[str, Any]) -> Any:
    if text == "":
        return [] if schema.get("type") == "array" else None
    if "enum" in schema:
        return text
    try:
        if schema.get("type") == "array":
            return [msgspec.json.decode(part) for part in text.split(",")]
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        message = f"Invalid {name}: {text[:64]!r} is not of type {schema.get('type')}."
        raise bad_request(message, name, "invalid_value") from None
