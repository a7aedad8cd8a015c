"""`/v1/admin/knobs/batches`: the live knobs of batches, and the queue."""

from typing import Any

from litestar import get
from litestar.response import Response

from gateway.base.knobs import knob_schemas
from gateway.base.stores.database import reached
from gateway.batches.batch import BatchKnobs
from gateway.batches.batch_book import Waiting
from gateway.batches.jobs import jobs_of
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.operations.api.knob_patch import FileKnobs, change_handler, paths_of


class BatchesShown(FileKnobs[BatchKnobs], frozen=True, kw_only=True):
    """Also shows the queue of all processes."""

    waiting: Waiting


@get(
    paths_of("batches"), operation_class=describe(None, BatchesShown), summary="Show the knobs of batches and the queue"
)
async def show_batches(request: HttpRequest) -> Response[Any]:
    """The current knobs, and the queue."""
    jobs = jobs_of(request)
    waiting = await reached(jobs.lines.waiting(jobs.book.now()))
    shown = BatchesShown(knobs=jobs.knobs.active, schemas=knob_schemas(BatchKnobs), waiting=waiting)
    return Response(shown, media_type="application/json")


change_batches = change_handler("batches", "batches", BatchKnobs, lambda request: jobs_of(request).knobs)
