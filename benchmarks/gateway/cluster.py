"""Measures the overhead of a cluster: a core there against one here, in turns, and the recovery time of a lost one."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from benchmarks.report.measured import Spread
from benchmarks.report.rounds import geometric_interval, spread
from gateway.base.settings import Settings
from gateway.runtime.cluster import fleet
from gateway.runtime.cluster.join import join
from gateway.runtime.cluster.local_cluster import LocalCluster
from gateway.runtime.cluster.replicated_core import Discover, ReplicatedCore
from gateway.runtime.core_factory import core_factory
from inference_core.errors import CoreGoneError
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.transport.client import CoreClient
from inference_core.transport.core_thread import ThreadCoreClient
from inference_core.transport.tcp import TcpCoreClient
from inference_core.transport.tls import tls_of
from tiers.catalog.catalog import CPU_CORE, Catalog

Progress = Callable[[str, float], None]
_LOOK_SECONDS = 0.1
_VOCABULARY = range(1000, 20_000)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One round: `requests` with this many prompt and new tokens, and this many at a time."""

    requests: int = 32
    concurrency: int = 16
    prompt_tokens: int = 64
    new_tokens: int = 64


class ClusterResult(msgspec.Struct, frozen=True, kw_only=True):
    """`here` and `there` in generated tokens per second, median and extremes of the rounds; `ratio` is there over here:
    the geometric mean over pairs of rounds with its 95% interval. `cold_seconds`: from the deploy command on a running
    cluster to the first answer; `recovery_seconds`: from the kill of the only replica to the next answer."""

    model: str
    rounds: int
    here: Spread | None
    there: Spread | None
    ratio: Spread
    cold_seconds: float
    recovery_seconds: list[float]


def bench_cluster(
    catalog: Catalog, settings: Settings, load: Load, *, rounds: int, kills: int, progress: Progress
) -> ClusterResult:
    """Measure on a cluster of this machine with one node. Both cores run their kernels on one thread; `kills`
    recoveries."""
    model = next(tier.model for tier in catalog.tiers if tier.model and catalog.core_of(tier.model) == CPU_CORE)
    catalog = msgspec.structs.replace(catalog, name=f"{catalog.name}-bench")
    with LocalCluster(1) as local:
        join(local.address)
        progress("a cold start on the cluster", 0.0)
        return asyncio.run(_measured(catalog, settings, model, load, rounds, kills, progress))


async def _measured(
    catalog: Catalog, settings: Settings, model: str, load: Load, rounds: int, kills: int, progress: Progress
) -> ClusterResult:
    announced = partial(asyncio.to_thread, fleet.announced, catalog, CPU_CORE)
    tls = tls_of(settings.core_tls)
    there = ReplicatedCore(
        "the core",
        announced,
        connect=lambda one: TcpCoreClient(one.address, tls=tls),
        look_seconds=_LOOK_SECONDS,
    )
    here = ThreadCoreClient(core_factory(catalog, settings, CPU_CORE))
    try:
        began = time.monotonic()
        await asyncio.to_thread(fleet.deploy, catalog, settings, fleet.Scale())
        await _first_answer(there, model)
        cold = time.monotonic() - began
        await here.start()
        for core in (here, there):
            await core.set_knobs({"threads": 1})
        pairs = []
        for number in range(rounds + 1):
            arms: list[CoreClient] = [here, there]
            order = arms if number % 2 else arms[::-1]
            found = {core: await _tokens_per_second(core, model, load, number) for core in order}
            pairs.append((found[here], found[there]))
            progress("here and there in turns", (number + 1) / (rounds + 1 + kills))
        await here.close()
        recoveries = []
        for number in range(kills):
            recoveries.append(await _recovered(there, announced, model))
            progress("killed and back", (rounds + 2 + number) / (rounds + 1 + kills))
    finally:
        await here.close()
        await there.close()
        await asyncio.to_thread(fleet.remove, catalog)
    counted = pairs[1:]  # the first pair warms up
    return ClusterResult(
        model=model,
        rounds=rounds,
        here=spread([here for here, _ in counted]),
        there=spread([there for _, there in counted]),
        ratio=geometric_interval([there / here for here, there in counted]),
        cold_seconds=cold,
        recovery_seconds=recoveries,
    )


async def _tokens_per_second(core: CoreClient, model: str, load: Load, seed: int) -> float:
    """Tokens per second of one round, whose prompts depend on `seed`."""
    rng = random.Random(seed)
    prompts = [rng.choices(_VOCABULARY, k=load.prompt_tokens) for _ in range(load.requests)]
    places = asyncio.Semaphore(load.concurrency)

    async def one(number: int, prompt: Sequence[int]) -> int:
        async with places:
            return await _answer(core, model, f"{seed}-{number}", prompt, load.new_tokens)

    began = time.monotonic()
    tokens = await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    return sum(tokens) / (time.monotonic() - began)


async def _answer(core: CoreClient, model: str, request_id: str, prompt: Sequence[int], tokens: int) -> int:
    request = AddRequest(
        request_id=request_id,
        model=model,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
    )
    return sum([len(output.token_ids) async for output in core.generate(request)])


async def _first_answer(core: ReplicatedCore, model: str) -> None:
    """Wait for the first answer and return its time."""
    while True:
        try:
            await core.start()
            await _answer(core, model, "first", [1, 2, 3], 1)
        except CoreGoneError:
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return


async def _recovered(core: ReplicatedCore, announced: Discover, model: str) -> float:
    """Return the seconds from the kill of the serving replica to the next answer."""
    (serving,) = [one for one in await announced() if one.name in core.replicas]
    os.kill(serving.pid, signal.SIGKILL)
    began = time.monotonic()
    await _first_answer(core, model)
    return time.monotonic() - began
