"""A tier learns from its server what the catalogue leaves open: the model's name and its context."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.build import ReloadableTier
from tiers.catalog.tier_spec import USUAL_CONTEXT
from tiers.errors import TierUnavailableError
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.replica_set import ReplicaSet


async def answer(call: Call) -> None:
    await call.say("Hello")


def listing(*models: Any) -> Any:
    async def look(call: Call) -> None:
        entries = [model if isinstance(model, dict) else {"id": model, "object": "model"} for model in models]
        await call.reply(200, {"object": "list", "data": entries})

    return look


@asynccontextmanager
async def server_of(*models: Any) -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer(answer) as server:
        server.looked_at = listing(*models)
        yield server


async def started(server: LoopbackServer, **remote: Any) -> ReloadableTier:
    tier = ReloadableTier(RemoteTier(remote_spec(server.base_url, **remote)))
    await tier.start()
    return tier


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang"])
async def test_an_unnamed_model_is_the_servers_only_one(kind: str) -> None:
    async with server_of("Qwen/Qwen3-8B") as server:
        tier = await started(server, model="", kind=kind)
        assert tier.model == "Qwen/Qwen3-8B"
        await collect(tier, chat())
        assert server.calls[0].body["model"] == "Qwen/Qwen3-8B"
        await tier.close()


async def test_an_unnamed_model_of_several_is_the_one_with_the_tiers_name() -> None:
    async with server_of("other", "tier-1") as server:
        tier = await started(server, model="")
        assert tier.model == "tier-1"
        await tier.close()


async def test_several_models_and_none_named_keeps_the_tier_away_and_lists_them() -> None:
    async with server_of("qwen3-4b", "qwen3-8b") as server:
        with pytest.raises(TierUnavailableError, match=r'has several models: qwen3-4b, qwen3-8b; name one.*"qwen3-4b"'):
            await started(server, model="")


async def test_a_server_that_lists_no_models_is_asked_for_the_tiers_name() -> None:
    async with server_of() as server:
        tier = await started(server, model="")
        assert tier.model == "tier-1"
        await tier.close()


@pytest.mark.parametrize(
    ("entry", "context"),
    [
        ({"max_model_len": 8192}, 8192),
        ({"context_window": 131072}, 131072),
        ({"meta": {"n_ctx": 4096}}, 4096),
        ({"max_model_len": "long"}, USUAL_CONTEXT),
        ({"max_model_len": "8192"}, 8192),
        ({"context_length": 8192.0}, 8192),
        ({"max_context_length": 131072, "loaded_context_length": 8192}, 8192),
        ({"model_limits": {"max_sequence_length": 8192}}, 8192),
        ({"capabilities": {"limits": {"max_context_window_tokens": 8192}}}, 8192),
        ({}, USUAL_CONTEXT),
    ],
)
async def test_the_context_is_the_servers_unless_the_catalogue_gives_it(entry: dict[str, Any], context: int) -> None:
    async with server_of({"id": "upstream"} | entry) as server:
        tier = await started(server, max_context=None)
        assert tier.max_context == context
        configured = await started(server, max_context=2048)
        assert configured.max_context == 2048
        await tier.close()
        await configured.close()


@pytest.mark.parametrize(
    "listed",
    [
        [{"id": "m", "object": "model"}],
        {"models": [{"name": "m", "model": "m"}]},
        {"data": ["m"]},
        {"data": {"models": [{"id": "m"}]}},
        {"result": [{"name": "m"}], "success": True},
        {"resources": [{"model_id": "m", "label": "M"}]},
    ],
)
async def test_models_are_found_wherever_a_server_lists_them(listed: Any) -> None:
    async with LoopbackServer(answer) as server:
        server.looked_at = lambda call: call.reply(200, listed)
        tier = await started(server, model="")
        assert tier.model == "m"
        await tier.close()


async def test_the_context_of_another_model_is_not_taken() -> None:
    async with server_of({"id": "other", "max_model_len": 512}) as server:
        tier = await started(server, max_context=None)
        assert (tier.model, tier.max_context) == ("upstream", USUAL_CONTEXT)
        await tier.close()


async def test_replicas_serve_the_least_context_of_their_servers() -> None:
    async with (
        server_of({"id": "m", "max_model_len": 8192}) as first,
        server_of({"id": "m", "max_model_len": 4096}) as second,
    ):
        spec = remote_spec(base_urls=[first.base_url, second.base_url], model="", max_context=None)
        tier = ReplicaSet(spec)
        await tier.start()
        assert (tier.model, tier.max_context) == ("m", 4096)
        await tier.close()


async def test_adapters_of_a_model_are_no_further_models() -> None:
    async with server_of({"id": "base", "parent": None}, {"id": "adapter", "parent": "base"}) as server:
        tier = await started(server, model="")
        assert tier.model == "base"
        await tier.close()
