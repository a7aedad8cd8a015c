"""A gateway that serves on its own loopback port, with scripted tiers, and clients for it."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import httpx
import msgspec
import openai
import pytest
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
from inference_core.engine.core import Core
from inference_core.engine.live_knobs import KnobsFile, LiveKnobs
from inference_core.protocol import Knobs, SequenceOutput
from inference_core.transport.client import CoreClient
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.hash_model import hash_core
from tests.loop_thread import on_a_thread
from tests.support.administrator import ADMIN_KEYS, Administrator
from tests.support.scripted_classifier import ScriptedClassifier
from tests.support.scripted_tier import ScriptedTier
from tests.support.served import UNCACHED
from tests.support.shared_app import shared_http_app


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

    async def order(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to the tests' administrator, who asks for `/admin/api` and `path`, and is not refused."""
        answer = await self.http.request(method, f"/admin/api{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

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
        log_level="warning",
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


@contextmanager
def threaded_gateway(settings: Settings, core: CoreClient | None = None) -> Iterator[RunningGateway]:
    """Serve until the block ends."""
    with on_a_thread(running_gateway(settings, core=core)) as (gateway, _):
        yield gateway


class PausedCore:
    """A core that accepts commands but makes no step while `paused` is set."""

    def __init__(self, core: Core, paused: threading.Event) -> None:
        self._core, self._paused = core, paused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self) -> list[SequenceOutput]:
        return [] if self._paused.is_set() else self._core.step()


def laptop_hash_core(settings: Settings, paused: threading.Event | None = None) -> ThreadCoreClient:
    """The laptop catalogue's models by name, each a hash model of their vocabulary; no step while `paused` is set."""
    names = ("smollm2-int4", "smollm2-bf16")

    def load() -> Any:
        live = LiveKnobs(dict.fromkeys(names, Knobs()), KnobsFile(settings.knobs_path))
        core = hash_core(*names, slabs=256, max_context=8192, vocab_size=49152, knobs=live, adapter_slots=2)
        return PausedCore(core, paused or threading.Event())

    return ThreadCoreClient(load)
