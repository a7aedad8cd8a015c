"""A gateway as the server of another one's tiers, as the chart's pools are: it tells its queue, log-probabilities and
tokens, and takes all fields that are sent to it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.settings import Settings
from gateway.tenancy.keys.key_secrets import new_key
from inference_core.protocol import SamplingParams
from tests.polling import eventually
from tests.support.app import running_gateway
from tests.support.core import laptop_hash_core
from tests.tiers.tier_world import chat, collect, tier_spec
from tiers.catalog.tier_spec import Capabilities, RemoteSpec, TierSpec
from tiers.conversation import Turn
from tiers.deltas import asking_uncertainty, uncertainty_of
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.replica_set import ReplicaSet
from tiers.tier import GenerationRequest, Tier

KEY = new_key()[0]
# The settings of the front's tiers in deploy/helm/aio/values/multi-node.yaml: one address for all pods, and each pod's.
BY_SERVICE: dict[str, Any] = {"stream_whole": True}
BY_POD: dict[str, Any] = {"kind": "vllm"}
PLAIN, THINKING = "tier-1", "tier-4"


@asynccontextmanager
async def pool(folder: Path, paused: threading.Event | None = None) -> AsyncIterator[str]:
    """The URL of a gateway with cores. It answers to a key only, and refuses unknown fields."""
    settings = Settings(
        data_dir=str(folder), monitor=False, drain_seconds=5, api_keys=f"gateways={KEY}", strict_fields=True
    )
    async with running_gateway(settings, core=laptop_hash_core(settings, paused), scripted=False) as gateway:
        yield f"{gateway.url}/v1"


@asynccontextmanager
async def front_tier(url: str, model: str, options: dict[str, Any]) -> AsyncIterator[tuple[Tier, TierSpec]]:
    """A started tier of a gateway in front; its queue is read when the test looks."""
    place = {"base_urls": [url], "balancing": {"queue_poll_seconds": 0}} if options == BY_POD else {"base_url": url}
    table = {**options, **place, "model": model, "max_context": 4096, "api_key_env": "AIO_POOL_KEY"}
    spec = tier_spec(model=None, remote=msgspec.convert(table, RemoteSpec))
    if options == BY_SERVICE:
        spec = msgspec.structs.replace(spec, capabilities=Capabilities(logprobs=True))
    environ = {"AIO_POOL_KEY": KEY}
    tier = ReplicaSet(spec, environ=environ) if options == BY_POD else RemoteTier(spec, environ=environ)
    await tier.start()
    try:
        yield tier, spec
    finally:
        await tier.close()


@pytest.mark.parametrize("options", [BY_SERVICE, BY_POD], ids=["by service", "by pod"])
@pytest.mark.parametrize("model", [PLAIN, THINKING])
async def test_a_pool_gives_log_probabilities_and_tokens_of_whole_answers(
    tmp_path: Path, model: str, options: dict[str, Any]
) -> None:
    async with pool(tmp_path) as url, front_tier(url, model, options) as (tier, spec):
        request = asking_uncertainty(chat("Say hello.", whole=True, max_tokens=200), tier, spec.tells_logprobs)
        deltas = [delta async for delta in tier.generate(request)]
    assert sum(len(uncertainty_of(delta)) for delta in deltas) > 0
    assert not any(delta.at_once for delta in deltas), "streamed, so the time to its first token is known"
    end = deltas[-1].end
    assert end is not None
    assert end.usage.prompt_tokens > 0
    assert end.streamed_tokens


async def test_a_pod_tells_its_queue(tmp_path: Path) -> None:
    paused = threading.Event()
    async with pool(tmp_path, paused) as url, front_tier(url, PLAIN, BY_POD) as (tier, _):
        assert isinstance(tier, ReplicaSet)
        await collect(tier, chat())
        await tier.look_at_queues()
        assert tier.queues() == {url: 0}
        paused.set()
        asked = [asyncio.create_task(collect(tier, chat(f"Say {n}.", request_id=f"r{n}"))) for n in range(5)]

        async def all_wait() -> bool:
            await tier.look_at_queues()
            return tier.load().waiting == 5

        await eventually(all_wait)
        assert tier.queues() == {url: 5}
        paused.clear()
        await asyncio.gather(*asked)


async def test_a_pod_takes_the_fields_of_its_kind(tmp_path: Path) -> None:
    messages = [
        Turn.of("user", "Is it?"),
        Turn.of("assistant", "No.", thoughts="Hardly."),
        Turn.of("user", "Again?"),
    ]
    request = GenerationRequest(
        request_id="r1", messages=messages, sampling=SamplingParams(temperature=0.5, min_p=0.1, seed=1), max_tokens=20,
        stop=("\n\n\n",), include_stop=True, reasoning_budget=8, template_variables={"enable_thinking": True},
    )  # fmt: skip
    async with pool(tmp_path) as url, front_tier(url, THINKING, BY_POD) as (tier, _):
        (answer,), usage = await collect(tier, request)
    assert answer.reasoning
    assert 0 < usage.reasoning_tokens <= 8
