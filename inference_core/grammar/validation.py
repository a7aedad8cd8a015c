"""Validates finished answers against their caller's schema. It runs in the grammar's process, within its limits.

Numbers are compared exactly, patterns are searched in linear time, and nothing is fetched: a reference to another
document cannot be resolved.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache, partial
from typing import Any

from jsonschema import Draft4Validator, Draft7Validator, Draft201909Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from inference_core.grammar.patterns import FORMATS, linear_patterns

# Beyond this power of ten a number is compared, but is a multiple of nothing.
_MOST_EXPONENT = 4_000
_FORMATS = {name: re.compile(pattern) for name, pattern in FORMATS.items()}


def exact_json(text: str) -> Any:
    """Parse JSON, numbers with a fraction or an exponent as `Decimal`. Raises `ValueError`, `RecursionError`."""
    return json.loads(text, parse_float=_decimal, parse_constant=_refuse_constant)


UNCHECKED = "it cannot be checked"
"""How a reason begins that lies in the schema, not in the answer."""


class UncheckedError(ValueError):
    """An answer cannot be checked against a schema. The message says why, for the caller whose schema it is."""


class AnswerValidator:
    """Validates answers against one schema. The constructor raises `UncheckedError` for one that it cannot read."""

    def __init__(self, schema: str) -> None:
        self._schema = exact_json(schema)
        self._kind = _undeclared(_is_older(self._schema))
        with self._failures():
            if isinstance(self._schema, dict):
                self._kind = validator_for(self._schema, default=self._kind)
            self._validator = _exact(self._kind)(self._schema, registry=Registry())

    def _first_error(self, answer: str) -> ValidationError | None:
        parsed = exact_json(answer)
        with self._failures():
            return next(self._validator.iter_errors(parsed), None)

    def failing_path(self, answer: str) -> list[str | int] | None:
        """The path of the value of a JSON text that does not hold; None if all of it holds or it cannot be checked."""
        try:
            failure = self._first_error(answer)
        except (RecursionError, ValueError):
            return None
        return None if failure is None else list(failure.absolute_path)

    def error(self, answer: str) -> str | None:
        """Why a text does not hold: the place and the keyword; None if it is valid."""
        try:
            failure = self._first_error(answer)
        except UncheckedError as error:
            return str(error)
        except RecursionError:
            return "it is nested too deeply"
        except ValueError as error:
            return f"it is no JSON: {error}"
        return None if failure is None else f"{failure.json_path} does not hold for the keyword {failure.validator!r}"

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what the validator raises into `UncheckedError`: it assumes that the schema is one of its dialect."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            of = " of a $ref" if isinstance(error, Unresolvable) else self._wrong_part()
            raise UncheckedError(f"{UNCHECKED}: {type(error).__name__}{of}") from error

    def _wrong_part(self) -> str:
        try:
            self._kind.check_schema(self._schema)
        except SchemaError as error:
            return f", and {error.json_path} of the schema does not hold for the keyword {error.validator!r}"
        except Exception:  # There may be as little to say of the schema as of the answer.
            return ""
        return ""


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
    if isinstance(instance, str) and not linear_patterns().search(pattern, instance):
        yield ValidationError("no match")


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and name in _FORMATS and not _FORMATS[name].fullmatch(instance):
        yield ValidationError(f"not of the format {name}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if linear_patterns().search(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in properties or any(linear_patterns().search(pattern, name) for pattern in patterns):
                continue
            if inner is False:
                yield ValidationError("unexpected property", path=(name,))
            elif inner is not True:
                yield from validator.descend(value, inner, path=name)


def _by_draft(older: Any, is_older: Callable[[Any], bool], key: str) -> Callable[..., Iterator[ValidationError]]:
    """A keyword as `older` has it where a schema `is_older`, otherwise as in 2020-12; it says nothing where they do not
    have it."""

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        check = (older if is_older(schema) else Draft202012Validator).VALIDATORS.get(key)
        return iter(()) if check is None else check(validator, value, instance, schema) or iter(())

    return keyword


def _has_list(schema: Any) -> bool:
    return isinstance(schema.get("items"), list)


def _has_flag(exclusive: str, schema: Any) -> bool:
    return isinstance(schema.get(exclusive), bool)


@cache
def _undeclared(is_older: bool) -> Any:
    """The dialect of a schema that names none: what its keywords mean in the drafts that have them."""
    keywords = {key: _by_draft(Draft201909Validator, _has_list, key) for key in ("items", "additionalItems")}
    keywords |= {"prefixItems": Draft202012Validator.VALIDATORS["prefixItems"]}
    keywords |= {"dependencies": Draft7Validator.VALIDATORS["dependencies"]}
    return extend(Draft201909Validator if is_older else Draft202012Validator, keywords)  # type: ignore[no-untyped-call]


def _is_older(part: Any) -> bool:
    """Whether a schema has what only drafts before 2020-12 have: lists of `items`, or `$recursiveRef`."""
    if isinstance(part, dict):
        return _has_list(part) or "$recursiveRef" in part or any(map(_is_older, part.values()))
    return isinstance(part, list) and any(map(_is_older, part))


_EXACT: Mapping[str, Callable[..., Iterator[ValidationError]]] = {
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "format": _format,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    **{
        key: _by_draft(Draft4Validator, partial(_has_flag, exclusive), key)
        for inclusive, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
        for key in (inclusive, exclusive)
    },
}


@cache
def _exact(kind: Any) -> Any:
    """A draft's validator with the keywords above; integers like 1.0 are integers since draft 6."""
    checker = kind.TYPE_CHECKER.redefine("number", _is_number)
    if kind is not Draft4Validator:
        checker = checker.redefine("integer", _is_integer)
    keywords = {key: keyword for key, keyword in _EXACT.items() if key in kind.VALIDATORS}
    if kind is Draft202012Validator:
        # The library follows lists in every draft.
        keywords["items"] = _by_draft(Draft201909Validator, _has_list, "items")
    exact = extend(kind, keywords, type_checker=checker)  # type: ignore[no-untyped-call]
    exact.evolve = _evolved
    return exact


def _evolved(validator: Any, **changes: Any) -> Any:
    """As `evolve`, but parts with a `$schema` of their own do not get another validator, without the keywords above."""
    fields = [field for field in type(validator).__attrs_attrs__ if field.init]
    return type(validator)(**{f.alias: getattr(validator, f.name) for f in fields} | changes)
