"""`/v1/admin/batches`: the live knobs of batches, and what waits."""

from typing import Any

import msgspec
from litestar import get, patch
from litestar.response import Response

from gateway.api.knob_patch import KnobPatch
from gateway.api.operations import describe
from gateway.database_reach import reached
from gateway.jobs.batch_knobs import BatchKnobs
from gateway.jobs.line_book import Waiting
from gateway.knob_values import knob_schemas
from gateway.parts import HttpRequest, parts_of
from quality.knob_log import KnobChange


class BatchesShown(msgspec.Struct, frozen=True, kw_only=True):
    """`knobs` in force and what each of them is; what waits in the queue of all processes."""

    knobs: BatchKnobs
    schemas: dict[str, dict[str, Any]]
    waiting: Waiting


class BatchesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed; `recorded` is False while the database is away, and the change in force nevertheless."""

    knobs: BatchKnobs
    changed: list[KnobChange]
    recorded: bool


_patch = KnobPatch("BatchesPatch", BatchKnobs)


@get("/batches", operation_class=describe(None, BatchesShown), summary="Show the knobs of batches and what waits")
async def show_batches(request: HttpRequest) -> Response[Any]:
    """The knobs in force, and the queue."""
    jobs = parts_of(request).jobs
    waiting = await reached(jobs.lines.waiting(jobs.book.now()))
    shown = BatchesShown(knobs=jobs.knobs.in_force, schemas=knob_schemas(BatchKnobs), waiting=waiting)
    return Response(shown, media_type="application/json")


@patch("/batches", operation_class=describe(BatchKnobs, BatchesChanged), summary="Change the knobs of batches")
async def change_batches(request: HttpRequest) -> Response[Any]:
    """All named knobs change at once, or none does; null is a knob's default. They outlast restarts, and the other
    processes of this data folder follow within `AIO_ARTEFACT_POLL_SECONDS`."""
    knobs = parts_of(request).jobs.knobs
    changed, recorded = await _patch.change_file(request, knobs)
    shown = BatchesChanged(knobs=knobs.in_force, changed=changed, recorded=recorded)
    return Response(shown, media_type="application/json")
