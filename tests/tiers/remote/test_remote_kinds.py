"""The specifics of kinds of servers: health paths, queues, settings. Their fields are recorded."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, get_args

import msgspec
import pytest

from inference_core.protocol import SamplingParams
from tests.polling import eventually
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.load import load_catalog
from tiers.catalog.replica_spec import BalancingSpec
from tiers.catalog.tier_spec import RemoteKind, RemoteSpec
from tiers.catalog.validate import check_rules
from tiers.deltas import asking_uncertainty
from tiers.dialects.dialect import SERVERS, ServerDialect, dialect_of
from tiers.errors import TierAnswerError, TierUnavailableError
from tiers.remote.remote_tier import RemoteTier
from tiers.remote.server_state import sum_of_samples
from tiers.replicas.replica_set import ReplicaSet

VLLM_PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="upstream"} 4.0
vllm:num_requests_running{engine="1",model_name="upstream"} 2.0
vllm:num_requests_waiting{engine="0",model_name="upstream"} 5.0
vllm:num_requests_waiting_total 99.0
"""
SGLANG_PAGE = 'sglang:num_running_reqs{model_name="upstream"} 3\nsglang:num_queue_reqs{model_name="upstream"} 1e1\n'
LLAMA_PAGE = "llamacpp:requests_processing 4\nllamacpp:requests_deferred 2\n"
TGI_PAGE = "tgi_batch_current_size 8\ntgi_queue_size 1\n"


async def hello(call: Call) -> None:
    await call.say("Hello")


def telling(page: str) -> Any:
    """A page on which each look finds one answer more."""
    answers = count(1)

    async def look(call: Call) -> None:
        await call.begin(200, "text/plain; version=0.0.4")
        text = f"{page}vllm:request_success_total {next(answers)}\n" if call.path == "/metrics" else ""
        await call.send(text.encode())

    return look


@asynccontextmanager
async def replicas(pages: Sequence[str], kind: str = "vllm", **balancing: Any) -> AsyncIterator[ReplicaSet]:
    servers = [LoopbackServer(hello) for _ in pages]
    for server, page in zip(servers, pages, strict=True):
        server.looked_at = telling(page)
        await server.__aenter__()
    spec = BalancingSpec(**{"affinity_bytes": 0, "queue_poll_seconds": 0} | balancing)
    tier = ReplicaSet(remote_spec(base_urls=[server.base_url for server in servers], kind=kind, balancing=spec))
    await tier.start()
    yield tier
    await tier.close()
    for server in servers:
        await server.stop()


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("openai", "/v1/models"),
        ("vllm", "/health"),
        ("sglang", "/health"),
        ("tensorrt-llm", "/health"),
        ("tgi", "/health"),
    ],
)
async def test_each_kind_is_looked_at_where_it_says_that_it_lives(kind: str, path: str) -> None:
    async with LoopbackServer(hello) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind=kind))
        await tier.start()
        assert (await collect(tier, chat()))[0][0].text == "Hello"
        assert server.looks[0] == path
        assert set(server.looks[1:]) <= {"/metrics"}
        await tier.close()


async def test_a_vllm_whose_engine_is_dead_is_unavailable() -> None:
    async with LoopbackServer(hello) as server:

        async def dead(call: Call) -> None:
            await call.reply(503, {})

        server.looked_at = dead
        tier = RemoteTier(remote_spec(server.base_url, kind="vllm"))
        with pytest.raises(TierUnavailableError):
            await tier.start()
        await tier.close()


@pytest.mark.parametrize(
    ("kind", "page", "queue"),
    [("vllm", VLLM_PAGE, 11), ("sglang", SGLANG_PAGE, 13), ("llama-server", LLAMA_PAGE, 6), ("tgi", TGI_PAGE, 9)],
)
async def test_the_queue_is_read_from_the_servers_own_metrics(kind: str, page: str, queue: int) -> None:
    async with replicas([page], kind) as tier:
        await tier.look_at_queues()
        assert tier.replicas()[0].elsewhere == queue


@pytest.mark.parametrize("page", ["", "vllm:num_requests_running 1\n", "vllm:num_requests_running NaN\n" + VLLM_PAGE])
async def test_a_page_without_a_queue_says_nothing(page: str) -> None:
    async with replicas([page]) as tier:
        await tier.look_at_queues()
        assert tier.replicas()[0].elsewhere == 0


def test_a_name_is_not_taken_for_a_longer_one() -> None:
    assert sum_of_samples(b"a_total 3\na 1 1700000000\n", ["a"]) == 1


async def test_a_server_that_is_busy_with_others_is_passed_over() -> None:
    busy = "vllm:num_requests_running 64\nvllm:num_requests_waiting 100\n"
    idle = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    async with replicas([busy, idle]) as tier:
        await tier.look_at_queues()
        for _ in range(20):
            await collect(tier, chat())
        first, second = tier.replicas()
    assert (first.requests, second.requests) == (0, 20)


async def test_queues_are_looked_at_again_and_again() -> None:
    async with LoopbackServer(hello) as server:
        balancing = BalancingSpec(queue_poll_seconds=0.01)
        tier = ReplicaSet(remote_spec(base_urls=[server.base_url], kind="vllm", balancing=balancing))
        await tier.start()
        for queue in (11, 12):
            server.looked_at = telling(f"vllm:num_requests_running 1\nvllm:num_requests_waiting {queue - 1}\n")
            await eventually(lambda: tier.replicas()[0].elsewhere == queue)  # noqa: B023
        await tier.close()


async def test_a_single_server_is_looked_at_too_and_the_tier_shows_its_queue_and_wait() -> None:
    """One answer in half a second while five requests wait."""
    now = 0.0
    async with LoopbackServer(hello) as server:
        server.looked_at = telling(VLLM_PAGE)
        tier = RemoteTier(remote_spec(server.base_url, kind="vllm"), clock=lambda: now)
        assert (tier.load().waiting, tier.queues()) == (0, {tier.name: 0})
        await tier.start()
        await eventually(lambda: tier.load().waiting == 5)
        await tier.close()
        assert tier.load().predicted_wait_seconds == 0, "nothing is known of its speed yet"
        now = 0.5
        assert await tier.look_at_queue() == 11
        assert tier.load().predicted_wait_seconds == pytest.approx(5 * 0.5)
        assert tier.queues() == {server.base_url: 5}
        server.looked_at = telling("")
        assert await tier.look_at_queue() is None
        assert (tier.load().waiting, tier.load().predicted_wait_seconds) == (0, 0)
        await tier.close()


async def test_a_request_joins_the_shortest_queue_of_a_set_and_all_of_them_are_shown() -> None:
    busy = "vllm:num_requests_running 64\nvllm:num_requests_waiting 100\n"
    async with replicas([busy, VLLM_PAGE, ""]) as tier:
        for _ in range(2):
            await tier.look_at_queues()
        urls = [replica.replica for replica in tier.replicas()]
        assert tier.queues() == {urls[0]: 100, urls[1]: 5, f"{tier.name} ({urls[2]})": 0}
        assert (tier.load().waiting, tier.load().predicted_wait_seconds) == (105, 0.0)


async def test_a_server_that_does_not_tell_is_judged_by_what_is_known_here() -> None:
    async with replicas([VLLM_PAGE], "openai") as tier:
        await tier.look_at_queues()
        assert tier.replicas()[0].elsewhere == 0


@pytest.mark.parametrize(
    ("remote", "said"),
    [
        ({"kind": "vllm", "tokenizer": "x"}, "tokenizer: is only for Triton"),
        ({"kind": "triton-vllm", "whole_path": "infer"}, "triton-tensorrt-llm"),
        ({"kind": "openai", "cumulative_text": True}, "triton-tensorrt-llm"),
    ],
)
def test_settings_of_another_kind_are_refused_by_the_catalogue(remote: dict[str, Any], said: str) -> None:
    catalog = load_catalog("laptop")
    tier = msgspec.structs.replace(catalog.tier(1), model=None, remote=remote_spec("http://x/v1", **remote).remote)
    catalog.tiers[0] = tier
    assert any(said in problem for problem in check_rules(catalog))


def test_a_triton_models_name_is_no_path() -> None:
    catalog = load_catalog("laptop")
    remote = remote_spec("http://x", kind="triton-vllm").remote
    assert remote is not None
    remote = msgspec.structs.replace(remote, model="../../v2/repository")
    catalog.tiers[0] = msgspec.structs.replace(catalog.tier(1), model=None, remote=remote)
    assert any("Triton's repository" in problem for problem in check_rules(catalog))


@pytest.mark.parametrize(
    ("kind", "asked"), [("vllm", 0), ("sglang", 0), ("openai", None), ("tensorrt-llm", None), ("tgi", None)]
)
def test_logprobs_are_asked_only_of_kinds_of_servers_that_all_give_them(kind: str, asked: int | None) -> None:
    spec = remote_spec(base_url="http://127.0.0.1:9/v1", kind=kind)
    tier = RemoteTier(spec)
    request = asking_uncertainty(chat("hello"), tier, spec.tells_logprobs)
    assert (request.sampling.logprobs, request.evidence) == (asked, None)
    wanted = msgspec.structs.replace(chat("hello"), sampling=SamplingParams(logprobs=3))
    assert asking_uncertainty(wanted, tier, spec.tells_logprobs).sampling.logprobs == 3


@pytest.mark.parametrize("kind", get_args(RemoteKind))
def test_every_kind_of_server_has_a_dialect(kind: RemoteKind) -> None:
    """The table names modules and classes by their texts, which no type checker reads."""
    module, name = SERVERS[kind]
    dialect = dialect_of(RemoteSpec(base_url="http://127.0.0.1:1/v1", kind=kind, model="m"))
    assert isinstance(dialect, ServerDialect)
    assert (type(dialect).__module__, type(dialect).__name__) == (f"tiers.dialects.{module}", name)


async def test_a_response_with_neither_output_nor_counts_is_no_answer() -> None:
    async def say_the_end(call: Call) -> None:
        await call.begin()
        await call.event({"type": "response.completed", "response": {"status": "completed"}})

    async with LoopbackServer(say_the_end) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai-provider", responses="always"))
        with pytest.raises(TierAnswerError):
            await collect(tier, chat())
        await tier.close()
