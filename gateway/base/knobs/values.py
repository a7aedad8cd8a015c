"""Shared by all structs of live knobs: validation of values, and descriptions."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.base.errors import bad_request


def check_knobs(values: Mapping[str, Any], knobs: type[msgspec.Struct], kind: str) -> None:
    """Raises `ApiError` 400 naming the first of `values` that is no field of `knobs`, or has an invalid value.

    `kind` completes "NAME is no …".
    """
    names = knobs.__struct_fields__
    for name, value in values.items():
        if name not in names:
            raise bad_request(f"{name} is no {kind}; there are {', '.join(names)}.", name, "unknown_parameter")
        if isinstance(value, float) and not math.isfinite(value):
            raise bad_request(f"{name} is {value}; it must be finite.", name, "invalid_value")
        try:
            msgspec.convert({name: value}, knobs)
        except msgspec.ValidationError as error:
            raise bad_request(f"{name} is {value!r}: {error}.", name, "invalid_value") from None


def knob_schemas(knobs: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each field of `knobs`: type, bounds, default and description."""
    properties: dict[str, dict[str, Any]] = msgspec.json.schema(knobs)["$defs"][knobs.__name__]["properties"]
    return properties
