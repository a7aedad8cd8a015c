"""Models that only workers have: the gateway knows their contexts, counts their tokens, and computes nothing."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from gateway.http import worker_app
from inference_core.errors import CoreGoneError
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core
from tests.support.database import RedisServer

CHAT: dict[str, Any] = {
    "model": "tier-1", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0,
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    tmp_path_factory: pytest.TempPathFactory, redis_process: RedisServer
) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    """A gateway without models, and a worker on a core of hash models."""
    redis_process.start()
    redis_process.flush()
    folder: Path = tmp_path_factory.mktemp("models")
    puts = Settings(
        data_dir=str(folder / "gateway"), monitor=False, drain_seconds=5, redis_url=redis_process.url, role="gateway",
        chat_queue="put",
    )  # fmt: skip
    takes = msgspec.structs.replace(puts, data_dir=str(folder / "worker"), role="all", chat_queue="take")
    async with AsyncExitStack() as stack:
        core = laptop_hash_core(takes)
        worker = await stack.enter_async_context(running_gateway(takes, core=core, scripted=False, http=worker_app))
        gateway = await stack.enter_async_context(running_gateway(puts, scripted=False))
        yield gateway, worker


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_model_of_a_worker_answers_whole_and_streamed_alike(
    pair: tuple[RunningGateway, RunningGateway],
) -> None:
    gateway, _ = pair
    whole = (await gateway.ask(**CHAT)).json()
    assert whole["usage"]["completion_tokens"] == 12
    chunks = await gateway.openai.chat.completions.create(**CHAT, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
    assert text == whole["choices"][0]["message"]["content"]


async def test_the_gateway_knows_the_context_and_counts_tokens_itself(
    pair: tuple[RunningGateway, RunningGateway],
) -> None:
    gateway, _ = pair
    tiers, theirs = (each.serving.routing.served.tiers for each in pair)
    assert {n: tier.max_context for n, tier in tiers.items()} == {n: tier.max_context for n, tier in theirs.items()}
    answer = await gateway.http.post("/tokenize", json={"model": "tier-1", "prompt": "Say hello."})
    assert answer.json()["count"] > 0
    long = await gateway.ask("word " * 20_000, model="tier-1")
    assert long.json()["error"]["code"] == "context_length_exceeded"


async def test_a_refusal_of_a_workers_core_names_the_callers_field(pair: tuple[RunningGateway, RunningGateway]) -> None:
    gateway, _ = pair
    schema = {"name": "n", "strict": True, "schema": {"enum": ["yes", "no"]}}
    answer = await gateway.ask(**CHAT, response_format={"type": "json_schema", "json_schema": schema})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], "follows no grammars" in error["message"]) == ("response_format", True)


async def test_what_is_no_chat_is_refused_where_the_model_is_not(pair: tuple[RunningGateway, RunningGateway]) -> None:
    gateway, _ = pair
    with pytest.raises(CoreGoneError, match="chat queue"):
        await gateway.operations.core_knobs.cores["cpu"].set_knobs({"max_num_seqs": 3})
