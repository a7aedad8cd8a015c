"""`/v1/admin/batches`: the live knobs of batches, and the queue."""

from typing import Any

from litestar import get, patch
from litestar.response import Response

from gateway.base.knobs.values import knob_schemas
from gateway.base.stores.database_reach import reached
from gateway.batches.api.running_jobs import jobs_of
from gateway.batches.batch_knobs import BatchKnobs
from gateway.batches.line_book import Waiting
from gateway.edge.http_request import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.api.knob_patch import FileKnobs, FileKnobsChanged, KnobPatch
from gateway.tenancy.access.admin_guard import OPERATOR


class BatchesShown(FileKnobs[BatchKnobs], frozen=True, kw_only=True):
    """Also shows the queue of all processes."""

    waiting: Waiting


_patch = KnobPatch("BatchesPatch", BatchKnobs)


@get("/batches", operation_class=describe(None, BatchesShown), summary="Show the knobs of batches and the queue")
async def show_batches(request: HttpRequest) -> Response[Any]:
    """The current knobs, and the queue."""
    jobs = jobs_of(request)
    waiting = await reached(jobs.lines.waiting(jobs.book.now()))
    shown = BatchesShown(knobs=jobs.knobs.active, schemas=knob_schemas(BatchKnobs), waiting=waiting)
    return Response(shown, media_type="application/json")


@patch(
    "/batches",
    opt=OPERATOR,
    operation_class=describe(BatchKnobs, FileKnobsChanged[BatchKnobs]),
    summary="Change the knobs of batches",
)
async def change_batches(request: HttpRequest) -> Response[Any]:
    """All named knobs change at once, or none; null restores a default. They survive restarts, and the other processes
    of this data folder follow within `AIO_ARTEFACT_POLL_SECONDS`."""
    return await _patch.change_file(request, jobs_of(request).knobs)
