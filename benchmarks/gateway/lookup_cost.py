"""What a lookup of the semantic cache costs, measured."""

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from gateway.base.knobs.file import KnobFile
from gateway.inference.cache.cache_key import cache_key
from gateway.inference.cache.knobs import CacheKnobs
from gateway.inference.cache.similar_prompts import SimilarPrompts, wording_of
from gateway.inference.routing.router import RoutingService
from gateway.planning.backtests.dry_run import dry_request
from tiers.tier import ChatMessage


class LookupCost(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of what comes after an exact miss: the key of the gist, and a find among `entries`."""

    entries: int
    p50_us: float
    p99_us: float


async def lookup_cost(routing: RoutingService, prompts: Sequence[str]) -> LookupCost:
    """Of each of `prompts` while an answer is kept to all of them; one is at least. The decision and the embedding are
    there already, as in a gateway."""
    similar = SimilarPrompts(KnobFile(CacheKnobs, "cache"))
    seconds: list[float] = []
    for keeps in (True, False):
        for prompt in prompts:
            request = dry_request([ChatMessage(role="user", content=prompt)])
            routed = routing.routed(request)
            decision, embedding = routed.decision, routed.embedding
            key = partial(cache_key, decision=decision, spec=routing.served.spec(decision.tier), catalogue=b"")
            began = time.perf_counter()
            wording = None if embedding is None else wording_of(request, embedding, key)
            if wording is None:
                continue
            if keeps:
                await similar.put(wording, wording.key)
                continue
            await similar.find(wording)
            seconds.append(time.perf_counter() - began)
    seconds.sort()
    p50, p99 = (round(seconds[int(share * (len(seconds) - 1))] * 1e6, 1) for share in (0.5, 0.99))
    return LookupCost(entries=len(similar), p50_us=p50, p99_us=p99)
