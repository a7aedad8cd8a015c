"""Narrows the branches of a `oneOf` until they exclude each other, so that it can be written as `anyOf`.

A value of a branch must not hold for any other one. That is provable by types, by constants, or by a required property.
Where it is not, a branch is narrowed: it forbids a property that another branch requires, or leaves out a type that
another branch allows whole, or the empty array or object. What remains unproved is found when the finished answer is
validated.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_OBJECT, _ARRAY, _STRING = frozenset(("object",)), frozenset(("array",)), frozenset(("string",))
# Keywords that narrow values of one type only, and those that narrow any; others, and formats, say nothing of types.
_NARROWING = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": (
        *("items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems"),
        *("uniqueItems", "unevaluatedItems"),
    ),
    "object": (
        *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
        *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    ),
}
_NARROWING_ALL = frozenset(
    ("enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef")
)
_MORE_OF_OBJECTS = _NARROWING_ALL | set(_NARROWING["object"]) - {"required"}
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly")
)
# Keywords whose values have schemas by names.
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
# Of larger ones, pairs would take too long to compare.
_MOST_BRANCHES = 64
# How deep references, `allOf` and properties are followed.
_MOST_LEVELS = 6

Resolve = Callable[[str], Any]
"""The part of the whole schema that a reference names; None if it names none."""


@dataclass(slots=True)
class Shape:
    """What is known of the values for which a schema holds; integers are numbers."""

    types: frozenset[str] = TYPES
    whole: frozenset[str] = TYPES
    """Types of which every value is allowed."""
    values: list[Any] | None = None
    """The only allowed values, if known."""
    required: frozenset[str] = frozenset()
    properties: dict[str, list[Any]] = field(default_factory=dict)
    closed: list[frozenset[str]] = field(default_factory=list)
    """Whether no other `properties` than these are allowed."""
    items: list[Any] = field(default_factory=list)
    """Schemas of every item, for arrays of at least `min_items`."""
    min_items: int = 0
    is_bare: bool = False
    """Whether it says nothing of objects but which properties are `required`."""
    min_length: int = 0
    """Least length of texts."""

    def forbids(self, name: str) -> bool:
        """Whether an object with the property `name` cannot hold."""
        return False in self.properties.get(name, ()) or any(name not in names for names in self.closed)


def narrowed(branches: list[Any], types: frozenset[str], resolve: Resolve) -> list[Any]:
    """The branches, narrowed; of values of other `types` nothing has to be known."""
    if len(branches) > _MOST_BRANCHES:
        return branches
    shapes = [shape_of(branch, resolve) for branch in branches]
    for shape in shapes:
        shape.types &= types
    meanings = [meaning_of(branch, resolve) for branch in branches]
    repeated = [meanings.count(meaning) > 1 for meaning in meanings]
    if all(repeated):
        return [False] * len(branches)
    # What holds for a branch that is there twice never holds for exactly one.
    made = [
        not repeated[place]
        and _narrowed(branch, shapes[place], [other for at, other in enumerate(shapes) if at != place], resolve)
        for place, branch in enumerate(branches)
    ]
    return made if any(branch is not False for branch in made) else branches


def meaning_of(schema: Any, resolve: Resolve, level: int = 0) -> str:
    """A text that is equal for schemas that differ in annotations and in the order of their keys alone."""
    if isinstance(schema, dict) and schema.keys() - _ANNOTATIONS == {"$ref"} and level < _MOST_LEVELS:
        return meaning_of(resolve(schema["$ref"]), resolve, level + 1)
    return json.dumps(_without_annotations(schema), sort_keys=True)


def _without_annotations(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_annotations(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key in _MAPPINGS and isinstance(value, dict):
            made[key] = {name: _without_annotations(part) for name, part in value.items()}
        elif key not in _ANNOTATIONS:
            made[key] = value if key in ("const", "enum") else _without_annotations(value)
    return made


def _narrowed(branch: Any, shape: Shape, others: list[Shape], resolve: Resolve) -> Any:
    types, forbidden, required = shape.types, set[str](), set[str]()
    properties: dict[str, Any] = {}
    least, has_any, shortest = shape.min_items, False, shape.min_length
    for other in others:
        mine = replace(shape, types=types, required=shape.required | required, min_items=least)
        if _are_exclusive(mine, other, resolve) or forbidden & other.required:
            continue
        types -= other.whole
        if "object" in types and (shape.properties or shape.required):
            types = _OBJECT  # what is said of properties holds for all that is no object
        if types & other.types <= shape.whole and types - other.types:
            types -= other.types  # of which the branch says nothing
        if types == _ARRAY and _have_exclusive_items(shape, other, resolve, 0):
            least = max(1, least)
        if types == _STRING and other.values == [""]:
            shortest = max(1, shortest)
        if types != _OBJECT:
            continue
        if other.is_bare and "object" in other.types and other.required <= mine.required:
            return False  # what holds for it holds for the other, too
        if missing := other.required - mine.required:
            forbidden.add(min(missing))
        elif name := _telling_apart(shape, other, resolve):
            required.add(name)
        elif wrong := _violating(shape, other, resolve):
            properties |= wrong
            required |= wrong.keys()
        elif not other.required:
            has_any = True  # the empty object would hold for both
    if not types or branch is False:
        return False
    part: dict[str, Any] = {}
    if types != shape.types:
        part["type"] = sorted(types)
    if forbidden or properties:
        part["properties"] = properties | dict.fromkeys(sorted(forbidden), False)
    if least > shape.min_items:
        part["minItems"] = least
    if shortest > shape.min_length:
        part["minLength"] = shortest
    if has_any and not (required or shape.required):
        part["minProperties"] = 1
    if required:
        part["required"] = sorted(required)
    if not part or not isinstance(branch, dict):
        return part or branch
    return {**branch, "allOf": [*list_in(branch, "allOf"), part]}


def _telling_apart(shape: Shape, other: Shape, resolve: Resolve) -> str | None:
    """A property that excludes `other` wherever an object of `shape` has it; None if there is none."""
    for name in sorted(shape.properties):
        if other.forbids(name) and not shape.forbids(name):
            return name
    for name in sorted(shape.properties.keys() & other.properties.keys()):
        if shape.forbids(name):
            continue
        part, counterpart = (
            Shape(properties=s.properties, required=frozenset((name,)), types=_OBJECT) for s in (shape, other)
        )
        if _are_exclusive(part, counterpart, resolve):
            return name
    return None


def _violating(shape: Shape, other: Shape, resolve: Resolve) -> dict[str, Any]:
    """A property with types that `other` does not allow for it; none if there is none."""
    for name in sorted(other.properties):
        if shape.forbids(name):
            continue
        allowed = _types_of(other, name, resolve)
        if wrong := _types_of(shape, name, resolve) - allowed:
            return {name: {"type": sorted(wrong)}}
    return {}


def _types_of(shape: Shape, name: str, resolve: Resolve) -> frozenset[str]:
    types = TYPES
    for part in shape.properties.get(name, ()):
        types &= shape_of(part, resolve, 1).types
    return types


def _are_exclusive(one: Shape, other: Shape, resolve: Resolve, level: int = 0) -> bool:
    shared = one.types & other.types
    if not shared:
        return True
    if one.values is not None and other.values is not None:
        return not any(_same(a, b) for a in one.values for b in other.values)
    if shared == _ARRAY:
        return max(one.min_items, other.min_items) > 0 and _have_exclusive_items(one, other, resolve, level)
    if shared != _OBJECT:
        return False
    if any(a.forbids(name) for a, b in ((one, other), (other, one)) for name in b.required):
        return True
    return level < _MOST_LEVELS and any(
        _are_exclusive(
            shape_of(part, resolve, level + 1), shape_of(counterpart, resolve, level + 1), resolve, level + 1
        )
        for name in (one.required | other.required) & one.properties.keys() & other.properties.keys()
        for part in one.properties[name]
        for counterpart in other.properties[name]
    )


def _have_exclusive_items(one: Shape, other: Shape, resolve: Resolve, level: int) -> bool:
    return level < _MOST_LEVELS and any(
        _are_exclusive(
            shape_of(part, resolve, level + 1), shape_of(counterpart, resolve, level + 1), resolve, level + 1
        )
        for part in one.items
        for counterpart in other.items
    )


def shape_of(schema: Any, resolve: Resolve, level: int = 0) -> Shape:
    """What is known of a schema, with its references and `allOf`."""
    if not isinstance(schema, dict):
        none = frozenset[str]()
        return Shape(none, none) if schema is False else Shape()
    shape = Shape(types_of(schema))
    if schema.keys() & _NARROWING_ALL:
        shape.whole = frozenset()
    else:
        shape.whole = shape.types - {kind for kind, keys in _NARROWING.items() if not schema.keys().isdisjoint(keys)}
        if "integer" in _names(schema) and "number" not in _names(schema):
            shape.whole -= {"number"}
    if "const" in schema:
        shape.values = [schema["const"]]
    elif isinstance(schema.get("enum"), list):
        shape.values = schema["enum"]
    if shape.values is not None:
        shape.types &= {kind_of(value) for value in shape.values}
    shape.required = frozenset(name for name in list_in(schema, "required") if isinstance(name, str))
    properties = mapping_in(schema, "properties")
    shape.properties = {name: [part] for name, part in properties.items()}
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        shape.closed = [frozenset(properties)]
    if isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
        shape.items = [schema["items"]]
    if isinstance(schema.get("minItems"), int):
        shape.min_items = schema["minItems"]
    if isinstance(schema.get("minLength"), int):
        shape.min_length = schema["minLength"]
    shape.is_bare = schema.keys().isdisjoint(_MORE_OF_OBJECTS)
    if level < _MOST_LEVELS:
        for key in ("anyOf", "oneOf"):
            if parts := list_in(schema, key):
                shape.types &= frozenset().union(*(shape_of(part, resolve, level + 1).types for part in parts))
        for part in (*list_in(schema, "allOf"), *([resolve(schema["$ref"])] if "$ref" in schema else ())):
            if part is not None:
                _merge(shape, shape_of(part, resolve, level + 1))
    return shape


def _merge(shape: Shape, other: Shape) -> None:
    shape.types &= other.types
    shape.whole &= other.whole
    shape.values = other.values if shape.values is None else shape.values
    shape.required |= other.required
    shape.closed += other.closed
    shape.items += other.items
    shape.min_items, shape.min_length = max(shape.min_items, other.min_items), max(shape.min_length, other.min_length)
    for name, parts in other.properties.items():
        shape.properties[name] = shape.properties.get(name, []) + parts


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema names, all without any; integers are numbers."""
    return frozenset("number" if name == "integer" else name for name in _names(schema))


def _names(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", list(TYPES))
    return [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else [str(kinds)]


def kind_of(value: Any) -> str:
    """The type of a value; of every number `number`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "number"


def _same(one: Any, other: Any) -> bool:
    return bool(kind_of(one) == kind_of(other) and one == other)


def list_in(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The list of a keyword; empty where it is none."""
    value = schema.get(key)
    return value if isinstance(value, list) else []


def mapping_in(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object of a keyword; empty where it is none."""
    value = schema.get(key)
    return value if isinstance(value, dict) else {}
