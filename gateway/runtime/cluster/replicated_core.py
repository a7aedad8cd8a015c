"""Several replicas of one core behind a single `CoreClient`: discovery, load balancing, and retry on another
replica."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TypeVar

from gateway.base.settings import Settings
from gateway.runtime.cluster.merged_stats import merged, summed_past
from gateway.runtime.cluster.registry import ReplicaAnnouncement, Role
from gateway.runtime.cluster.replica_choice import CoreCommands, CoreReplica, PromptHandover, chosen, prefix_key
from gateway.runtime.core_factory import core_title
from inference_core.errors import CoreError, CoreGoneError
from inference_core.io.background_tasks import once, repeated
from inference_core.protocol import (
    AdapterInfo,
    AddRequest,
    CoreStats,
    KnobsSet,
    KnobValue,
    ModelInfo,
    SequenceOutput,
)
from inference_core.transport.client import CoreClient
from inference_core.transport.tcp import TcpCoreClient
from inference_core.transport.tls import tls_of
from tiers.catalog.catalog import Catalog

log = logging.getLogger(__name__)

Discover = Callable[[], Awaitable[list[ReplicaAnnouncement]]]
T = TypeVar("T")
LOOK_SECONDS = 1.0
CONNECT_SECONDS = 15.0
STATS_SECONDS = 2.0
"""After this long without an answer, a replica's last statistics are used."""
MOST_ATTEMPTS = 3
"""Most replicas that a request is sent to before its first output."""


class ReplicatedCore(CoreClient):
    """A `CoreClient` over several replicas. `discover` lists them, is called every `look_seconds`, and may fail: known
    replicas then stay.

    If a request's replica is lost or shuts down before the first output, the request is sent to another; after it, its
    iterator raises `CoreGoneError`. A leaving replica gets no new requests, and is disconnected when its last one has
    ended. Knobs and adapters go to all replicas, including later ones.

    Replicas of the role "prefill" answer only if there are no others. If a replica of the role "decode" is to answer a
    long prompt, a prefill replica computes it first (`PromptHandover`); if that fails, the replica computes it itself.
    """

    def __init__(
        self,
        title: str,
        discover: Discover,
        *,
        connect: Callable[[ReplicaAnnouncement], CoreClient],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._title, self._discover, self._connect, self._look_seconds = title, discover, connect, look_seconds
        self._replicas: dict[str, CoreReplica] = {}
        self._requests: dict[str, CoreReplica] = {}
        self._orders = CoreCommands()
        self._handover = PromptHandover(title, self._visit, self._read)
        self._models: dict[str, ModelInfo] = {}
        self._lost: dict[str, CoreStats] = {}
        self._past: CoreStats | None = None
        self._why = "it was not started"
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once one replica serves. Raises `CoreGoneError` if there is none."""
        await self._look()
        while self._connecting and not self._replicas:
            await asyncio.wait(self._connecting.values(), return_when=asyncio.FIRST_COMPLETED)
        self._require_replicas()
        if self._following is None:
            self._following = repeated(self._follow, f"replicas of {self._title}")

    async def close(self) -> None:
        self._why = "its client is closed"
        following, self._following = self._following, None
        ending = [task for task in (following, *self._connecting.values()) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for replica in list(self._replicas.values()):
            self._leave(replica)
        await asyncio.gather(*self._closing, return_exceptions=True)

    @property
    def gone(self) -> str | None:
        return None if self._replicas else self._why

    @property
    def stuck(self) -> str | None:
        """Return why no replica makes progress; None while one does."""
        reasons = [replica.client.stuck for replica in self._replicas.values()]
        return reasons[0] if reasons and None not in reasons else None

    @property
    def models(self) -> dict[str, ModelInfo]:
        """The models of any replica: all load the same."""
        return self._models

    @property
    def replicas(self) -> list[str]:
        return list(self._replicas)

    def generate(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        self._require_replicas()
        return self._outputs(request)

    async def _outputs(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        key = prefix_key(request)
        tried: list[CoreReplica] = []
        while True:
            replica = self._next(key, tried)
            tried.append(replica)
            started = False
            self._requests[request.request_id] = replica
            try:
                with self._visit(replica):
                    computed = await self._handover.prepare(request, replica, self._with_role("prefill"))
                    async with aclosing(replica.client.generate(request)) as outputs:
                        async for output in outputs:
                            if not started and output.error_kind == "overloaded" and self._has_another(key, tried):
                                break
                            started = True
                            if not output.index:
                                # Tokens prefilled for this request were not cached before it.
                                output.cached_tokens = max(0, output.cached_tokens - computed)
                            yield output
                        else:
                            return
            except CoreGoneError as error:
                self._note_lost(replica, error)
                if started or not self._has_another(key, tried):
                    raise
            finally:
                self._requests.pop(request.request_id, None)
            log.info("%s: %s did not start %s; another replica will", self._title, replica.name, request.request_id)

    def _next(self, key: bytes, tried: list[CoreReplica]) -> CoreReplica:
        """Choose the next replica. Raises `CoreGoneError` without one."""
        others = self._answering(tried)
        # A core that is stuck or leaving reports that itself.
        replica = chosen(key, others) or next(iter(others), None)
        if replica is None:
            raise self._gone()
        return replica

    def _has_another(self, key: bytes, tried: list[CoreReplica]) -> bool:
        return len(tried) < MOST_ATTEMPTS and chosen(key, self._answering(tried)) is not None

    def _answering(self, tried: list[CoreReplica]) -> list[CoreReplica]:
        """Return replicas not tried yet that may answer; prefill replicas only if there are no others."""
        others = [replica for replica in self._replicas.values() if replica not in tried]
        return [replica for replica in others if replica.role != "prefill"] or others

    def _with_role(self, role: Role) -> list[CoreReplica]:
        return [replica for replica in self._replicas.values() if replica.role == role]

    @contextmanager
    def _visit(self, replica: CoreReplica) -> Iterator[None]:
        """Count a request at `replica` while the context is open; a leaving replica disconnects after its last one."""
        replica.in_flight += 1
        try:
            yield
        finally:
            replica.in_flight -= 1
            if replica.leaving and not replica.in_flight:
                self._leave(replica)

    def unread(self, request_id: str) -> list[SequenceOutput]:
        replica = self._requests.get(request_id)
        return [] if replica is None else replica.client.unread(request_id)

    def abort_choice(self, request_id: str, index: int) -> None:
        if (replica := self._requests.get(request_id)) is not None:
            replica.client.abort_choice(request_id, index)

    async def stats(self) -> CoreStats:
        """Return the merged statistics of all replicas; counts include those of former replicas."""
        self._require_replicas()
        replicas = self._in_answer_order()
        readings = await asyncio.gather(*(self._read(replica) for replica in replicas))
        present = [reading for reading in readings if reading is not None]
        if not present:
            raise self._gone()
        answering = sum(
            reading is not None and replica.role != "prefill"
            for replica, reading in zip(replicas, readings, strict=True)
        )
        past = [stats for name, stats in self._lost.items() if name not in self._replicas]
        past = past if self._past is None else [*past, self._past]
        return self._handover.added_to(merged("", present, past, answering=answering))

    def _in_answer_order(self) -> list[CoreReplica]:
        """All replicas, those that answer first."""
        return sorted(self._replicas.values(), key=lambda replica: replica.role == "prefill")

    async def _read(self, replica: CoreReplica) -> CoreStats | None:
        try:
            async with asyncio.timeout(STATS_SECONDS):
                replica.heard(await replica.client.stats())
        except CoreGoneError as error:
            self._note_lost(replica, error)
            return None
        except TimeoutError:
            log.debug("%s: %s does not report its statistics", self._title, replica.name)
        return replica.latest

    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        """See `CoreClient.set_knobs`; replicas are loaded alike, so what one refuses, all refuse."""
        answer = await self._send_to_all(lambda replica: replica.set_knobs(changes, model, keep=keep))
        self._orders.note_knobs(changes, model)
        return answer

    async def load_adapter(self, model: str, name: str, path: str) -> list[AdapterInfo]:
        """See `CoreClient.load_adapter`; every replica reads `path` on its own machine."""
        answer = await self._send_to_all(lambda replica: replica.client.load_adapter(model, name, path))
        self._orders.note_adapter(model, name, path)
        return answer

    async def unload_adapter(self, model: str, name: str) -> list[AdapterInfo]:
        answer = await self._send_to_all(lambda replica: replica.client.unload_adapter(model, name))
        self._orders.note_adapter(model, name, None)
        return answer

    async def _send_to_all(self, order: Callable[[CoreReplica], Awaitable[T]]) -> T:
        """Send to all and return the first replica's answer; if it refuses, the others are not asked."""
        self._require_replicas()
        first, *others = self._in_answer_order()
        answer = await order(first)
        for replica in others:
            try:
                await order(replica)
            except CoreGoneError as error:
                self._note_lost(replica, error)
        return answer

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            await self._look()

    async def _look(self) -> None:
        """Start connecting to new replicas, and release those that leave."""
        try:
            announced = {announcement.name: announcement for announcement in await self._discover()}
        except Exception as error:
            self._note(f"replicas cannot be listed: {error}")
            return
        for name in self._lost.keys() - announced.keys():
            self._past = summed_past(self._past, self._lost.pop(name))
        for announcement in announced.values():
            replica = self._replicas.get(announcement.name)
            if replica is not None and announcement.leaving:
                replica.leaving = True
                if not replica.in_flight:
                    self._leave(replica)
            elif replica is None and not announcement.leaving and announcement.name not in self._connecting:
                self._connecting[announcement.name] = once(self._join(announcement), f"a replica of {self._title}")
        if not announced and not self._replicas:
            self._note("no replica serves yet")

    async def _join(self, announced: ReplicaAnnouncement) -> None:
        client = self._connect(announced)
        replica = CoreReplica(announced, client)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.start()
                await self._orders.repeat(replica)
                replica.heard(await client.stats())
        except (CoreError, TimeoutError) as error:
            self._note(f"{announced.name} on {announced.node} cannot be reached: {error or 'no answer in time'}")
            await client.close()
        except BaseException:
            await client.close()
            raise
        else:
            self._models = client.models
            self._replicas[announced.name] = replica
            self._lost.pop(announced.name, None)
            log.info("%s: replica %s on %s serves", self._title, announced.name, announced.node)
        finally:
            del self._connecting[announced.name]

    def _note_lost(self, replica: CoreReplica, error: CoreGoneError) -> None:
        if self._replicas.get(replica.name) is replica:
            self._note(f"lost {replica.name} on {replica.node}: {error}")
            self._leave(replica)

    def _leave(self, replica: CoreReplica) -> None:
        """Disconnect a replica that is lost, or has no requests of this client."""
        if self._replicas.pop(replica.name, None) is None:
            return
        if replica.latest is not None:
            self._lost[replica.name] = replica.latest
        closing = once(replica.client.close(), f"end of a replica of {self._title}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _note(self, why: str) -> None:
        if why != self._why:
            log.warning("%s: %s", self._title, why)
        self._why = why

    def _require_replicas(self) -> None:
        if not self._replicas:
            raise self._gone()

    def _gone(self) -> CoreGoneError:
        return CoreGoneError(f"{self._title} has no serving replica: {self._why}")


def cluster_cores(catalog: Catalog, settings: Settings) -> Mapping[str, CoreClient]:
    """Return a client over all replicas of every core, by name, not yet started. The first to start joins the
    cluster. Raises `CoreTlsError` if the certificates cannot be used."""
    tls = tls_of(settings.core_tls)

    def connect(announced: ReplicaAnnouncement) -> TcpCoreClient:
        return TcpCoreClient(announced.address, tls=tls)

    return {
        core: ReplicatedCore(
            core_title(catalog, core), partial(_announced, catalog, core, settings.cluster), connect=connect
        )
        for core in catalog.core_names
    }


async def _announced(catalog: Catalog, core: str, address: str) -> list[ReplicaAnnouncement]:
    return await asyncio.to_thread(_ask, catalog, core, address)


def _ask(catalog: Catalog, core: str, address: str) -> list[ReplicaAnnouncement]:
    from gateway.runtime.cluster.fleet import announced
    from gateway.runtime.cluster.join import join

    join(address)
    return announced(catalog, core)
