"""Which replica of a core gets a request: the one that has its prompt's prefix cached, unless that one is too busy."""

import asyncio
import math
from array import array
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from gateway.runtime.cluster.registry import Announced
from inference_core.protocol import AddRequest, CoreStats, Knobs, KnobsSet, KnobValue
from inference_core.transport.client import CoreClient
from tiers.replicas.prefix_affinity import rendezvous_score

PREFIX_TOKENS = 256
BOUND = 1.25
"""A replica may get requests for its cache up to this multiple of the mean load (Mirrokni et al. 2018)."""


class CoreReplica:
    """A connected replica; `in_flight` counts this client's requests, `others` the rest as last reported.

    `copying` is held while blocks are copied from it, one copy at a time.
    """

    def __init__(self, announced: Announced, client: CoreClient) -> None:
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
        """Take its latest statistics."""
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
