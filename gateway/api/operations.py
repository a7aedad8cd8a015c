"""Bodies in the OpenAPI schema: endpoints decode and encode them with msgspec, so the schema has to be told."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, RequestBody, Schema


@dataclass
class StructSchema(Schema):
    """A JSON schema as msgspec derives it."""

    derived: dict[str, Any] = field(default_factory=dict)

    def to_schema(self) -> dict[str, Any]:
        """The schema itself."""
        return self.derived


def describe(body: type[msgspec.Struct] | None, *answers: type[msgspec.Struct]) -> type[Operation]:
    """An Operation class whose request body is `body` and whose answer is one of `answers`."""

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            if body is not None:
                self.request_body = RequestBody(required=True, content=_json([body]))
            if answers:
                self.responses = {"200": OpenAPIResponse(description="The answer.", content=_json(list(answers)))}

    return Described


def _json(structs: list[type[msgspec.Struct]]) -> dict[str, OpenAPIMediaType]:
    schemas = [_inlined(struct) for struct in structs]
    derived = schemas[0] if len(schemas) == 1 else {"oneOf": schemas}
    return {"application/json": OpenAPIMediaType(schema=StructSchema(derived=derived))}


def _inlined(struct: type[msgspec.Struct]) -> dict[str, Any]:
    schema = msgspec.json.schema(struct, schema_hook=lambda _: {})
    definitions = schema.get("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline(definitions[node["$ref"].rsplit("/", 1)[1]])
        return {key: inline(value) for key, value in node.items() if key != "$defs"}

    inlined: dict[str, Any] = inline(schema)
    return inlined
