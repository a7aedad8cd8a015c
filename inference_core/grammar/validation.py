"""Validates finished answers against their caller's schema. It runs in the grammar's process, within its limits.

Numbers are compared exactly, patterns are searched in linear time, and nothing is fetched: a reference to another
document cannot be resolved.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from typing import Any

from jsonschema import Draft4Validator, Draft202012Validator
from jsonschema.exceptions import UnknownType, ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from inference_core.grammar.patterns import FORMATS, LinearPatterns

# Beyond this power of ten a number is compared, but is a multiple of nothing.
_MOST_EXPONENT = 4_000
_FORMATS = {name: re.compile(pattern) for name, pattern in FORMATS.items()}
_patterns = cache(LinearPatterns)
# What a schema or a text can have so that it cannot be checked.
_UNCHECKED = (re.error, ArithmeticError, RecursionError, UnknownType, Unresolvable)


def exact_json(text: str) -> Any:
    """Parse JSON, numbers with a fraction or an exponent as `Decimal`. Raises `ValueError`, `RecursionError`."""
    return json.loads(text, parse_float=_decimal, parse_constant=_refuse_constant)


class AnswerValidator:
    """Validates answers against one schema."""

    def __init__(self, schema: str) -> None:
        parsed = exact_json(schema)
        kind = validator_for(parsed, default=Draft202012Validator) if isinstance(parsed, dict) else Draft202012Validator
        self._validator = _exact(kind)(parsed, registry=Registry())

    def _first_error(self, answer: str) -> ValidationError | None:
        return next(self._validator.iter_errors(exact_json(answer)), None)

    def failing_path(self, answer: str) -> list[str | int] | None:
        """The path of the value of a JSON text that does not hold; None if all of it holds or it cannot be checked."""
        try:
            found = self._first_error(answer)
        except (*_UNCHECKED, ValueError):
            return None
        return None if found is None else list(found.absolute_path)

    def error(self, answer: str) -> str | None:
        """Why a text does not hold: the place and the keyword; None if it is valid."""
        try:
            found = self._first_error(answer)
        except Unresolvable as error:
            return f"it cannot be checked: {type(error).__name__} of a $ref"
        except _UNCHECKED as error:
            return f"it cannot be checked: {type(error).__name__}"
        except ValueError as error:
            return f"it is no JSON: {error}"
        return None if found is None else f"{found.json_path} does not hold for the keyword {found.validator!r}"


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return Decimal("-1e999999" if text.startswith("-") else "1e999999") if "-" not in text[1:] else Decimal(0)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _is_number(checker: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_integer(checker: object, value: object) -> bool:
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        return not value or exponent >= 0 or (-exponent < len(digits) and not any(digits[exponent:]))
    return isinstance(value, int) and not isinstance(value, bool)


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not _is_number(None, instance):
        return
    if any(isinstance(n, Decimal) and n and abs(n.adjusted()) > _MOST_EXPONENT for n in (divisor, instance)):
        yield ValidationError("too large to be checked")
    elif Fraction(instance) % Fraction(divisor):
        yield ValidationError("not a multiple")


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _patterns().search(pattern, instance):
        yield ValidationError("no match")


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and name in _FORMATS and not _FORMATS[name].fullmatch(instance):
        yield ValidationError(f"not of the format {name}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if _patterns().search(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in known or any(_patterns().search(pattern, name) for pattern in patterns):
                continue
            if inner is False:
                yield ValidationError("unexpected property", path=(name,))
            elif inner is not True:
                yield from validator.descend(value, inner, path=name)


_EXACT: Mapping[str, Callable[..., Iterator[ValidationError]]] = {
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "format": _format,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}


@cache
def _exact(kind: Any) -> Any:
    """A draft's validator with the keywords above; integers like 1.0 are integers since draft 6."""
    checker = kind.TYPE_CHECKER.redefine("number", _is_number)
    if kind is not Draft4Validator:
        checker = checker.redefine("integer", _is_integer)
    known = {key: keyword for key, keyword in _EXACT.items() if key in kind.VALIDATORS}
    exact = extend(kind, known, type_checker=checker)  # type: ignore[no-untyped-call]
    exact.evolve = _evolved
    return exact


def _evolved(validator: Any, **changes: Any) -> Any:
    """As `evolve`, but parts with a `$schema` of their own do not get another validator, without the keywords above."""
    fields = [field for field in type(validator).__attrs_attrs__ if field.init]
    return type(validator)(**{f.alias: getattr(validator, f.name) for f in fields} | changes)
