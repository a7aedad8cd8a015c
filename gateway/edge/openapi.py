"""Bodies, answers and errors in the OpenAPI schema: those of a handler's signature, or declared where a handler reads
its request by itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Parameter, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.openapi.spec.responses import Responses
from msgspec import UNSET, UnsetType

from gateway.base.errors import ErrorEnvelope
from gateway.base.field_texts import texts_under_fields


@dataclass
class StructSchema(Schema):
    """A JSON schema as msgspec derives it."""

    derived: dict[str, Any] = field(default_factory=dict)

    def to_schema(self) -> dict[str, Any]:
        return self.derived


@dataclass
class _Completed(Operation):
    """Completes itself when the schema is built, which no start waits for. One dataclass for all endpoints: making one
    takes a millisecond."""

    def __post_init__(self) -> None:
        self.complete()

    def complete(self) -> None:
        """Add what the endpoint declares."""

    def call_paths_strings(self) -> None:
        """Say that the rest of a path is a string: litestar calls it a URI, which it is not."""
        for parameter in self.parameters or ():
            if isinstance(parameter, Parameter) and parameter.param_in == "path":
                parameter.schema = Schema(type=OpenAPIType.STRING)


ERRORS = {
    400: "The request is malformed or impossible; `param` names the offending parameter.",
    401: "The API key is missing or wrong.",
    403: "The caller may not do this.",
    404: "There is no such model, request or other thing of that name.",
    409: "Not possible in the server's current state.",
    413: "The body is larger than the server accepts.",
    415: "The body is not declared as `application/json`.",
    429: "The caller's limit is reached; `retry-after` says when to retry.",
    500: "The server failed; its log says why, under the request's id.",
    503: "Nothing can serve this now; `retry-after` says when to retry.",
}


def describe(
    body: type[msgspec.Struct] | None,
    *answers: type[msgspec.Struct],
    streamed: bool = False,
    envelope: type[msgspec.Struct] = ErrorEnvelope,
    errors: Mapping[int, str] = ERRORS,
) -> type[Operation]:
    """Return an Operation class whose request body is `body` and whose answer is one of `answers`, or server-sent
    events; `errors` use the `envelope`."""

    class Described(_Completed):
        def complete(self) -> None:
            if body is not None:
                self.request_body = RequestBody(required=True, content=_json([body]))
            self.call_paths_strings()
            responses: Responses = dict(self.responses or {})
            if answers:
                done = next(status for status in responses if status.startswith("2"))
                content = _json(list(answers))
                if streamed:
                    event = Schema(type=OpenAPIType.OBJECT, properties={"data": Schema(type=OpenAPIType.STRING)})
                    content["text/event-stream"] = OpenAPIMediaType(schema=event)
                responses[done] = OpenAPIResponse(description="The answer.", content=content)
            self.responses = {**responses, **_failures(envelope, errors)}

    return Described


class TypedOperation(_Completed):
    """The operation of a handler whose signature has the types of its body and of its answer."""

    def complete(self) -> None:
        self.call_paths_strings()
        done, answer = next((code, reply) for code, reply in (self.responses or {}).items() if code.startswith("2"))
        content = getattr(answer, "content", None) or {}
        shown = {"application/json": next(iter(content.values()))} if content else None
        if shown is not None and any(getattr(parameter, "name", "") == "format" for parameter in self.parameters or ()):
            shown["text/csv"] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))
        self.responses = {done: OpenAPIResponse(description="The answer.", content=shown)}
        self.responses |= _failures(ErrorEnvelope, ERRORS)


def _failures(envelope: type[msgspec.Struct], errors: Mapping[int, str]) -> Responses:
    failed = _json([envelope])
    return {str(status): OpenAPIResponse(description=text, content=failed) for status, text in errors.items()}


def describe_form(fields: type[msgspec.Struct], answer: type[msgspec.Struct]) -> type[Operation]:
    """As `describe`, for a form with these `fields`, of which `file` is a file."""

    class Described(describe(None, answer)):  # type: ignore[misc]
        def complete(self) -> None:
            derived = _inlined(fields)
            derived["properties"]["file"] = {"type": "string", "format": "binary"}
            form = OpenAPIMediaType(schema=StructSchema(derived=derived))
            self.request_body = RequestBody(required=True, content={"multipart/form-data": form})
            super().complete()

    return Described


def promised(name: str, form: type[msgspec.Struct], **fields: Any) -> Any:
    """Return `form`, which is also read leniently, as the description shows it to callers under this name: `fields`,
    by their types, are always there, but for those of the type `UnsetType`."""
    declared = [
        (field, kind, UNSET) if UnsetType in get_args(kind) else (field, kind) for field, kind in fields.items()
    ]
    namespace = {"__doc__": form.__doc__}
    return msgspec.defstruct(name, declared, bases=(form,), namespace=namespace, kw_only=True)


def schema_of(structs: Sequence[type[msgspec.Struct]]) -> StructSchema:
    """Return the schema of what is one of these structs."""
    schemas = [_inlined(struct) for struct in structs]
    return StructSchema(derived=schemas[0] if len(schemas) == 1 else {"oneOf": schemas})


def _json(structs: Sequence[type[msgspec.Struct]]) -> dict[str, OpenAPIMediaType]:
    return {"application/json": OpenAPIMediaType(schema=schema_of(structs))}


def _inlined(struct: type[msgspec.Struct]) -> dict[str, Any]:
    schema = msgspec.json.schema(struct, schema_hook=lambda _: {})
    definitions = schema.get("$defs", {})
    for part in _structs_of(msgspec.inspect.type_info(struct), set()):
        for definition in definitions.values():
            if definition.get("title", "").partition("[")[0] == part.__name__:
                _describe_fields(part, definition["properties"])

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            others = {key: value for key, value in node.items() if key not in ("$ref", "$defs")}
            return inline(definitions[node["$ref"].rsplit("/", 1)[1]]) | others
        if "prefixItems" in node:
            # A tuple, and of fixed length: many OpenAPI readers know only one schema for all items of an array.
            node = node | {"items": {"anyOf": node["prefixItems"]}}
        return {key: inline(value) for key, value in node.items() if key not in ("$defs", "prefixItems")}

    inlined: dict[str, Any] = inline(schema)
    return inlined


def _structs_of(shape: Any, visited: set[type]) -> Iterator[type[msgspec.Struct]]:
    """Yield each struct that a type consists of once; `visited` are those that were yielded."""
    if isinstance(shape, msgspec.inspect.StructType):
        struct = get_origin(shape.cls) or shape.cls
        if struct in visited:
            return
        visited.add(struct)
        yield struct
    parts = getattr(shape, "__struct_fields__", ())
    for value in [getattr(shape, part) for part in parts]:
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, msgspec.inspect.Type | msgspec.inspect.Field):
                yield from _structs_of(inner, visited)


def _describe_fields(struct: type[msgspec.Struct], properties: dict[str, Any]) -> None:
    """Add to the schema's `properties` what the docstrings under the struct's fields say."""
    fields = msgspec.structs.fields(struct)
    if {member.encode_name for member in fields} != set(properties):
        return
    texts: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base is not msgspec.Struct and issubclass(base, msgspec.Struct):
            texts |= texts_under_fields(base.__module__).get(base.__name__, {})
    for member in fields:
        if member.name in texts:
            properties[member.encode_name].setdefault("description", texts[member.name])
