"""`/v1/admin/knobs/core`: the cores' live knobs, changed while it serves, with their history."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, get_type_hints

import msgspec
from litestar import get, patch
from litestar.response import Response
from msgspec import UNSET, Meta, UnsetType

from gateway.base.numbers import whole_number
from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.operations.csv_export import as_asked
from gateway.operations.running import operations_of
from gateway.operations.usecases.knobs import change_id
from gateway.runtime.cores.knobs import KnobOrder, KnobsChanged
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from inference_core.engine.live_knobs import KNOB_NAMES, knob_schemas
from inference_core.protocol import Knobs, KnobValue, ModelStats, Tuning
from inference_core.scheduling.preferred_batch_sizes import suggest_preferred_sizes
from quality.store.queries import KnobChange

MOST_CHANGES = 1000
COMMON_SIZES = 64
# The resource, and its earlier path.
PATHS = ["/knobs/core", "/knobs"]


class KnobsShown(msgspec.Struct, frozen=True, kw_only=True):
    """`models`: the current knobs, by model; `cores`: the core that has each; `tuning`: the current step limits, and
    why.

    `preferred_batch_sizes`: those that would have suited each model's batches (SPEC BS-10). `knobs`: the JSON schema of
    each knob.
    """

    models: dict[str, Knobs]
    cores: dict[str, str]
    tuning: dict[str, Tuning | None]
    preferred_batch_sizes: dict[str, list[int]]
    knobs: dict[str, dict[str, Any]]


class KnobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A knob of a model, with its default."""

    core: str
    model: str
    knob: str
    value: Any
    default: Any


class KnobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    changes: list[KnobChange]


class Circumstances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a change: `model` or `core` (all if not named), `keep` across restarts, and a `reason`."""

    model: Annotated[str, Meta(max_length=256)] | None = None
    core: Annotated[str, Meta(max_length=64)] | None = None
    keep: bool = False
    reason: Annotated[str, Meta(max_length=1000)] | None = None


def _patch_struct(types: dict[str, Any]) -> type[msgspec.Struct]:
    """The body of a change: any of the knobs; null restores the value that its model was started with."""
    fields = [(name, kind | None | UnsetType, UNSET) for name, kind in types.items()]
    return msgspec.defstruct("KnobPatch", fields, bases=(Circumstances,), kw_only=True)


# Bounds are documented here and enforced by the core, which decides, and whose refusals are recorded.
_documented = _patch_struct(get_type_hints(Knobs, include_extras=True))
_Patch = _patch_struct(dict.fromkeys(KNOB_NAMES, KnobValue))


@get(PATHS, operation_class=describe(None, KnobsShown), summary="Show the live knobs")
async def show_knobs(request: HttpRequest) -> Response[Any]:
    """The knobs of every model, the tuner's limits, and descriptions. Query: `format`, json or csv: a row for each knob
    of each model."""
    stats = await operations_of(request).core_knobs.stats()
    models = [model for core in stats.values() for model in core.models]
    shown = KnobsShown(
        models={model.name: model.knobs for model in models},
        cores={model.name: name for name, core in stats.items() for model in core.models},
        tuning={model.name: model.tuning for model in models},
        preferred_batch_sizes={model.name: _preferred_sizes(model) for model in models},
        knobs=knob_schemas(),
    )
    return as_asked(request, "knobs", shown, KnobRow.__struct_fields__, _rows(shown))


@patch(PATHS, opt=OPERATOR, operation_class=describe(_documented, KnobsChanged), summary="Change live knobs")
async def change_knobs(request: HttpRequest) -> Response[Any]:
    """All named knobs change between two steps of their cores, or none; null restores a start value."""
    body: Any = await read_body(request, _Patch)
    given = {name: getattr(body, name) for name in KNOB_NAMES}
    order = KnobOrder(
        changes={name: value for name, value in given.items() if value is not UNSET},
        actor=actor_of(request),
        model=body.model,
        core=body.core,
        keep=body.keep,
        reason=body.reason,
    )
    return Response(await operations_of(request).core_knobs.change(order), media_type="application/json")


@get("/knobs/changes", operation_class=describe(None, KnobHistory), summary="Show the history of the live knobs")
async def list_knob_changes(request: HttpRequest) -> Response[Any]:
    """Changes and refusals, newest first. Query: `limit` (100), `before` (an id, for the next page), `knob`;
    `format=csv` for a spreadsheet."""
    query = request.query_params
    limit = whole_number(query.get("limit", "100"), "limit", 1, MOST_CHANGES)
    before = change_id(query.get("before"))
    changes = await operations_of(request).core_knobs.history(limit, before, query.get("knob"))
    return as_asked(request, "knob-changes", KnobHistory(changes=changes), KnobChange.__struct_fields__, changes)


def _rows(shown: KnobsShown) -> Iterator[KnobRow]:
    for model, knobs in shown.models.items():
        for knob, value in msgspec.structs.asdict(knobs).items():
            yield KnobRow(
                core=shown.cores[model], model=model, knob=knob, value=value, default=shown.knobs[knob].get("default")
            )


def _preferred_sizes(model: ModelStats) -> list[int]:
    # Exact over the relevant sizes: the time grows with the square of their number.
    return suggest_preferred_sizes(dict(Counter(model.batch_sizes).most_common(COMMON_SIZES)))
