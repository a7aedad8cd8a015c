"""A tier on an engine that AIO starts: it follows the engine's state."""

import pytest

from inference_core.protocol import SamplingParams
from tests.support.upstream import Call, LoopbackServer
from tiers.catalog.load import parse_catalog
from tiers.conversation import Turn
from tiers.engines import EngineStatus
from tiers.errors import TierUnavailableError
from tiers.remote.engine_tier import EngineTier
from tiers.tier import GenerationRequest

STARTING = EngineStatus(state="starting", detail="vllm is starting", start=1)


class Owner:
    """Holds the state that the tier sees."""

    def __init__(self) -> None:
        self.status = STARTING

    def tier(self) -> EngineTier:
        entry = {"name": "small", "engine": "vllm", "model": "org/m"}
        other = {"name": "other", "url": "http://localhost:8001/v1"}
        catalog = parse_catalog({"name": "test", "tiers": [entry, other]}, "test")
        return EngineTier(next(tier for tier in catalog.tiers if tier.name == "small"), lambda: self.status)

    def ready(self, url: str, start: int, context: int | None = None) -> None:
        self.status = EngineStatus(state="ready", detail="vllm answers", url=url, start=start, context=context)


def request() -> GenerationRequest:
    messages = [Turn.of("user", "Hello")]
    return GenerationRequest(request_id="r", sampling=SamplingParams(), messages=messages)


async def text_of(tier: EngineTier) -> str:
    return "".join([delta.text async for delta in tier.generate(request())])


async def answer(call: Call) -> None:
    await call.say("Hi")


async def test_before_the_engine_is_ready_the_tier_is_unhealthy_and_says_why() -> None:
    tier = Owner().tier()
    await tier.start()
    assert not tier.load().healthy
    with pytest.raises(TierUnavailableError, match="vllm is starting"):
        await text_of(tier)
    assert tier.count_prompt_tokens(request()) > 0
    await tier.close()


async def test_a_ready_engine_answers_within_the_context_that_it_reports() -> None:
    owner = Owner()
    tier = owner.tier()
    async with LoopbackServer(answer) as server:
        owner.ready(server.base_url, 1, context=2048)
        assert tier.load().healthy
        assert tier.max_context == 2048
        assert await text_of(tier) == "Hi"
    await tier.close()


async def test_a_proxy_of_the_environment_is_not_between_a_tier_and_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    owner = Owner()
    tier = owner.tier()
    async with LoopbackServer(answer) as server:
        owner.ready(server.base_url, 1)
        assert await text_of(tier) == "Hi"
    await tier.close()


async def test_failures_of_one_run_do_not_count_against_the_next() -> None:
    owner = Owner()
    tier = owner.tier()
    async with LoopbackServer(answer) as server:
        owner.ready("http://127.0.0.1:9/v1", 1)
        with pytest.raises(TierUnavailableError):
            await text_of(tier)
        assert not tier.load().healthy
        owner.ready(server.base_url, 2)
        assert tier.load().healthy
        assert await text_of(tier) == "Hi"
        owner.status = STARTING
        assert not tier.load().healthy
    await tier.close()
