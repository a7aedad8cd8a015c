"""Gateways in the test's process: each serves on its own loopback port, with scripted tiers or its catalogue's.

A test takes `app` and starts as many as it needs: `gateway = await app(body_limit=4096)`. Fixtures of a module
take `module_app`. Tests that only ask share the module's `gateway`, or its `aio`, whose tiers are on a core of hash
models. `running_gateway` and `gateway_of` are blocks, for tests that look at what a gateway left behind.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec
import openai
import pytest
import pytest_asyncio
import uvicorn
from litestar import Litestar
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.app import HttpApp, create_app
from gateway.base.settings import Settings
from gateway.batches.jobs import Jobs
from gateway.inference.answer_stores import MemoryStore
from gateway.inference.service import SERVING, Serving
from gateway.operations.running import OPERATIONS, Operations
from gateway.processes.server import WEBSOCKETS
from gateway.runtime.cores.engine import LoadFailed
from gateway.tenancy.guard import Access
from inference_core.transport.client import CoreClient
from tests.loop_thread import on_a_thread
from tests.polling import eventually
from tests.support.administrator import ADMIN_KEYS, Administrator, bearer
from tests.support.core import laptop_hash_core
from tests.support.scripted_classifier import ScriptedClassifier
from tests.support.scripted_tier import ScriptedTier
from tests.support.served import UNCACHED
from tests.support.shared_app import shared_http_app
from tests.support.upstream import Handler, LoopbackServer

# Once, not by each server, which would have every logger forget its level: warnings go to the standard error.
logging.getLogger("uvicorn").setLevel(logging.WARNING)
logging.getLogger("uvicorn").propagate = False


class RunningGateway:
    """A serving gateway, its tiers and its clients. `auth`: of its plain HTTP client."""

    def __init__(
        self,
        app: Litestar,
        port: int,
        tiers: list[ScriptedTier],
        classifier: ScriptedClassifier,
        auth: httpx.Auth | None = None,
    ) -> None:
        self.app, self.port, self.tiers, self.classifier = app, port, tiers, classifier
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=120, auth=auth)
        self.upstream: LoopbackServer | None = None

    @cached_property
    def openai(self) -> openai.AsyncOpenAI:
        """Made once it is asked for: most gateways of tests are asked without it."""
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=120, default_headers=UNCACHED
        )

    @property
    def operations(self) -> Operations:
        operations: Operations = self.app.state[OPERATIONS]
        return operations

    @property
    def serving(self) -> Serving:
        return self.operations.serving

    @property
    def access(self) -> Access:
        return self.operations.access

    @property
    def jobs(self) -> Jobs:
        return self.operations.jobs

    def replace_database(self, monkeypatch: pytest.MonkeyPatch, database: AsyncEngine) -> None:
        """For the time of one test."""
        serving = replace(self.serving, database=database)
        monkeypatch.setitem(self.app.state, SERVING, serving)
        monkeypatch.setattr(self.operations, "serving", serving)

    def reset(self) -> None:
        """Reset tiers and classifier to their first state; a held generation is released."""
        for tier in self.tiers:
            tier.go.set()
            tier.reset()
        self.classifier.reset()
        if isinstance(self.operations.cache.store, MemoryStore):
            self.operations.cache.store.clear()

    def tier(self, number: int) -> ScriptedTier:
        return self.tiers[number - 1]

    async def ask(
        self, text: str = "Say hello.", *, key: str = "", headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """The answer to a chat of one turn, of the tier that routing chooses unless `fields` say otherwise, with the
        secret of a key."""
        body = {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}
        own = {**(bearer(key) if key else {}), **(headers or {})}
        return await self.http.post("/v1/chat/completions", json=body, headers=own)

    async def order(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to the tests' administrator, who asks for `/admin/api` and `path`, and is not refused."""
        answer = await self.http.request(method, f"/admin/api{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    async def budgets(self) -> list[dict[str, Any]]:
        """The budgets' rows, once all that was spent until now is in them. A report of the process's own that is
        under way holds what it reports, and another report leaves that out."""
        await self.serving.service.idle()
        leases = self.access.tenancy.budget_leases
        await eventually(lambda: not any(part.talking.locked() for part in leases._slices.values()))
        await leases.tell()
        rows: list[dict[str, Any]] = (await self.order("GET", "/budgets"))["rows"]
        return rows

    async def key(self, name: str = "ada", **terms: Any) -> str:
        """A new key of these terms."""
        return str((await self.order("POST", "/keys", {"name": name, "terms": terms}))["key"])

    async def budget(self, key: str, usd: float, period: str = "total") -> str:
        """The id of a budget of the key of this name."""
        given = {"kind": "key", "subject": key, "period": period, "amount_usd": usd}
        return str((await self.order("PUT", "/budgets", given))["budget_id"])

    async def close(self) -> None:
        if "openai" in self.__dict__:
            await self.openai.close()
        await self.http.aclose()


class _Server(uvicorn.Server):
    """Its start can be awaited, and it ends as soon as it is asked to: uvicorn looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._accepts, self._leave = asyncio.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._accepts.set()

    async def main_loop(self) -> None:
        await _first_of(super().main_loop(), self._leave.wait())

    async def until_it_accepts(self, serving: asyncio.Task[None]) -> None:
        """Wait for `serving`, its task, to accept connections or to fail."""
        await _first_of(asyncio.wait({serving}), self._accepts.wait())

    def leave(self) -> None:
        self._leave.set()


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one has ended; cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def scripted_tiers() -> list[ScriptedTier]:
    models = ("smollm2-int4", "smollm2-bf16", "smollm2-bf16", "smollm2-bf16")
    return [ScriptedTier(number, model=model) for number, model in enumerate(models, start=1)]


@asynccontextmanager
async def running_gateway(
    settings: Settings,
    grace_seconds: int | None = None,
    core: CoreClient | None = None,
    *,
    scripted: bool = True,
    cores: Mapping[str, CoreClient] | None = None,
    http: HttpApp = shared_http_app,
    protocol: Any = None,
    load_failed: LoadFailed | None = None,
) -> AsyncIterator[RunningGateway]:
    """Serve under uvicorn until the block ends; then shut down as a signal would, cancelling after the grace period.

    Unless `scripted`, the catalogue's own tiers serve, on `core`, or on `cores` by their names, on threads of this
    process. `http` makes the application. With a `protocol` of HTTP, the classifier is not scripted either: all is as
    in production. `load_failed`: see `create_app`. Where `settings` have no admin keys, the tests' administrator has
    one.
    """
    auth = None if settings.admin_keys else Administrator()
    settings = msgspec.structs.replace(settings, admin_keys=settings.admin_keys or ADMIN_KEYS, core_process=False)
    tiers, classifier = scripted_tiers() if scripted else [], ScriptedClassifier()
    cores = {"cpu": core} if core is not None else cores
    scripted_one = classifier if protocol is None else None
    app = create_app(
        settings, tiers=tiers or None, classifier=scripted_one, cores=cores, http=http, load_failed=load_failed
    )
    listener = socket.create_server(("127.0.0.1", 0))
    # Connections inherit it. Otherwise each small piece of a stream may wait 40 ms for the one before it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app,
        log_config=None,
        http=protocol or "httptools",
        lifespan="on",
        proxy_headers=False,
        timeout_graceful_shutdown=grace_seconds,
        **WEBSOCKETS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    gateway = RunningGateway(app, listener.getsockname()[1], tiers, classifier, auth)
    await server.until_it_accepts(serving)
    try:
        yield gateway
    finally:
        await gateway.close()
        server.leave()
        await serving


@asynccontextmanager
async def gateway_of(
    folder: Path,
    catalog: str,
    answer: Handler | None = None,
    *,
    scripted: bool = False,
    protocol: Any = None,
    **fields: Any,
) -> AsyncIterator[RunningGateway]:
    """Serve the tiers of a catalogue with this text until the block ends; `fields` are further settings.

    With an `answer`, `{url}` in the text is the address of a server that answers so, the gateway's `upstream`.
    """
    async with AsyncExitStack() as stack:
        upstream = None
        if answer is not None:
            upstream = await stack.enter_async_context(LoopbackServer(answer))
            catalog = catalog.format(url=upstream.base_url)
        file = folder / "catalog.toml"
        file.write_text(catalog)
        usual: dict[str, Any] = {"data_dir": str(folder), "catalog": str(file), "monitor": False, "drain_seconds": 5}
        running = running_gateway(Settings(**usual | fields), scripted=scripted, protocol=protocol)
        gateway = await stack.enter_async_context(running)
        gateway.upstream = upstream
        yield gateway


@contextmanager
def threaded_gateway(settings: Settings, core: CoreClient | None = None) -> Iterator[RunningGateway]:
    """Serve until the block ends."""
    with on_a_thread(running_gateway(settings, core=core)) as (gateway, _):
        yield gateway


class StartApp(Protocol):
    """Start a gateway as `running_gateway` does; the fixture ends it.

    It has the `settings` that are given, or the usual ones of a test, and the further `fields` in place of theirs. A
    core that needs them is given as the function that makes it.
    """

    async def __call__(
        self,
        settings: Settings | None = None,
        /,
        *,
        core: CoreClient | Callable[[Settings], CoreClient] | None = None,
        cores: Mapping[str, CoreClient] | None = None,
        scripted: bool = True,
        protocol: Any = None,
        **fields: Any,
    ) -> RunningGateway: ...


@asynccontextmanager
async def _started(usual: Callable[[], Settings]) -> AsyncIterator[StartApp]:
    async with AsyncExitStack() as stack:

        async def start(
            settings: Settings | None = None,
            /,
            *,
            core: CoreClient | Callable[[Settings], CoreClient] | None = None,
            cores: Mapping[str, CoreClient] | None = None,
            scripted: bool = True,
            protocol: Any = None,
            **fields: Any,
        ) -> RunningGateway:
            own = msgspec.structs.replace(settings or usual(), **fields)
            client = core(own) if callable(core) else core
            running = running_gateway(own, core=client, cores=cores, scripted=scripted, protocol=protocol)
            return await stack.enter_async_context(running)

        yield start


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A gateway with its own data folder, without a monitor."""
    return Settings(data_dir=str(tmp_path), monitor=False, drain_seconds=5)


@pytest.fixture
async def app(settings: Settings) -> AsyncIterator[StartApp]:
    """Starts gateways with the test's settings; they end with the test."""
    async with _started(lambda: settings) as start:
        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StartApp]:
    """Starts gateways with a data folder each; they end with the module."""

    def usual() -> Settings:
        return Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=5)

    async with _started(usual) as start:
        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_gateway(module_app: StartApp) -> RunningGateway:
    """A gateway that serves while the module's tests run."""
    return await module_app()


@pytest.fixture
def gateway(module_gateway: RunningGateway) -> Iterator[RunningGateway]:
    """The module's gateway with its tiers and its classifier reset."""
    module_gateway.reset()
    yield module_gateway
    module_gateway.reset()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(module_app: StartApp) -> RunningGateway:
    """The laptop catalogue's tiers on a core of hash models, while the module's tests run."""
    return await module_app(core=laptop_hash_core, scripted=False)
