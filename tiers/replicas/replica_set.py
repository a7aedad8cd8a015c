"""A tier over several servers of one model: load balancing, retries within a budget, a report of the asked replicas."""

import asyncio
import logging
import math
import os
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from inference_core.io.background_tasks import repeated
from tiers.catalog.replica_spec import BalancingSpec, ReplicaSpec, replica_names, server_key
from tiers.catalog.tier_spec import ONE_CHOICE, USUAL_CONTEXT, RemoteSpec, TierSpec
from tiers.deltas import merged_answers
from tiers.errors import CatalogError, ReplicaStatus, TierError, TierRequestError, TierUnavailableError
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.balancer import Balancer, prefix_key
from tiers.replicas.hedged_request import ReplicaCall, ReplicaRace
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad

log = logging.getLogger(__name__)

HEDGED_AFTER = 0.95
# How often it is looked whether queues are to be read again.
OFF_SECONDS = 1.0
FEWEST_FIRST_TOKENS, MOST_FIRST_TOKENS = 20, 200


class RetryBudget:
    """A token bucket: every request adds `share` of a token, every retry takes one (gRPC's retry throttling).

    So there are at most `burst + share × requests` retries.
    """

    def __init__(self, burst: int) -> None:
        self._tokens = float(burst)

    def deposit(self, share: float, burst: int) -> None:
        """Count a request; at most `burst` tokens are kept."""
        self._tokens = min(float(burst), self._tokens + share)

    @property
    def is_open(self) -> bool:
        """Return whether a retry is allowed."""
        return self._tokens >= 1

    def withdraw(self) -> None:
        self._tokens -= 1


class ReplicaSet(Tier):
    """Spreads requests over the servers of `spec.remote`, or over the API keys of one; `balancing` configures it and
    may be replaced while it serves.

    A request whose replica fails before its first delta is sent to another one, as far as the retry budget and its
    deadlines allow. The first delta lists the asked replicas in `tries`. After the first delta nothing is retried.
    """

    def __init__(
        self,
        spec: TierSpec,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        remote = spec.remote
        if remote is None or not remote.servers:
            raise CatalogError(f"tier '{spec.name}' has no remote servers")
        self.name, self.number, self.model = spec.name, spec.number, spec.model_name
        self.max_context, self.max_output = remote.max_context or USUAL_CONTEXT, spec.max_output_tokens
        self._kind, self._total_seconds, self._clock = remote.kind, remote.total_timeout_seconds, clock
        servers = _with_their_keys(remote, environ)
        self._tiers = {
            name: RemoteTier(msgspec.structs.replace(spec, remote=remote.alone(server)), environ=environ)
            for name, server in zip(replica_names(servers), servers, strict=True)
        }
        self.continues_chats = self._any.continues_chats
        for tier in self._tiers.values():
            # They have one model: what one of them thought is for all.
            tier.server_model = next(iter(self._tiers.values())).server_model
        rng = rng or random.Random(random.getrandbits(64))
        self._balancer = Balancer(spec.name, servers, remote.balancing, clock=clock, rng=rng)
        self._budget = RetryBudget(remote.balancing.retry_burst)
        self._first_tokens: deque[float] = deque(maxlen=MOST_FIRST_TOKENS)
        self._watching: asyncio.Task[None] | None = None

    @property
    def balancing(self) -> BalancingSpec:
        """The balancing configuration; a new one applies from the next request."""
        return self._balancer.spec

    @balancing.setter
    def balancing(self, spec: BalancingSpec) -> None:
        self._balancer.spec = spec

    async def start(self) -> None:
        """See `Tier.start`; one server that answers is enough, the log names the others."""
        for tier in self._tiers.values():
            tier.is_only_of_api, tier.is_only_server = self.is_only_of_api, self.is_only_server
        outcomes = await asyncio.gather(*(tier.reach() for tier in self._tiers.values()), return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        for error in errors:
            if not isinstance(error, TierError) or len(errors) == len(outcomes):
                raise error
            log.warning("a replica is not there: %s", error.for_operators)
        started = [tier for tier, error in zip(self._tiers.values(), outcomes, strict=True) if error is None]
        self.model, self.max_context = started[0].model, min(tier.max_context for tier in started)
        self.max_output = min([tier.max_output for tier in started if tier.max_output is not None], default=None)
        if self._watching is None and any(tier.tells_queue for tier in self._tiers.values()):
            self._watching = repeated(self._watch_queues, f"queues of tier {self.number}")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        await asyncio.gather(*(tier.close() for tier in self._tiers.values()))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Tier.generate`; closing the iterator closes every connection that was opened for it."""
        if request.n > 1 and self._kind in ONE_CHOICE:
            single = msgspec.structs.replace(request, n=1)
            async with aclosing(merged_answers([self.generate(single) for _ in range(request.n)], 1)) as choices:
                async for delta in choices:
                    yield delta
            return
        if request.whole:  # servers are compared by their time to the first token
            request = msgspec.structs.replace(request, whole=False)
        spec, began = self.balancing, self._clock()
        self._budget.deposit(spec.retry_share, spec.retry_burst)
        race = ReplicaRace(self.name)
        request.meter.add(race.usage)
        try:
            first = await race.first(partial(self._ask, request, began), self._hedge_seconds())
            self._first_tokens.append(self._clock() - began)
            first.tries = race.tries
            yield first
            assert race.winner is not None
            async for delta in race.winner.deltas:
                if delta.end is not None:
                    race.winner.finished()
                    delta.end = msgspec.structs.replace(delta.end, usage=race.usage())
                yield delta
        except TierError as error:
            if race.winner is not None:
                race.winner.failed(error)
            elif not error.tries and isinstance(error, TierUnavailableError):
                error.retry_after_seconds = self._balancer.available_in(self.count_prompt_tokens(request))
            # The frames of the race hold the error.
            error.__traceback__ = None
            raise
        finally:
            await race.close()

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        return self._any.count_prompt_tokens(request)

    def refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """See `Tier.refusal`: the servers are of one kind."""
        return self._any.refusal(request)

    def learned_refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """See `Tier.learned_refusal`: what one server refuses the others do."""
        refusals = (tier.learned_refusal(request) for tier in self._tiers.values())
        return next((refusal for refusal in refusals if refusal is not None), None)

    @property
    def _any(self) -> RemoteTier:
        return next(iter(self._tiers.values()))

    def load(self) -> TierLoad:
        """Return the requests in flight from here, the queues of the replicas that take requests, of which a request
        joins the shortest, and whether any of them did not just fail."""
        running = sum(replica.outstanding for replica in self._balancer.replicas)
        loads = [self._tiers[url].load() for url in self._balancer.serving()]
        return TierLoad(
            healthy=(healthy := self._balancer.is_healthy),
            down_seconds=0.0 if healthy else self._balancer.available_in(),
            running=running,
            waiting=sum(load.waiting for load in loads),
            predicted_wait_seconds=min((load.predicted_wait_seconds for load in loads), default=0.0),
        )

    def queues(self) -> dict[str, int]:
        """See `Tier.queues`; a replica that does not tell its queue adds its address to the tier's name."""
        queues: dict[str, int] = {}
        for name, tier in self._tiers.items():
            for address, waiting in tier.queues().items():
                queues[address if address == tier.base_url else f"{address} ({name})"] = waiting
        return queues

    def replicas(self) -> list[ReplicaStatus]:
        now = self._clock()
        return [replica.status(now) for replica in self._balancer.replicas]

    async def look_at_queues(self) -> None:
        """Ask every server for its number of requests, for the next choices."""
        replicas = self._balancer.replicas
        told = await asyncio.gather(*(self._tiers[replica.url].look_at_queue() for replica in replicas))
        for replica, requests in zip(replicas, told, strict=True):
            replica.note_queue(requests)

    async def _watch_queues(self) -> None:
        while True:
            if self.balancing.queue_poll_seconds:
                await self.look_at_queues()
            await asyncio.sleep(self.balancing.queue_poll_seconds or OFF_SECONDS)

    def _ask(self, request: GenerationRequest, began: float, asked: list[ReplicaCall]) -> ReplicaCall | None:
        """Ask one more replica for a request that started at `began`, if that is allowed."""
        spec, now = self.balancing, self._clock()
        left = began + self._total_seconds - now
        if asked and not (len(asked) < spec.max_attempts and left > 0 and self._budget.is_open):
            return None
        if asked and request.strict_deadline and request.deadline is not None and now >= request.deadline:
            return None
        key = prefix_key(request, spec.affinity_bytes) if spec.affinity_bytes else None
        tokens = self.count_prompt_tokens(request)
        in_flight = self._balancer.begin(key, [call.in_flight.replica for call in asked], tokens)
        if in_flight is None:
            return None
        if asked:
            self._budget.withdraw()
        tier = self._tiers[in_flight.replica.url]
        return ReplicaCall(tier, in_flight, self._balancer, request, tier.tally(request), left, self._clock)

    def _hedge_seconds(self) -> float | None:
        """Return the 95th percentile of recent times to the first token; None without hedging or before 20 of them."""
        if not self.balancing.hedging or len(self._first_tokens) < FEWEST_FIRST_TOKENS:
            return None
        return sorted(self._first_tokens)[math.ceil(HEDGED_AFTER * len(self._first_tokens)) - 1]


def _with_their_keys(remote: RemoteSpec, environ: Mapping[str, str]) -> Sequence[ReplicaSpec]:
    """Return the servers whose keys are set; all of them if none is, so that the start names what is missing."""
    servers = remote.servers
    missing = [server for server in servers if server.api_key_env and not server_key(environ, server.api_key_env)]
    if len(missing) == len(servers):
        return servers
    for server in missing:
        log.warning("%s is left out: its key is expected in %s, which is not set", server.base_url, server.api_key_env)
    return [server for server in servers if server not in missing]
