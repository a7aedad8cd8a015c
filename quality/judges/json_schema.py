"""Whether a JSON value is valid by the schema of a request's `response_format`."""

import json
from functools import lru_cache
from typing import Any


class UnsupportedSchemaError(ValueError):
    """The schema cannot be evaluated: nothing can be said of any value."""


def is_valid(value: Any, schema: Any) -> bool:
    """Whether `value` (as `json.loads` gives it) obeys `schema`; JSON Schema 2020-12 unless `$schema` names a draft.

    `format` is an annotation, and a reference never leaves the schema: nothing is fetched. Raises
    `UnsupportedSchemaError` where the schema itself is invalid, refers to something it does not hold or never ends, and
    where it has patterns: callers choose them, and with the interpreter's own expressions 30 characters can take hours.
    """
    # Imported here: only processes that judge answers pay the library's 60 ms.
    from jsonschema import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        return bool(_validator(json.dumps(schema, sort_keys=True)).is_valid(value))
    except SchemaError as error:
        raise UnsupportedSchemaError(f"the schema is invalid: {error.message}") from error
    except Unresolvable as error:
        raise UnsupportedSchemaError(f"the reference {error.ref!r} leads nowhere") from error
    except (TypeError, AttributeError) as error:
        # Of a schema, or of a `$schema`, that is of another type than any.
        raise UnsupportedSchemaError(f"the schema is invalid: {error}") from error
    except RecursionError as error:
        raise UnsupportedSchemaError("the schema is nested too deeply or refers to itself without end") from error


@lru_cache(maxsize=64)
def _validator(text: str) -> Any:
    """The validator of the schema in `text`. Kept, since checking a schema takes milliseconds and applications send the
    same one again and again."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(text)
    if _has_pattern(schema):
        raise UnsupportedSchemaError("patterns are not evaluated")
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())


def _has_pattern(schema: Any) -> bool:
    """Whether a keyword with a regular expression is anywhere in it."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if isinstance(part.get("pattern"), str) or isinstance(part.get("patternProperties"), dict):
                return True
            left += part.values()
        elif isinstance(part, list):
            left += part
    return False
