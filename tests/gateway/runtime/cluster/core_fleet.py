"""Cores on TCP ports, as a cluster has them, without the cluster: for tests that lose one."""

import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import msgspec

from gateway.runtime.cluster.registry import ReplicaAnnouncement, Role
from gateway.runtime.cluster.replicated_core import ReplicatedCore
from inference_core.errors import CoreGoneError
from inference_core.protocol import AddRequest, Knobs, SamplingParams, SequenceOutput
from inference_core.transport.framing import SILENT_SECONDS
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import TcpCoreClient, TcpListener
from tests.gateway.runtime.cluster.silent_relay import SilentRelay
from tests.inference_core.hash_model import hash_core
from tests.polling import eventually
from tests.support.core import PausedCore


class ServedReplica:
    """One replica; while `paused` it accepts commands and makes no step. `model`: see `hash_core`."""

    def __init__(
        self,
        name: str,
        silent_seconds: float = SILENT_SECONDS,
        *,
        role: Role = "both",
        own_knobs: Collection[str] = (),
        **model: Any,
    ) -> None:
        self.name, self.role, self.own_knobs = name, role, frozenset(own_knobs)
        self._model = {"slabs": 256, "max_context": 2048, "knobs": Knobs(), "adapter_slots": 1} | model
        self.paused = threading.Event()
        self.listener = TcpListener("127.0.0.1", name.encode(), silent_seconds=silent_seconds)
        self.relay: SilentRelay | None = None
        self.server = CoreServer(self._load, self.listener, title=name)
        self.said = True
        self.leaving = False

    def _load(self) -> PausedCore:
        return PausedCore(hash_core("m", **self._model), self.paused)

    @property
    def announced(self) -> ReplicaAnnouncement:
        address = self.listener.address
        if self.relay is not None:
            address = msgspec.structs.replace(address, port=self.relay.port)
        return ReplicaAnnouncement(
            name=self.name,
            node="here",
            pid=0,
            address=address,
            leaving=self.leaving,
            role=self.role,
            own_knobs=self.own_knobs,
        )

    async def put_behind_a_relay(self) -> SilentRelay:
        """Clients that connect from now on reach it only through the relay."""
        self.relay = SilentRelay(self.listener.address.port)
        await self.relay.start()
        return self.relay

    async def stop(self, grace_seconds: float = 0.0) -> None:
        with suppress(CoreGoneError):
            await self.server.stop(grace_seconds)
        if self.relay is not None:
            await self.relay.close()


class CoreFleet:
    """Replicas, announced as long as they are in `said`."""

    def __init__(self, silent_seconds: float = SILENT_SECONDS) -> None:
        self._silent_seconds = silent_seconds
        self.replicas: dict[str, ServedReplica] = {}
        self.away: Exception | None = None

    async def add(self, name: str, **how: Any) -> ServedReplica:
        replica = self.replicas[name] = ServedReplica(name, self._silent_seconds, **how)
        await replica.server.start()
        return replica

    async def discover(self) -> list[ReplicaAnnouncement]:
        if self.away is not None:
            raise self.away
        return [replica.announced for replica in self.replicas.values() if replica.said]

    def client(self) -> ReplicatedCore:
        def connect(announced: ReplicaAnnouncement) -> TcpCoreClient:
            return TcpCoreClient(announced.address, silent_seconds=self._silent_seconds)

        return ReplicatedCore("the core", self.discover, connect=connect, look_seconds=0.01)

    async def close(self) -> None:
        for replica in self.replicas.values():
            replica.paused.clear()
            await replica.stop()


def request(request_id: str, tokens: int = 8, prompt: tuple[int, ...] = (1, 2, 3), **fields: object) -> AddRequest:
    asked = AddRequest(
        request_id=request_id,
        model="m",
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True),
    )
    return msgspec.structs.replace(asked, **fields)


async def answer(core: ReplicatedCore, asked: AddRequest) -> list[SequenceOutput]:
    return [output async for output in core.generate(asked)]


def tokens_of(outputs: list[SequenceOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def until_connected(core: ReplicatedCore, *names: str) -> None:
    await eventually(lambda: set(core.replicas) == set(names))
