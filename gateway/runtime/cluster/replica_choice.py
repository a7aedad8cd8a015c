"""Which replica of a core gets a request: the one that has its prompt's prefix cached, unless that one is too busy.

Prefill replicas compute long prompts for the replicas that answer them (BS-08). Operators' changes to a running
core are kept, to be repeated to replicas that join later.
"""

import asyncio
import logging
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b

import msgspec

from gateway.runtime.cluster.registry import ReplicaAnnouncement
from inference_core.errors import CoreError, CoreGoneError, InvalidRequestError, KVTransferError, QueueFullError
from inference_core.protocol import AddRequest, CoreStats, Knobs, KnobsSet, KnobValue
from inference_core.transport.client import CoreClient
from inference_core.transport.remote_prefill import (
    PrefillTransfer,
    chain_of,
    may_transfer,
    require_alike,
    transfer_prefill,
)
from tiers.replicas.balancer import rendezvous_score

PREFIX_TOKENS = 256
BOUND = 1.25
"""A replica may get requests for its cache up to this multiple of the mean load (Mirrokni et al. 2018)."""


class CoreReplica:
    """A connected replica; `in_flight` counts this client's requests, `others` the rest as last reported.

    `copying` is held while blocks are copied from it, one copy at a time.
    """

    def __init__(self, announced: ReplicaAnnouncement, client: CoreClient) -> None:
        self.name, self.node, self.role, self.client = announced.name, announced.node, announced.role, client
        self.in_flight = self.others = 0
        self.leaving = False
        self.latest: CoreStats | None = None
        self.copying = asyncio.Lock()
        self._own_knobs = announced.own_knobs
        self._knobs: dict[str, Knobs] = {}

    @property
    def load(self) -> int:
        """Known number of requests at the replica."""
        return self.in_flight + self.others

    @property
    def takes_requests(self) -> bool:
        """Whether it accepts new requests."""
        return not self.leaving and self.client.stuck is None

    def handover_min_tokens(self, model: str) -> int:
        """The knob of that name, as last reported by the replica; 0 before."""
        knobs = self._knobs.get(model)
        return 0 if knobs is None else knobs.handover_min_tokens

    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        """See `CoreClient.set_knobs`; skips the knobs of its pool."""
        common = {name: value for name, value in changes.items() if name not in self._own_knobs}
        answer = await self.client.set_knobs(common, model, keep=keep)
        self._knobs = answer.knobs
        return answer

    def heard(self, stats: CoreStats) -> None:
        self.latest = stats
        self._knobs = {model.name: model.knobs for model in stats.models}
        self.others = max(0, sum(model.running + model.waiting for model in stats.models) - self.in_flight)


def prefix_key(request: AddRequest) -> bytes:
    """Return a hash of tenant, model, adapter and the prompt's first tokens: equal ones may share cached blocks."""
    digest = blake2b(f"{request.salt}\0{request.model}\0{request.adapter}\0".encode(errors="replace"), digest_size=16)
    digest.update(array("q", request.prompt_token_ids[:PREFIX_TOKENS]).tobytes())
    return digest.digest()


def chosen(key: bytes, replicas: Iterable[CoreReplica]) -> CoreReplica | None:
    """Choose among those that accept requests; None if there are none."""
    able = [replica for replica in replicas if replica.takes_requests]
    if len(able) < 2:
        return able[0] if able else None
    most = math.ceil(BOUND * (1 + sum(replica.load for replica in able)) / len(able))
    ranked = sorted(able, key=lambda replica: rendezvous_score(key, replica.name, 1.0), reverse=True)
    return next((replica for replica in ranked if replica.load < most), min(able, key=lambda replica: replica.load))


log = logging.getLogger(__name__)

Changes = dict[str, KnobValue]


class CoreCommands:
    """The last values of knobs, and the loaded adapters."""

    def __init__(self) -> None:
        self._knobs: list[tuple[str | None, Changes]] = []
        self._adapters: dict[tuple[str, str], str] = {}

    def note_knobs(self, changes: Mapping[str, KnobValue], model: str | None) -> None:
        """Record knobs; `model` None means every model, and overrides earlier values of one."""
        for of, earlier in self._knobs:
            if model is None or of == model:
                for name in changes:
                    earlier.pop(name, None)
        self._knobs = [(of, earlier) for of, earlier in [*self._knobs, (model, dict(changes))] if earlier]

    def note_adapter(self, model: str, name: str, path: str | None) -> None:
        """Record an adapter; `path` None: it is unloaded."""
        if path is None:
            self._adapters.pop((model, name), None)
        else:
            self._adapters[model, name] = path

    async def repeat(self, replica: CoreReplica) -> None:
        """Send all of it to `replica`; what it refuses is logged. Raises `CoreGoneError`."""
        for model, changes in self._knobs:
            with _logged_refusal(f"knobs {', '.join(changes)}"):
                await replica.set_knobs(changes, model)
        for (model, name), path in self._adapters.items():
            with _logged_refusal(f"adapter {name} of {model}"):
                await replica.client.load_adapter(model, name, path)


@contextmanager
def _logged_refusal(order: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequestError as error:
        log.warning("a new replica does not have %s: %s", order, error)


DONE = "done"


class PromptHandover:
    """`visit` counts a request at a replica while it lasts; `read` checks whether a replica is still there."""

    def __init__(
        self,
        title: str,
        visit: Callable[[CoreReplica], AbstractContextManager[None]],
        read: Callable[[CoreReplica], Awaitable[object]],
    ) -> None:
        self._title, self._visit, self._read = title, visit, read
        self._outcomes: dict[str, Counter[str]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tokens: Counter[str] = Counter()

    async def prepare(self, request: AddRequest, target: CoreReplica, sources: Iterable[CoreReplica]) -> int:
        """Bring the prompt's blocks to `target` if it is long enough; return how many tokens were computed for it.

        A failure is counted, and the request continues without; only cancellation is raised.
        """
        if not self._is_wanted(request, target):
            return 0
        source = chosen(prefix_key(request), sources)
        try:
            done = await self._handed_over(request, source, target)
        except CoreError as error:
            outcome = _why(error)
            log.info("%s: %s is computed where it is answered: %s", self._title, request.request_id, error)
            self._count(request, outcome)
            if outcome == "gone" and source is not None:
                await asyncio.gather(self._read(source), self._read(target))
            return 0
        if done is None:
            return 0
        self._count(request, DONE)
        self._seconds[request.model] += done.prefill_seconds + done.copy_seconds
        self._tokens[request.model] += done.tokens
        return min(done.tokens, done.computed)

    def _count(self, request: AddRequest, outcome: str) -> None:
        self._outcomes.setdefault(request.model, Counter())[outcome] += 1

    def _is_wanted(self, request: AddRequest, target: CoreReplica) -> bool:
        least = target.handover_min_tokens(request.model)
        return target.role == "decode" and 0 < least <= len(request.prompt_token_ids) and may_transfer(request)

    async def _handed_over(
        self, request: AddRequest, source: CoreReplica | None, target: CoreReplica
    ) -> PrefillTransfer | None:
        """Return None if `target` lacks too little of the prompt. Raises `CoreError`."""
        if source is None:
            raise CoreGoneError("no prefill replica accepts prompts")
        block_size = require_alike(request.model, source.client, target.client).layout.block_size
        held = await target.client.import_blocks(chain_of(request))
        if len(request.prompt_token_ids) - held * block_size < target.handover_min_tokens(request.model):
            return None
        with self._visit(source):
            return await transfer_prefill(request, source.client, target.client, first=held, copying=source.copying)

    def added_to(self, stats: CoreStats) -> CoreStats:
        """Add the outcomes of prompt transfers to the cores' statistics."""
        for model in stats.models:
            model.handover = msgspec.structs.replace(
                model.handover,
                outcomes=dict(self._outcomes.get(model.name, {})),
                seconds=self._seconds[model.name],
                tokens=self._tokens[model.name],
            )
        return stats


def _why(error: CoreError) -> str:
    """Return the outcome that an error stands for."""
    if isinstance(error, KVTransferError):
        return error.reason
    if isinstance(error, QueueFullError):
        return "overloaded"
    return "gone" if isinstance(error, CoreGoneError) else "refused"
