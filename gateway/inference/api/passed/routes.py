"""The routes of the endpoints that are passed through; what passes them on is imported with the first request."""

from typing import cast

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe, describe_form
from gateway.inference.api.passed.endpoints import ENDPOINTS, FileForm, PassedEndpoint
from gateway.tenancy.guard import PlainRequest, inference_post


class PassedObject(msgspec.Struct, frozen=True):
    """What the server answered, as it is."""


def _route(endpoint: PassedEndpoint) -> HTTPRouteHandler:
    async def passed(request: HttpRequest) -> ASGIApp:
        from gateway.inference.api.passed.answer import PassedOn

        return PassedOn(cast(PlainRequest, request), endpoint)

    passed.__name__ = passed.__qualname__ = endpoint.path.replace("/", "_")
    passed.__doc__ = (
        "By an entry of the catalogue that `serves` it; other fields go on as they are, and so does the answer."
    )
    described = (
        describe_form(FileForm, PassedObject) if endpoint.body is None else describe(endpoint.body, PassedObject)
    )
    return inference_post(f"/{endpoint.path}", described, endpoint.summary, id_prefix=endpoint.api)(passed)


PASSED_ROUTES = [_route(endpoint) for endpoint in ENDPOINTS]
