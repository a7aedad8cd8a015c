"""`DELETE /admin/api/users/{key_id}`: erase a user."""

from typing import Any

from litestar import delete
from litestar.params import FromPath
from litestar.response import Response

from classifier.errors import ArtefactError
from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.privacy import UserErased
from gateway.operations.running import operations_of
from gateway.tenancy.access.admin_guard import actor_of

_LONGEST = 128


@delete(
    "/users/{key_id:str}", status_code=200, operation_class=describe(None, UserErased), summary="Erase a user's data"
)
async def erase_user(request: HttpRequest, key_id: FromPath[str]) -> Response[Any]:
    """Erase all requests, verifications and training rows of the key of this name, and replace the classifier versions
    trained on them. Query: `reason`, which is recorded. Repeating is harmless; 503 while the database is down."""
    if len(key_id) > _LONGEST:
        raise ApiError(404, f"Key names have at most {_LONGEST} characters.", param="key_id")
    reason = request.query_params.get("reason", "erased on request")[:1024]
    work = operations_of(request).privacy.erase(key_id, actor=actor_of(request), reason=reason)
    try:
        erased = await reached(work)
    except ArtefactError as error:
        raise ApiError(500, f"The rows are deleted, but a classifier version cannot be read: {error}") from error
    return Response(erased, media_type="application/json")
