"""`/admin/api/outcomes/imports`: imported labels, shown by their import and deleted with it."""

import time
from typing import Any

import msgspec
from litestar import delete, get
from litestar.params import FromPath
from litestar.response import Response

from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.service import serving_of
from gateway.operations.running import operations_of
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.learning.outcome_import import Imported, delete_import, list_imports


class ImportList(msgspec.Struct, frozen=True, kw_only=True):
    """The imports, newest first."""

    rows: list[Imported]


class ImportDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """`labels`: how many were deleted."""

    import_id: str
    labels: int


@get("/outcomes/imports", operation_class=describe(None, ImportList), summary="List imports of outcomes")
async def show_imports(request: HttpRequest) -> Response[Any]:
    """What each import was understood to say of the tiers, and how many of its labels are left."""
    return Response(
        ImportList(rows=await reached(list_imports(serving_of(request).database))), media_type="application/json"
    )


@delete(
    "/outcomes/imports/{import_id:str}",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(None, ImportDeleted),
    summary="Delete an import of outcomes",
)
async def undo_import(request: HttpRequest, import_id: FromPath[str]) -> Response[Any]:
    """Its labels move no decision any more, here at once and on other replicas soon, and train no version from now on.
    Labels that it replaced do not come back."""
    operations, now = operations_of(request), time.time()
    gone = await reached(
        delete_import(operations.serving.database, import_id, actor=actor_of(request), reason=None, now=now)
    )
    if gone is None:
        raise ApiError(404, f"There is no import {import_id[:64]!r}.", param="import_id", code="import_not_found")
    if operations.active_labels is not None:
        await reached(operations.active_labels.catch_up(now))
    return Response(ImportDeleted(import_id=import_id, labels=gone), media_type="application/json")
