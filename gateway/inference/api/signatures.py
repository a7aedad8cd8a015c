"""Endpoints whose signature says what they take and return: the struct of a JSON body as `data`, the parameters of the
query, the struct of the answer. What does not fit is refused by name, and OpenAPI says what does.
"""

from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
from litestar.dto import AbstractDTO
from litestar.exceptions import ValidationException
from litestar.response import Response
from litestar.typing import FieldDefinition
from litestar.utils import is_class_and_subclass

from gateway.base.errors import ApiError, as_api_error, bad_request, envelope_response
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import StructSchema, schema_of
from gateway.inference.api.parsing import NOT_JSON, check_media_type, decode_body, decoder_of

MOST_BYTES = 1 << 20
"""Of a body that is decoded on the event loop, which takes milliseconds; no order is nearly as large."""


class JsonStruct(AbstractDTO[Any]):
    """Decodes the body of a handler as the struct of its `data`, as strictly as callers' requests are decoded, and
    describes both to OpenAPI."""

    __slots__ = ()

    def decode_bytes(self, value: bytes) -> Any:
        """Decode the body. Raises `ApiError`: 415, 413, and 400 that names the field."""
        check_media_type(self.asgi_connection)
        if len(value) > MOST_BYTES:
            raise ApiError(413, f"The body has {len(value)} bytes; it may have {MOST_BYTES}.")
        handler: Any = self.asgi_connection.route_handler
        return decode_body(decoder_of(handler.parsed_data_field.annotation), value)

    def data_to_encodable_type(self, data: Any) -> Any:
        """Return the answer as it is: litestar encodes structs."""
        return data

    @classmethod
    def is_supported_model_type_field(cls, field_definition: FieldDefinition) -> bool:
        """Return whether the field is a struct, or an answer with one."""
        return bool(_structs(field_definition.annotation))

    @classmethod
    def create_for_field_definition(cls, *args: Any, **options: Any) -> None:
        """Nothing: structs have no second form."""

    @classmethod
    def create_openapi_schema(cls, field_definition: FieldDefinition, *args: Any, **options: Any) -> StructSchema:
        """Return the struct's schema, with what is said of its fields."""
        return schema_of(_structs(field_definition.annotation))


def _structs(annotation: Any) -> list[type[msgspec.Struct]]:
    """Return the structs that a body is, or an answer has: `A`, `Response[A]`, `Response[A | B]`."""
    if get_origin(annotation) is Response:
        return _structs(get_args(annotation)[0])
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else [annotation]
    return [kind for kind in kinds if is_class_and_subclass(get_origin(kind) or kind, msgspec.Struct)]


def invalid_parameter(request: HttpRequest, error: ValidationException) -> Response[Any]:
    """Return the envelope of a parameter that its handler does not take, which names it and what is allowed."""
    return envelope_response(request, parameter_refusal(request, error))


def parameter_refusal(request: HttpRequest, error: ValidationException) -> ApiError:
    """Return the refusal of a parameter: its name, what was given, and what is allowed."""
    name = str(error.extra[0].get("key")) if isinstance(error.extra, list) else ""
    if name == "data":
        return bad_request("The body is not valid JSON: it is empty.", None, NOT_JSON)
    handler = request.route_handler
    signatures = [handler.parsed_fn_signature]
    signatures += [dependency.parsed_fn_signature for dependency in handler.resolve_dependencies().values()]
    field = next((each.parameters[name] for each in signatures if name in each.parameters), None)
    if field is None:
        return as_api_error(error)
    parameter = request.query_params.get(name, request.path_params.get(name, ""))
    return bad_request(f"Invalid {name}: {str(parameter)[:64]!r} is not {_allowed(field)}.", name, "invalid_value")


def _allowed(field: FieldDefinition) -> str:
    """Return in words what a parameter may be."""
    bounds: Any = field.kwarg_definition
    if bounds.title:
        return str(bounds.title)
    kinds = {field.annotation, *field.args}
    if int in kinds or float in kinds:
        kind = "a whole number" if int in kinds else "a number"
        return kind if bounds.ge is None else f"{kind} from {bounds.ge:.15g} to {bounds.le:.15g}"
    return f"one of {', '.join(map(str, field.args))}"
