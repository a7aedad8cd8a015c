"""Knobs as form fields: their descriptions, allowed values, and the changes that a submitted form asks for."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.base.errors import bad_request
from gateway.operations.dashboard.html.forms import Form, is_changed, text_of


class KnobField(msgspec.Struct, frozen=True, kw_only=True):
    """A knob with its value and its start value as text.

    `choices`: all allowed values, if they can be listed; otherwise `bounds` describes them.
    """

    name: str
    value: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
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
