"""`/v1/admin/knobs/…`: live knobs, a resource by part, whose PATCH is carried out as an order.

`core`: the cores', with their history. `profiles`: sets for a goal, applied as single changes are, and as one change.
`replicas`: the replicas of remote tiers, and their load balancing. `routing`: also the serving versions of the
classifier. `cache`: also the contents of the response cache. `batches`: also the queue.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import msgspec
from litestar import get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, JSONBody, QueryParameter
from litestar.response import Response
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.knob_changes import (
    REPLICAS,
    BeforeChange,
    ProfileApplied,
    ProfileOrder,
    apply_profile,
    carry_out_order,
    order_knobs,
    part_of,
    replica_changes,
)
from gateway.admin.resource import Admin, AsCsv, json_or_csv
from gateway.base.gone import GONE_KNOBS
from gateway.base.knobs import KnobFile
from gateway.base.knobs import knob_schemas as file_knob_schemas
from gateway.base.stores.database import reached
from gateway.batches.batch import BatchKnobs
from gateway.batches.batch_book import Waiting
from gateway.edge.openapi import describe
from gateway.inference.answer_stores import CacheKnobs, MemoryStore
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.inference.routing_knobs import RoutingKnobs
from gateway.inference.service import Serving
from gateway.operations.running import Operations
from gateway.runtime.cores.knob_profiles import PROFILES, Profile
from gateway.runtime.cores.knobs import KnobOrder, KnobsChanged
from gateway.tenancy.admin_guard import OPERATOR
from inference_core.engine.auto_tuner import suggest_preferred_sizes
from inference_core.engine.live_knobs import KNOB_NAMES, knob_schemas
from inference_core.protocol import Knobs, KnobValue, ModelStats, Tuning
from quality.store.queries import KnobChange
from tiers.catalog.replica_spec import BalancingSpec
from tiers.errors import ReplicaStatus

K = TypeVar("K", bound=msgspec.Struct)


class FileKnobs(msgspec.Struct, Generic[K], frozen=True, kw_only=True):
    """The current `knobs`, and their descriptions."""

    knobs: K
    schemas: dict[str, dict[str, Any]]


class FileKnobsChanged(msgspec.Struct, Generic[K], frozen=True, kw_only=True):
    """What changed."""

    knobs: K
    changed: list[KnobChange]
    recorded: bool
    """False while the database is down, but the change applies."""


class KnobPatch:
    """The body of a change of `knobs`: any of them, null for the default, with a `reason` and the fields `more`.

    The owner of the knobs checks the values, so that a refusal names the knob and is recorded. It also says what became
    of knobs that are gone.
    """

    def __init__(self, name: str, knobs: type[msgspec.Struct], *more: tuple[str, Any, Any]) -> None:
        self._names = (*knobs.__struct_fields__, *GONE_KNOBS)
        fields: list[Any] = [(knob, Any | UnsetType, UNSET) for knob in self._names]
        fields += [*more, ("reason", str | None, None)]
        self.struct: Any = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)

    def wanted(self, body: Any) -> dict[str, Any]:
        """The knobs that a body names."""
        knob_values = {name: getattr(body, name) for name in self._names}
        return {name: value for name, value in knob_values.items() if value is not UNSET}


def change_handler(
    part: str, title: str, struct: type[msgspec.Struct], knobs_of: Callable[[Operations], KnobFile[Any]]
) -> HTTPRouteHandler:
    """Return the PATCH of the knobs in a file. `part`: its resource; `title`: what the knobs are of, for people."""
    changes = KnobPatch(f"{part.title()}Patch", struct)

    async def change(
        data: JSONBody[changes.struct],  # type: ignore[name-defined]
        admin: Admin,
    ) -> FileKnobsChanged[struct]:  # type: ignore[valid-type]
        """All named knobs change at once, or none; null restores a default. They survive restarts, and the other
        processes of this data folder follow within `AIO_ARTEFACT_POLL_SECONDS`."""
        knobs = knobs_of(admin.operations)
        done = await order_knobs(admin.operations, admin.actor, knobs, changes.wanted(data), data.reason)
        return FileKnobsChanged(knobs=knobs.active, changed=done.changed, recorded=done.recorded)

    change.__name__ = f"change_{part}"  # the operation's id
    operation = describe(struct, FileKnobsChanged[struct])  # type: ignore[valid-type]
    handler = patch(f"/knobs/{part}", opt=OPERATOR, operation_class=operation, summary=f"Change the knobs of {title}")
    return handler(change)


MOST_CHANGES = 1000
COMMON_SIZES = 64


class KnobsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of the cores."""

    models: dict[str, Knobs]
    """The current knobs, by model."""
    cores: dict[str, str]
    """The core of each model."""
    tuning: dict[str, Tuning | None]
    """The current step limits, and why."""
    preferred_batch_sizes: dict[str, list[int]]
    """Batch sizes that would have suited each model's batches (SPEC BS-10)."""
    knobs: dict[str, dict[str, Any]]
    """The JSON schema of each knob."""


class KnobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    changes: list[KnobChange]


class Circumstances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a change."""

    model: Annotated[str, Meta(max_length=256)] | None = None
    """The model to change; all if not named."""
    core: Annotated[str, Meta(max_length=64)] | None = None
    """The core to change; all if not named."""
    keep: bool = False
    """Whether the change holds across restarts."""
    reason: Annotated[str, Meta(max_length=1000)] | None = None


def _patch_struct(types: dict[str, Any]) -> type[msgspec.Struct]:
    """The body of a change: any of the knobs; null restores the value that its model was started with."""
    fields = [(name, kind | None | UnsetType, UNSET) for name, kind in types.items()]
    return msgspec.defstruct("KnobPatch", fields, bases=(Circumstances,), kw_only=True)


# Bounds are documented here and enforced by the core, which decides, and whose refusals are recorded.
_documented = _patch_struct(get_type_hints(Knobs, include_extras=True))
_Patch = _patch_struct(dict.fromkeys(KNOB_NAMES, KnobValue))


@get("/knobs/core", summary="Show the live knobs")
async def show_knobs(admin: Admin, as_csv: AsCsv) -> Response[KnobsShown]:
    """The knobs of every model, the tuner's limits, and descriptions. As CSV: a row for each knob of each model."""
    stats = await admin.operations.core_knobs.stats()
    models = [model for core in stats.values() for model in core.models]
    shown = KnobsShown(
        models={model.name: model.knobs for model in models},
        cores={model.name: name for name, core in stats.items() for model in core.models},
        tuning={model.name: model.tuning for model in models},
        preferred_batch_sizes={model.name: _preferred_sizes(model) for model in models},
        knobs=knob_schemas(),
    )
    return json_or_csv(as_csv, "knobs", shown, ("core", "model", "knob", "value", "default"), _rows(shown))


@patch("/knobs/core", opt=OPERATOR, operation_class=describe(_documented, KnobsChanged), summary="Change live knobs")
async def change_knobs(
    data: JSONBody[_Patch],  # type: ignore[valid-type]
    admin: Admin,
) -> KnobsChanged:
    """All named knobs change between two steps of their cores, or none; null restores a start value."""
    body: Any = data
    knob_values = {name: getattr(body, name) for name in KNOB_NAMES}
    order = KnobOrder(
        changes={name: value for name, value in knob_values.items() if value is not UNSET},
        actor=admin.actor,
        model=body.model,
        core=body.core,
        keep=body.keep,
        reason=body.reason,
    )
    return await admin.operations.core_knobs.change(order)


@get("/knobs/changes", summary="Show the history of the live knobs")
async def list_knob_changes(
    admin: Admin,
    as_csv: AsCsv,
    limit: Annotated[int, QueryParameter(ge=1, le=MOST_CHANGES, description="How many changes.")] = 100,
    before: BeforeChange = None,
    knob: FromQuery[str | None] = None,
) -> Response[KnobHistory]:
    """Changes and refusals, newest first."""
    changes = await admin.operations.core_knobs.history(limit, before, knob)
    return json_or_csv(as_csv, "knob-changes", KnobHistory(changes=changes), KnobChange.__struct_fields__, changes)


def _rows(shown: KnobsShown) -> Iterator[dict[str, Any]]:
    """A row for each knob of each model, with its default."""
    for model, knobs in shown.models.items():
        for knob, value in msgspec.structs.asdict(knobs).items():
            default = shown.knobs[knob].get("default")
            yield {"core": shown.cores[model], "model": model, "knob": knob, "value": value, "default": default}


def _preferred_sizes(model: ModelStats) -> list[int]:
    # Exact over the relevant sizes: the time grows with the square of their number.
    return suggest_preferred_sizes(dict(Counter(model.batch_sizes).most_common(COMMON_SIZES)))


class ProfilesShown(msgspec.Struct, frozen=True, kw_only=True):
    """What each profile sets: knobs of all models of all cores, of routing and of all replicas; null is the value that
    the server was started with."""

    profiles: list[Profile]


@get("/knobs/profiles", summary="Show the profiles of live knobs")
async def show_profiles() -> ProfilesShown:
    """Every profile with the knobs that it sets: `max_num_seqs` at most, `max_num_batched_tokens` at least, where the
    core's memory allows, `itl_objective_ms` at most but half of the start's."""
    return ProfilesShown(profiles=list(PROFILES.values()))


@post("/knobs/profiles", opt=OPERATOR, status_code=200, summary="Apply a profile of live knobs")
async def change_profile(data: JSONBody[ProfileOrder], admin: Admin) -> ProfileApplied:
    """All knobs of the profile change while serving, or none; the profile `catalogue` puts them back. Every change is
    recorded as if it had been made alone."""
    return await apply_profile(admin.operations, admin.actor, data)


class ReplicatedTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier with replicas: the current knobs and each replica's state."""

    tier: int
    knobs: BalancingSpec
    replicas: list[ReplicaStatus]


class ReplicasShown(msgspec.Struct, frozen=True, kw_only=True):
    """All tiers with replicas, and descriptions of the knobs."""

    tiers: list[ReplicatedTier]
    schemas: dict[str, dict[str, Any]]


class ReplicasChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What changed."""

    tiers: list[ReplicatedTier]
    changed: list[KnobChange]
    recorded: bool
    """False while the database is down, but the change applies."""


_patch = KnobPatch("ReplicasPatch", BalancingSpec, ("tier", int | None, None))


@get("/knobs/replicas", summary="Show replicas and their knobs")
async def show_replicas(admin: Admin) -> ReplicasShown:
    """By tier with replicas: the current knobs; each replica's requests in flight, latency, failures, ejection."""
    return ReplicasShown(tiers=_shown(admin.operations), schemas=file_knob_schemas(BalancingSpec))


@patch(
    "/knobs/replicas",
    opt=OPERATOR,
    operation_class=describe(BalancingSpec, ReplicasChanged),
    summary="Change the knobs of replicas",
)
async def change_replicas(
    data: JSONBody[_patch.struct],  # type: ignore[name-defined]
    admin: Admin,
) -> ReplicasChanged:
    """All named knobs change at once, or none, of one `tier` or of all; null restores the catalogue's value. They
    survive restarts, and the other gateway processes of this data folder follow."""
    knobs = admin.operations.replica_knobs
    numbers = list(knobs.sets) if data.tier is None else [data.tier]
    changed, recorded = await carry_out_order(
        admin.operations,
        admin.actor,
        _patch.wanted(data),
        data.reason,
        REPLICAS if data.tier is None else part_of(data.tier),
        lambda wanted: replica_changes(knobs, numbers, wanted),
    )
    return ReplicasChanged(tiers=_shown(admin.operations), changed=changed, recorded=recorded)


def _shown(operations: Operations) -> list[ReplicatedTier]:
    sets = operations.replica_knobs.sets
    return [
        ReplicatedTier(tier=number, knobs=tier.balancing, replicas=tier.replicas()) for number, tier in sets.items()
    ]


class ClassifierShown(msgspec.Struct, frozen=True, kw_only=True):
    """The classifier that decides."""

    current: str | None = None
    """The version that decides, except for the `share` of the requests that `canary` decides on."""
    kind: str | None = None
    """Whether it is measured, or a prior."""
    parent: str | None = None
    canary: str | None = None
    share: float = 0.0
    refusal: str = ""
    """Why the registry's latest version is not active; empty if it is."""


class RoutingShown(FileKnobs[RoutingKnobs], frozen=True, kw_only=True):
    """The routing knobs, the versions that serve, and what this process remembers."""

    classifier: ClassifierShown
    conversations: int
    """How many conversations this process remembers."""


@get("/knobs/routing", summary="Show the knobs of routing and the serving versions")
async def show_routing(admin: Admin) -> RoutingShown:
    """The current knobs, the classifier's versions, and why a version was rejected, if one was."""
    return RoutingShown(
        knobs=admin.serving.routing.knobs.active,
        schemas=file_knob_schemas(RoutingKnobs),
        classifier=_classifier(admin.serving),
        conversations=len(admin.serving.routing.conversations),
    )


change_routing = change_handler("routing", "routing", RoutingKnobs, lambda operations: operations.serving.routing.knobs)


def _classifier(serving: Serving) -> ClassifierShown:
    active = serving.routing.classifier
    if not isinstance(active, ActiveClassifier):
        return ClassifierShown()
    versions = active.serving_or_none
    if versions is None:
        return ClassifierShown(refusal=active.refusal)
    model = versions.current.model
    return ClassifierShown(
        current=model.version,
        kind=versions.current.kind,
        parent=model.manifest.parent,
        canary=None if versions.canary is None else versions.canary.version,
        share=versions.share,
        refusal=active.refusal,
    )


class CacheShown(FileKnobs[CacheKnobs], frozen=True, kw_only=True):
    """Also shows where answers are stored, and number and bytes of those in the memory of the answering process."""

    store: Literal["memory", "redis"]
    entries: int | None
    bytes: int | None


@get("/knobs/cache", summary="Show the response cache and its knobs")
async def show_cache(admin: Admin) -> CacheShown:
    """The current knobs and contents."""
    cache = admin.operations.cache
    memory = cache.store if isinstance(cache.store, MemoryStore) else None
    return CacheShown(
        knobs=cache.knobs.active,
        schemas=file_knob_schemas(CacheKnobs),
        store="redis" if memory is None else "memory",
        entries=None if memory is None else len(memory),
        bytes=None if memory is None else memory.bytes,
    )


change_cache = change_handler("cache", "the response cache", CacheKnobs, lambda operations: operations.cache.knobs)


class BatchesShown(FileKnobs[BatchKnobs], frozen=True, kw_only=True):
    """Also shows the queue of all processes."""

    waiting: Waiting


@get("/knobs/batches", summary="Show the knobs of batches and the queue")
async def show_batches(admin: Admin) -> BatchesShown:
    """The current knobs, and the queue."""
    jobs = admin.operations.jobs
    waiting = await reached(jobs.lines.waiting(jobs.book.now()))
    return BatchesShown(knobs=jobs.knobs.active, schemas=file_knob_schemas(BatchKnobs), waiting=waiting)


change_batches = change_handler("batches", "batches", BatchKnobs, lambda operations: operations.jobs.knobs)


KNOB_ENDPOINTS = (
    show_knobs, change_knobs, list_knob_changes, show_profiles, change_profile, show_replicas, change_replicas,
    show_cache, change_cache, show_routing, change_routing, show_batches, change_batches,
)  # fmt: skip
