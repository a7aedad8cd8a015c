"""Several API keys for one server: each has its own limits, and one that is refused or is to wait is left alone until a
request with it succeeds."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.replicas.test_replica_set import InOrder, busy, well
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.replica_spec import ApiKeySpec, BalancingSpec
from tiers.errors import TierError, TierUnavailableError
from tiers.replicas.replica_set import ReplicaSet

KEYS = {"KEY_A": "a-secret", "KEY_B": "b-secret", "KEY_C": "c-secret"}


class Provider:
    """Answers by key: `by_key` maps a key's variable to what it does; others are answered well."""

    def __init__(self) -> None:
        self.by_key: dict[str, Any] = {}
        self.asked: list[str] = []

    async def __call__(self, call: Call) -> None:
        secret = call.headers["authorization"].removeprefix("Bearer ")
        name = next(name for name, value in KEYS.items() if value == secret)
        self.asked.append(name)
        await self.by_key.get(name, well)(call)


@asynccontextmanager
async def pool(
    clock: Clock | None = None,
    keys: list[ApiKeySpec] | None = None,
    environ: dict[str, str] | None = None,
    rng: random.Random | None = None,
    **balancing: Any,
) -> AsyncIterator[tuple[ReplicaSet, Provider]]:
    provider = Provider()
    async with LoopbackServer(provider) as server:
        keys = keys or [ApiKeySpec(env="KEY_A"), ApiKeySpec(env="KEY_B")]
        spec = remote_spec(
            server.base_url,
            api_keys=keys,
            balancing=BalancingSpec(affinity_bytes=0, first_token_timeout_seconds=20.0, **balancing),
        )
        tier = ReplicaSet(spec, environ=environ or KEYS, clock=clock or Clock(), rng=rng or InOrder())
        yield tier, provider
        await tier.close()


def refused(status: int) -> Any:
    async def refuse(call: Call) -> None:
        await call.reply(status, {"error": {"message": "no"}})

    return refuse


def conditions(tier: ReplicaSet) -> list[str]:
    return [replica.condition for replica in tier.replicas()]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_ejected_at_once_and_comes_back_after_a_probe(status: int, clock: Clock) -> None:
    async with pool(clock) as (tier, provider):
        provider.by_key["KEY_A"] = refused(status)
        await collect(tier, chat())
        assert provider.asked == ["KEY_A", "KEY_B"]
        assert conditions(tier) == ["ejected", "serving"]
        await collect(tier, chat())
        assert provider.asked == ["KEY_A", "KEY_B", "KEY_B"]

        clock.now += tier.balancing.ejection_seconds
        assert conditions(tier) == ["probing", "serving"]
        await collect(tier, chat())
        assert provider.asked[3:] == ["KEY_A", "KEY_B"], "the probe failed, and another key answered"
        clock.now += tier.balancing.ejection_seconds
        assert conditions(tier)[0] == "ejected", "twice as long now"

        clock.now += tier.balancing.ejection_seconds
        provider.by_key.clear()
        await collect(tier, chat())
        assert provider.asked[5:] == ["KEY_A"]
        assert conditions(tier) == ["serving", "serving"]


async def test_a_throttled_key_waits_as_long_as_the_server_says_and_is_then_probed(clock: Clock) -> None:
    async with pool(clock) as (tier, provider):
        provider.by_key["KEY_A"] = busy("30")
        await collect(tier, chat())
        clock.now += 29
        await collect(tier, chat())
        assert provider.asked == ["KEY_A", "KEY_B", "KEY_B"]
        assert tier.replicas()[0].available_in_seconds == 1
        clock.now += 1
        assert conditions(tier) == ["probing", "serving"]
        provider.by_key.clear()
        await collect(tier, chat())
        assert provider.asked[3:] == ["KEY_A"]
        assert conditions(tier) == ["serving", "serving"]


async def test_with_every_key_refused_the_tier_is_down_until_one_may_be_probed(clock: Clock) -> None:
    async with pool(clock) as (tier, provider):
        provider.by_key = {"KEY_A": refused(401), "KEY_B": refused(403)}
        with pytest.raises(TierUnavailableError, match="none of 2 replicas answered") as caught:
            await collect(tier, chat())
        assert "a-secret" not in str(caught.value)
        assert not tier.load().healthy
        clock.now += tier.balancing.ejection_seconds
        assert tier.load().healthy
        provider.by_key.clear()
        await collect(tier, chat())
        assert conditions(tier) == ["serving", "probing"]


async def test_each_key_keeps_its_own_requests_per_minute(clock: Clock) -> None:
    keys = [ApiKeySpec(env="KEY_A", requests_per_minute=2), ApiKeySpec(env="KEY_B", requests_per_minute=1)]
    async with pool(clock, keys) as (tier, provider):
        for _ in range(3):
            await collect(tier, chat())
        assert provider.asked == ["KEY_A", "KEY_A", "KEY_B"]
        assert conditions(tier) == ["paused", "paused"]
        assert not tier.load().healthy
        clock.now += 20
        with pytest.raises(TierUnavailableError) as caught:
            await collect(tier, chat())
        assert caught.value.retry_after_seconds == 40
        clock.now += 40
        await collect(tier, chat())
        assert provider.asked[3:] == ["KEY_A"]


async def test_the_tokens_of_an_answer_count_once_it_has_ended() -> None:
    # `well` reports 7 and 2 tokens; 7 are estimated before.
    keys = [ApiKeySpec(env="KEY_A", tokens_per_minute=22), ApiKeySpec(env="KEY_B")]
    async with pool(keys=keys) as (tier, provider):
        for _ in range(4):
            await collect(tier, chat())
        # Two answers of 9 tokens leave no room for a third prompt, which two prompts of 7 would.
        assert provider.asked == ["KEY_A", "KEY_A", "KEY_B", "KEY_B"]


async def test_a_key_whose_variable_is_not_set_is_left_out() -> None:
    async with pool(environ={"KEY_B": KEYS["KEY_B"]}) as (tier, provider):
        await tier.start()
        for _ in range(3):
            await collect(tier, chat())
        assert set(provider.asked) == {"KEY_B"}
        assert len(tier.replicas()) == 1


async def test_records_name_the_variable_of_a_key_and_never_the_key() -> None:
    async with pool() as (tier, provider):
        provider.by_key["KEY_A"] = refused(401)
        deltas = [delta async for delta in tier.generate(chat())]
        names = [attempt.replica for attempt in deltas[0].tries]
        assert [name.rpartition(" ")[2] for name in names] == ["(KEY_A)", "(KEY_B)"]
        assert "secret" not in repr(deltas[0].tries)


async def test_an_error_that_is_no_keys_fault_ejects_none() -> None:
    async def wrong(call: Call) -> None:
        await call.reply(400, {"error": {"message": "too hot", "param": "temperature"}})

    async with pool() as (tier, provider):
        provider.by_key["KEY_A"] = wrong
        with pytest.raises(TierError, match="too hot"):
            await collect(tier, chat())
        assert conditions(tier) == ["serving", "serving"]


async def test_several_choices_of_a_provider_with_one_each_are_spread_over_the_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def message(call: Call) -> None:
        asked.append(call.headers["x-api-key"])
        await call.begin()
        start = {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}
        for event in (
            start,
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ):
            await call.event(event)

    async with LoopbackServer(message) as server:
        keys = [ApiKeySpec(env="KEY_A", requests_per_minute=1), ApiKeySpec(env="KEY_B", requests_per_minute=1)]
        spec = remote_spec(server.base_url, kind="anthropic", api_keys=keys, balancing=BalancingSpec(affinity_bytes=0))
        tier = ReplicaSet(spec, environ=KEYS, clock=Clock(), rng=InOrder())
        answers, usage = await collect(tier, chat(n=2))
        await tier.close()
    assert [answer.text for answer in answers] == ["Hello", "Hello"]
    assert usage.prompt_tokens == 14
    assert sorted(asked) == ["a-secret", "b-secret"]
