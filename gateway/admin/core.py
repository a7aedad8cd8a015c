"""What runs: `GET /v1/admin/stats`, figures of tiers, cores and models for operators and dashboards;
`/v1/admin/adapters`, LoRA adapters, loaded and unloaded while the core serves; and the core page: the arena's
contents, step sizes, and the live knobs with the history of their changes.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath, JSONBody
from litestar.response import Response
from msgspec import Meta

from gateway.admin.knob_changes import BeforeChange, ProfileOrder, apply_profile
from gateway.admin.resource import Admin, AsCsv, json_or_csv
from gateway.base.errors import ApiError, bad_request
from gateway.edge.asgi import HttpRequest
from gateway.operations.dashboard.html.forms import fields_of, form_of, knob_fields, text_of, wanted_changes
from gateway.operations.dashboard.html.rendering import Page, back_to, page
from gateway.operations.running import Operations
from gateway.runtime.cores.adapters import ModelAdapters
from gateway.runtime.cores.knob_profiles import PROFILES
from gateway.runtime.cores.knobs import KnobOrder
from gateway.runtime.cores.reading import read_cores
from gateway.tenancy.admin_guard import OPERATOR
from inference_core.engine.live_knobs import COMMON_KNOBS, KNOB_NAMES, knob_schemas
from inference_core.errors import CoreError
from inference_core.protocol import AdapterInfo, CoreStats, ModelStats
from inference_core.protocol.outputs import STEP_SECONDS
from quality.store.queries import KnobChange
from tiers.errors import ReplicaStatus
from tiers.tier import Tier


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's queue as routing sees it, and the share of its prompts' tokens that the prefix cache saved."""

    tier: int
    model: str
    core: str | None
    """The core that computes it; None for a remote tier."""
    healthy: bool
    running: int
    waiting: int
    predicted_wait_seconds: float
    prompt_tokens: int
    cached_tokens: int
    prefix_hit_rate: float | None
    """Cached over prompt tokens since start; None before the first answer."""
    replicas: list[ReplicaStatus]
    """The servers of a tier that has several."""


class CoreShown(msgspec.Struct, frozen=True, kw_only=True):
    """A core: its steps, its arena in bytes and free slabs, its models; or why it does not answer."""

    name: str
    problem: str | None = None
    steps: int = 0
    arena_bytes: int = 0
    slab_bytes: int = 0
    slabs_free: int = 0
    models: list[str] = []


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers by number; the cores behind them; the models of those cores that answer."""

    tiers: list[TierStats]
    cores: list[CoreShown]
    models: list[ModelStats]


@get("/stats", summary="Show queues, caches and steps")
async def show_stats(admin: Admin, as_csv: AsCsv) -> Response[Stats]:
    """Tiers with their load and prefix hit rate; cores; models with their steps, blocks, knobs and tuning. As CSV: the
    models."""
    cores = admin.operations.core_knobs.cores
    there, away = await read_cores(cores)
    if cores and not there:
        raise ApiError(503, f"The core is unavailable: {next(iter(away.values()))}.", code="core_unavailable")
    shown = Stats(
        tiers=[_tier_stats(admin.operations, tier) for tier in admin.serving.routing.served.tiers.values()],
        cores=[_core_shown(name, there, away) for name in cores],
        models=[model for stats in there.values() for model in stats.models],
    )
    homes = {model: core.name for core in shown.cores for model in core.models}
    rows = [{"core": homes[model.name], **msgspec.structs.asdict(model)} for model in shown.models]
    return json_or_csv(as_csv, "models", shown, ("core", *ModelStats.__struct_fields__), rows)


def _core_shown(name: str, there: Mapping[str, CoreStats], away: Mapping[str, CoreError]) -> CoreShown:
    if name in away:
        return CoreShown(name=name, problem=str(away[name]))
    stats = there[name]
    return CoreShown(
        name=name,
        steps=stats.steps,
        arena_bytes=stats.arena_bytes,
        slab_bytes=stats.slab_bytes,
        slabs_free=stats.slabs_free,
        models=[model.name for model in stats.models],
    )


def _tier_stats(operations: Operations, tier: Tier) -> TierStats:
    load, use = tier.load(), operations.metrics.requests.prefix_use[tier.number]
    return TierStats(
        tier=tier.number,
        model=tier.model,
        core=tier.core_name,
        healthy=load.healthy,
        running=load.running,
        waiting=load.waiting,
        predicted_wait_seconds=load.predicted_wait_seconds,
        prompt_tokens=use.prompt_tokens,
        cached_tokens=use.cached_tokens,
        prefix_hit_rate=use.cached_tokens / use.prompt_tokens if use.prompt_tokens else None,
        replicas=tier.replicas(),
    )


class AdaptersShown(msgspec.Struct, frozen=True, kw_only=True):
    """By model of the core."""

    models: dict[str, ModelAdapters]


class AdapterOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve the PEFT folder `path`, on the core's machine, as `model:name`."""

    model: Annotated[str, Meta(max_length=256)]
    name: Annotated[str, Meta(max_length=64)]
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class AdaptersNow(msgspec.Struct, frozen=True, kw_only=True):
    """The model's adapters after a change."""

    model: str
    adapters: list[AdapterInfo]


@get("/adapters", summary="Show the adapters")
async def show_adapters(admin: Admin) -> AdaptersShown:
    """The adapters of every model, which of them are resident, and how many were evicted."""
    return AdaptersShown(models=await admin.serving.core_adapters.by_model())


@post("/adapters", status_code=200, summary="Load an adapter")
async def load_adapter(data: JSONBody[AdapterOrder], admin: Admin) -> AdaptersNow:
    """Read and check a PEFT folder; requests may name `model:name` from now on."""
    adapters = await admin.serving.core_adapters.load(data.model, data.name, data.path, admin.actor)
    return AdaptersNow(model=data.model, adapters=adapters)


@delete("/adapters/{model:str}/{name:str}", status_code=200, summary="Unload an adapter")
async def unload_adapter(model: FromPath[str], name: FromPath[str], admin: Admin) -> AdaptersNow:
    """Accept no more requests for it; it is unloaded after the last one has ended."""
    return AdaptersNow(model=model, adapters=await admin.serving.core_adapters.unload(model, name, admin.actor))


CHANGES = 30
_PATH = "/admin/core"


class Bar(msgspec.Struct, frozen=True):
    """A row of a histogram: its label, its count, and its share of the fullest row."""

    label: str
    count: int
    share: float


class ArenaPart(msgspec.Struct, frozen=True):
    """A share of a core's arena."""

    name: str
    share: float
    colour: int | str


@get("/core")
async def show_core(request: HttpRequest, admin: Admin, before: BeforeChange = None) -> Response[Any]:
    """Show every core with its models, and the knobs of one model (`model`; the first by default). Query: `before`, the
    id of the last change on the previous page."""
    there, away = await read_cores(admin.operations.core_knobs.cores)
    homes = {model.name: name for name, stats in there.items() for model in stats.models}
    models = {model.name: model for stats in there.values() for model in stats.models}
    chosen = request.query_params.get("model") or next(iter(models), "")
    if models and chosen not in models:
        raise bad_request(f"Invalid model: {chosen[:64]!r}; there are {', '.join(models)}.", "model", "invalid_value")
    changes, history_problem = await _changes(admin.operations, before)
    return page(
        request,
        "core.html",
        "Core",
        cores=there,
        away=away,
        arenas={name: arena_parts(stats) for name, stats in there.items()},
        models=models,
        homes=homes,
        chosen=models.get(chosen),
        sizes=size_bars(models[chosen].batch_sizes) if models else [],
        times=time_bars(models[chosen].step_seconds_counts) if models else [],
        fields=knob_fields(msgspec.structs.asdict(models[chosen].knobs), knob_schemas()) if models else [],
        common=COMMON_KNOBS,
        profiles=list(PROFILES.values()),
        doubts=admin.operations.quality_doubts,
        changes=changes,
        history_problem=history_problem,
        older=changes[-1].knob_change_id if len(changes) == CHANGES else None,
    )


@post(["/core", "/core/common"], opt=OPERATOR, status_code=200)
async def change_core(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Change the knobs of `model` that differ in the form, or of all models of a core (no `model`)."""
    form = await form_of(request)
    model, core = text_of(form, "model"), text_of(form, "core")
    names = [name for name in KNOB_NAMES if (name in COMMON_KNOBS) == (model is None)]
    changes = wanted_changes(form, names, knob_schemas())
    back = f"{_PATH}?model={text_of(form, 'shown') or model or ''}"
    if not changes:
        return back_to(back, "Nothing was changed: every field is as it was.")
    order = KnobOrder(
        changes=changes,
        actor=admin.actor,
        model=model,
        core=core,
        keep="keep" in form,
        reason=(text_of(form, "reason") or "")[:1000] or None,
    )
    done = await admin.operations.core_knobs.change(order)
    late = "" if done.recorded else " The database is down: the change is recorded later."
    return back_to(back, f"{_said(done.changed)}{late}")


@post("/core/profile", opt=OPERATOR, status_code=200)
async def apply_core_profile(request: HttpRequest, admin: Admin) -> Response[Any]:
    """Apply the profile of the pressed button to all cores, routing and replicas."""
    fields = await fields_of(request)
    order = ProfileOrder(
        profile=fields.get("profile", ""), keep="keep" in fields, reason=fields.get("reason", "")[:900] or None
    )
    done = await apply_profile(admin.operations, admin.actor, order)
    late = "" if done.recorded else " The database is down: the changes are recorded later."
    return back_to(_PATH, f"Profile {done.profile}: {_said(done.changed)}{late}")


def arena_parts(stats: CoreStats) -> list[ArenaPart]:
    """Return, as shares of the arena, each model's blocks in use, its cached prefixes, and what is free.

    A model's blocks are measured against an arena of its own.
    """
    parts = []
    for position, model in enumerate(stats.models):
        most = max(model.blocks_total, 1)
        parts.append(ArenaPart(f"{model.name}, in use", model.blocks_in_use / most, f"p{1 + 2 * (position % 2)}"))
        colour = f"p{2 + 2 * (position % 2)}"
        parts.append(ArenaPart(f"{model.name}, cached prefixes", model.blocks_cached / most, colour))
    return [*parts, ArenaPart("free", max(0.0, 1 - sum(part.share for part in parts)), 0)]


def size_bars(batch_sizes: Mapping[int, int]) -> list[Bar]:
    """Return steps by number of sequences: 1, 2, 3–4, 5–8 and so on."""
    counts: dict[int, int] = {}
    for size, count in batch_sizes.items():
        exponent = max(size - 1, 0).bit_length()
        counts[exponent] = counts.get(exponent, 0) + count
    rows = [(_range_of(exponent), counts.get(exponent, 0)) for exponent in range(max(counts, default=-1) + 1)]
    return _bars(rows)


def time_bars(counts: list[int]) -> list[Bar]:
    """Return steps by duration, from the first non-empty bucket to the last."""
    labels = [f"≤ {seconds * 1e3:g} ms" for seconds in STEP_SECONDS] + [f"> {STEP_SECONDS[-1]:g} s"]
    rows = list(zip(labels, counts, strict=False))
    full = [bucket for bucket, (_, count) in enumerate(rows) if count]
    return _bars(rows[full[0] : full[-1] + 1]) if full else []


def _range_of(exponent: int) -> str:
    low, high = 2 ** (exponent - 1) + 1, 2**exponent
    return str(high) if exponent < 2 else f"{low}–{high}"


def _bars(rows: list[tuple[str, int]]) -> list[Bar]:
    most = max((count for _, count in rows), default=0)
    return [Bar(label, count, count / most if most else 0.0) for label, count in rows]


def _said(changed: list[KnobChange]) -> str:
    """Name every change once, with all models and parts that it is the same for."""
    whose: dict[tuple[str, str], list[str]] = {}
    for c in changed:
        values = f"{_json(c.old_value)} → {_json(c.new_value)}"
        whose.setdefault((c.knob, values), []).append(c.model or c.part)
    changes = [f"{knob} of {', '.join(names)}: {values}" for (knob, values), names in whose.items()]
    return "; ".join(changes) + "." if changes else "Nothing changed: every value is the same."


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _changes(operations: Operations, before: int | None) -> tuple[list[KnobChange], str]:
    """Return the requested page of the history, and why there is none if so: the core is shown without it too."""
    try:
        return await operations.core_knobs.history(CHANGES, before, None), ""
    except ApiError as error:
        return [], str(error)


CORE_ENDPOINTS = (show_stats, show_adapters, load_adapter, unload_adapter)
CORE_PAGE = Page(title="Core", path="/core", handlers=(show_core, change_core, apply_core_profile))
