"""`/v1/admin/batches`: the live knobs of batches, and what waits."""

import time
from typing import Any

import msgspec
from litestar import get, patch
from litestar.response import Response
from msgspec import UNSET, UnsetType

from gateway.api.generating import read_body
from gateway.api.guard import actor_of
from gateway.api.operations import describe
from gateway.database_reach import reached
from gateway.errors import ApiError
from gateway.jobs.batch_knobs import BatchKnobFile, BatchKnobs
from gateway.jobs.line_book import Waiting
from gateway.parts import HttpRequest, parts_of
from quality.knob_log import KnobChange

PART = "batches"
_NAMES = BatchKnobs.__struct_fields__


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


_fields: list[Any] = [(name, Any | UnsetType, UNSET) for name in _NAMES]
_Patch = msgspec.defstruct(
    "BatchesPatch", [*_fields, ("reason", str | None, None)], kw_only=True, forbid_unknown_fields=True
)
_decoder = msgspec.json.Decoder(_Patch)


@get("/batches", operation_class=describe(None, BatchesShown), summary="Show the knobs of batches and what waits")
async def show_batches(request: HttpRequest) -> Response[Any]:
    """The knobs in force, and the queue."""
    jobs = parts_of(request).jobs
    waiting = await reached(jobs.lines.waiting(jobs.book.now()))
    shown = BatchesShown(knobs=jobs.knobs.in_force, schemas=BatchKnobFile.schemas(), waiting=waiting)
    return Response(shown, media_type="application/json")


@patch("/batches", operation_class=describe(BatchKnobs, BatchesChanged), summary="Change the knobs of batches")
async def change_batches(request: HttpRequest) -> Response[Any]:
    """All named knobs change at once, or none does; null is a knob's default. They outlast restarts, and the other
    processes of this data folder follow within `AIO_ARTEFACT_POLL_SECONDS`."""
    body: Any = await read_body(request, _decoder)
    parts = parts_of(request)
    wanted = {name: value for name in _NAMES if (value := getattr(body, name)) is not UNSET}
    actor = actor_of(request)
    try:
        before, after = parts.jobs.knobs.change(wanted)
    except ApiError as error:
        name = error.body.param or ""
        await parts.core_knobs.write_down([_change(actor, name, None, wanted.get(name), body.reason, str(error))])
        raise
    except OSError as error:
        raise ApiError(503, f"The knobs cannot be written down: {error}.", code="knobs_unwritable") from error
    changed = [
        _change(actor, name, getattr(before, name), getattr(after, name), body.reason)
        for name in wanted
        if getattr(before, name) != getattr(after, name)
    ]
    recorded = await parts.core_knobs.write_down(changed)
    return Response(BatchesChanged(knobs=after, changed=changed, recorded=recorded), media_type="application/json")


def _change(actor: str, knob: str, old: Any, new: Any, reason: str | None, refused: str | None = None) -> KnobChange:
    return KnobChange(
        created_at=time.time(),
        actor=actor,
        part=PART,
        model=None,
        knob=knob,
        old_value=old,
        new_value=new,
        reason=reason,
        kept=True,
        refused=refused,
    )
