"""A tier on an engine that AIO starts: a remote tier at the address where the engine listens at present."""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from inference_core.io.background_tasks import once
from tiers.catalog.tier_spec import USUAL_CONTEXT, TierSpec
from tiers.engines import EngineStatus, StatusOf
from tiers.errors import CatalogError, TierRequestError, TierUnavailableError
from tiers.remote.http_transport import HttpTransport
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad

_KEY = "ENGINE_KEY"


class EngineTier(Tier):
    """Sends requests to the running engine; between two runs it is unhealthy and refuses with the engine's state.

    `status` returns the latest known state without I/O. Every start of the engine gets a remote tier of its own, so
    that failures of the run before count no more.
    """

    def __init__(self, spec: TierSpec, status: StatusOf) -> None:
        if spec.remote is None or spec.remote.engine is None:
            raise CatalogError(f"tier '{spec.name}' has no engine")
        self.name, self.number, self.model = spec.name, spec.number, spec.remote.model
        self.max_context, self.max_output = spec.remote.max_context or USUAL_CONTEXT, spec.max_output_tokens
        self._spec, self._remote, self._status = spec, spec.remote, status
        self._served: tuple[str, int] = ("", 0)
        self._server: RemoteTier | None = None
        # Counts prompt tokens while no engine runs.
        self._standby = RemoteTier(spec)
        self.continues_chats = self._standby.continues_chats
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """See `Tier.start`: the engine's owner starts it, and its state says when requests can be served."""

    async def close(self) -> None:
        server, self._server, self._served = self._server, None, ("", 0)
        if server is not None:
            await server.close()
        await asyncio.gather(*self._closing)

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        server = self._current()
        if server is None:
            status = self._status()
            raise TierUnavailableError(f"tier '{self.name}' takes no requests now: {status.detail}")
        return server.generate(request)

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        return self._standby.count_prompt_tokens(request)

    def refusal(self, request: GenerationRequest) -> TierRequestError | None:
        return self._standby.refusal(request)

    def load(self) -> TierLoad:
        server = self._current()
        return TierLoad(healthy=False) if server is None else server.load()

    def queues(self) -> dict[str, int]:
        server = self._current()
        return {} if server is None else server.queues()

    def engine(self) -> EngineStatus:
        return self._status()

    def _current(self) -> RemoteTier | None:
        """Return the tier at the engine's address; None while it is not ready."""
        status = self._status()
        serving = (status.url, status.start)
        if serving != self._served:
            self._retire(self._server)
            self._served, self._server = serving, self._server_at(status) if status.url else None
        return self._server

    def _server_at(self, status: EngineStatus) -> RemoteTier:
        told = [tokens for tokens in (self._remote.max_context, status.context) if tokens]
        self.max_context = min(told, default=USUAL_CONTEXT)
        remote = msgspec.structs.replace(
            self._remote,
            base_url=status.url,
            engine=None,
            max_context=self.max_context,
            api_key_env=_KEY if status.key else None,
        )
        spec = msgspec.structs.replace(self._spec, remote=remote)
        # Never through a proxy of the environment: the address is this machine's.
        server = RemoteTier(spec, environ={_KEY: status.key}, connect=HttpTransport)
        server.watch_queue()
        return server

    def _retire(self, server: RemoteTier | None) -> None:
        """Close its connections: the process at their other end is gone."""
        if server is not None:
            task = once(server.close(), f"end of an engine's tier {self.number}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
