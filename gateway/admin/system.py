"""The current state of a gateway: its dependencies and what happens without each, its versions, its disk (`GET
/admin/api/system` and the system page); its catalogue, reloaded without a restart; and the parameters that servers of
tiers were found to refuse, which are left out of requests.
"""

import asyncio
import platform
import shutil
import time
from collections.abc import Awaitable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, post
from litestar.params import FromQuery, JSONBody
from litestar.response import Response
from msgspec import Meta
from sqlalchemy import text

from gateway import __version__
from gateway.admin.resource import Admin, AsCsv, json_or_csv
from gateway.base.errors import ApiError
from gateway.base.settings import Settings
from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import Serving
from gateway.operations.dashboard.html.rendering import Page, page
from gateway.operations.reload.catalogue_reload import Reloaded
from gateway.operations.running import Operations
from gateway.runtime.cores.knobs import CoreKnobs
from gateway.runtime.cores.reading import read_cores
from gateway.tenancy.admin_guard import OPERATOR
from quality.store.database import head_revision
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.engines import EngineStatus
from tiers.errors import CatalogError, CoreMemoryError
from tiers.remote.refusals import REFUSALS, LearnedRefusal
from tiers.tier import Tier

State = Literal["ok", "away", "not used"]
PATIENCE_SECONDS = 2.0


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the gateway depends on."""

    name: str
    state: State
    detail: str
    """How long it took to answer, or why it does not."""
    policy: str
    """What happens while it is down."""


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """The database's schema revision, and this version's; None while it is down."""

    current: str | None
    newest: str


class DiskState(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of the data folder, in bytes."""

    path: str
    total: int
    free: int


class SystemState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the gateway."""

    version: str
    python: str
    started: float
    """When it started, in epoch seconds."""
    workers: int
    """Gateway processes behind this port."""
    catalogue: str
    fingerprint: str
    classifier: str | None
    problems: dict[str, str]
    """What keeps the server from serving, wholly or in part."""
    dependencies: list[Dependency]
    schema: SchemaState
    disk: DiskState
    memory: dict[str, list[str]]
    """The memory plan of each GPU group, line by line."""


async def system_state(operations: Operations) -> SystemState:
    """Ask every dependency, for at most `PATIENCE_SECONDS` each."""
    serving = operations.serving
    database, redis, cores, current = await asyncio.gather(
        _database(serving),
        _redis(operations.readiness.redis, serving.settings),
        _cores(operations.core_knobs),
        _within(_revision(serving)),
    )
    data, catalog = serving.settings.data_path, serving.routing.served.catalog
    usage = await asyncio.to_thread(shutil.disk_usage, data)
    model = serving.routing.classifier
    return SystemState(
        version=__version__,
        python=platform.python_version(),
        started=serving.created,
        workers=1 if operations.peers is None else serving.settings.gateway_workers,
        catalogue=catalog.name,
        fingerprint=serving.fingerprint,
        classifier=_version_of(model),
        problems=operations.readiness.problems,
        dependencies=[database, redis, *cores, *_tiers(serving)],
        schema=SchemaState(current=current if isinstance(current, str) else None, newest=head_revision()),
        disk=DiskState(path=str(data), total=usage.total, free=usage.free),
        memory={group.name: group.memory_lines() for group in catalog.gpu_groups},
    )


async def _database(serving: Serving) -> Dependency:
    async def ask() -> None:
        async with serving.database.connect() as connection:
            await connection.execute(text("SELECT 1"))

    kind = serving.database.dialect.name
    name = f"database ({'SQLite' if kind == 'sqlite' else 'PostgreSQL'})"
    return _dependency(name, await _timed(ask()), _database_policy(serving.settings))


def _database_policy(settings: Settings) -> str:
    spent = "requests go on" if settings.budgets_without_database == "open" else "its requests get 503"
    return (
        "Requests are served and recorded in the journal, which replays them; known keys stay valid, admin changes "
        f"fail; once a budget's slice is spent, {spent}."
    )


async def _redis(store: RedisStore | None, settings: Settings) -> Dependency:
    opened = settings.limits_without_redis == "open"
    policy = "Every process counts limits by itself." if opened else "Keys with limits get 503."
    if store is None:
        detail = "Each process counts by itself; set AIO_REDIS_URL if several share limits."
        return Dependency(name="Redis", state="not used", detail=detail, policy=policy)

    async def ask() -> None:
        await store.ask(lambda redis: redis.exists("aio"))

    return _dependency("Redis", await _timed(ask()), policy)


async def _cores(knobs: CoreKnobs) -> list[Dependency]:
    cores = knobs.cores
    there, away = await read_cores(cores)
    policy = "Its streams end with an error, routing avoids its tiers, and the gateway starts it again, or reconnects."
    dependencies = []
    for name in cores:
        problem = str(away[name]) if name in away else None
        steps = there[name].steps if name in there else 0
        dependencies.append(
            Dependency(
                name=f"core {name}",
                state="ok" if problem is None else "away",
                detail=problem or f"{steps:,} steps since its start",
                policy=policy,
            )
        )
    return dependencies


def _tiers(serving: Serving) -> list[Dependency]:
    """Return all tiers, with what each runs on."""
    return [_tier(serving, tier) for _, tier in sorted(serving.routing.served.tiers.items())]


def _tier(serving: Serving, tier: Tier) -> Dependency:
    is_healthy, engine = tier.load().healthy, tier.engine()
    takes = "takes requests" if is_healthy else "takes no requests now"
    if tier.core_name is not None:
        runs_on = f"runs on the core {tier.core_name}, {_device(serving.routing.served.catalog, tier.core_name)}"
    else:
        runs_on = "runs on a server elsewhere" if engine is None else _engine_detail(engine)
    return Dependency(
        name=f"tier {tier.number}, {tier.model}",
        state="ok" if is_healthy else "away",
        detail=f"{takes}; {runs_on}",
        policy="The next allowed tier up answers; without one, 503 with Retry-After.",
    )


def _device(catalog: Catalog, core: str) -> str:
    """Return what a core computes with."""
    if core == CPU_CORE:
        return "on the CPU"
    group = catalog.group(core)
    if group.device == "cpu":
        return "on the CPU in place of GPUs"
    return f"on {group.cards} {'GPU' if group.cards == 1 else 'GPUs'}"


def _engine_detail(engine: EngineStatus) -> str:
    where = f" on {engine.url}" if engine.url else ""
    restarts = f", restarted {engine.restarts} times" if engine.restarts else ""
    return f"{engine.detail}{where}{restarts}; log: {engine.log}"


async def _revision(serving: Serving) -> str | None:
    async with serving.database.connect() as connection:
        revision: Any = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return None if revision is None else str(revision)


async def _timed(work: Awaitable[None]) -> float | Exception:
    began = time.perf_counter()
    failure = await _within(work)
    return failure if isinstance(failure, Exception) else time.perf_counter() - began


async def _within(work: Awaitable[Any]) -> Any:
    """Return its result, or why there is none."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work
    except TimeoutError:
        return TimeoutError(f"no answer within {PATIENCE_SECONDS:g} s")
    except RedisUnavailableError as error:
        return error
    except Exception as error:
        # Every failure of a dependency is reported here; addresses and secrets are not shown.
        return RuntimeError(type(error).__name__)


def _dependency(name: str, took: float | Exception, policy: str) -> Dependency:
    if isinstance(took, Exception):
        return Dependency(name=name, state="away", detail=str(took), policy=policy)
    return Dependency(name=name, state="ok", detail=f"answered in {took * 1e3:.1f} ms", policy=policy)


def _version_of(model: object) -> str | None:
    serving = getattr(model, "serving_or_none", None)
    return None if serving is None else str(serving.current.version)


@get("/system", summary="Show the gateway's dependencies and state")
async def show_system(admin: Admin, as_csv: AsCsv) -> Response[SystemState]:
    """Every dependency as it answers now; versions, schema, disk and memory."""
    state = await system_state(admin.operations)
    return json_or_csv(as_csv, "system", state, ("part", "name", "state", "detail", "policy"), _rows(state))


def _rows(state: SystemState) -> Iterator[dict[str, Any]]:
    """A line for each dependency, problem, fact and line of memory: its `part` of the state."""
    for dependency in state.dependencies:
        yield {"part": "dependency", **msgspec.structs.asdict(dependency)}
    for name, problem in state.problems.items():
        yield {"part": "problem", "name": name, "detail": problem}
    facts = {
        "version": state.version,
        "python": state.python,
        "started": state.started,
        "workers": state.workers,
        "catalogue": state.catalogue,
        "fingerprint": state.fingerprint,
        "classifier": state.classifier,
        "schema": state.schema.current,
        "newest schema": state.schema.newest,
        "disk free, bytes": state.disk.free,
        "disk, bytes": state.disk.total,
    }
    for name, value in facts.items():
        yield {"part": "fact", "name": name, "detail": None if value is None else str(value)}
    for group, lines in state.memory.items():
        yield from ({"part": "memory", "name": group, "detail": line} for line in lines)


@get("/system")
async def show_system_page(request: HttpRequest, admin: Admin) -> Response[Any]:
    return page(request, "system.html", "System", state=await system_state(admin.operations))


SYSTEM_PAGE = Page(title="System", path="/system", handlers=(show_system_page,))


class ReloadOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, which is recorded."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


@post("/reload", status_code=200, summary="Reload the catalogue")
async def reload_catalogue(data: JSONBody[ReloadOrder], admin: Admin) -> Reloaded:
    """The catalogue is validated first; a rejected one changes nothing, and the reason is returned. Running answers
    keep their tier. Changed models of the CPU core are loaded before the answer. The same as SIGHUP."""
    try:
        done = await admin.operations.reload.reload(admin.actor, data.reason)
    except CoreMemoryError as error:
        raise ApiError(409, str(error), code="insufficient_memory") from error
    except CatalogError as error:
        raise ApiError(409, str(error), code="catalogue_refused") from error
    if admin.operations.peers is not None:
        # What this process accepted, the others accept in a moment.
        await admin.operations.peers.ask("reload")
    return done


class RefusalsShown(msgspec.Struct, frozen=True, kw_only=True):
    """What all gateway processes have learned; each remembers it for a day."""

    refusals: list[LearnedRefusal]


class RefusalsForgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Of how many places (tier, address, API, model) something was forgotten."""

    forgotten: int


@get("/refusals", summary="Show the parameters that servers refuse")
async def show_refusals(admin: Admin) -> RefusalsShown:
    """A parameter is here after a server refused it as such and answered the same request without it."""
    refusals = REFUSALS.listed()
    if admin.operations.peers is not None:
        for told in (await admin.operations.peers.ask("refusals")).values():
            refusals += msgspec.msgpack.decode(told, type=list[LearnedRefusal])
    latest = {
        (refusal.tier, refusal.url, refusal.api, refusal.model, *refusal.parameters): refusal for refusal in refusals
    }
    return RefusalsShown(refusals=list(latest.values()))


@delete("/refusals", opt=OPERATOR, status_code=200, summary="Forget the parameters that servers refuse")
async def forget_refusals(admin: Admin, tier: FromQuery[str] = "") -> RefusalsForgotten:
    """Further requests have them again. `tier` in the query: of this tier alone."""
    forgotten = REFUSALS.forget(tier or None)
    if admin.operations.peers is not None:
        forgotten += sum(int(told) for told in (await admin.operations.peers.ask("forget", tier)).values())
    return RefusalsForgotten(forgotten=forgotten)


TIER_ENDPOINTS = (reload_catalogue, show_refusals, forget_refusals)
