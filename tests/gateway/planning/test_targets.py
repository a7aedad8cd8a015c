"""Targets for a cluster: counters become demand, demand becomes replicas, and gaps change nothing."""

import asyncio
import itertools
import socket

import httpx
from litestar.testing import AsyncTestClient

from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.scaling.predictive import FleetSettings, PredictiveKnobs, ServiceObjectives
from gateway.planning.scaling.target_server import (
    FleetTargets,
    Passed,
    TargetService,
    TrafficCounters,
    addresses_of,
    target_app,
    target_exposition,
)
from tests.http_server import Reply, answering

PROFILE = replica_profile("smollm2-135m-int4-cpu")
BUSY = Passed(requests=600, prompt_tokens=600 * 300, output_tokens=600 * 60)


def targets(**fleet: float) -> FleetTargets:
    settings = FleetSettings(**({"cold_start_s": 3.6, "least": 3, "most": 40, "interval_s": 15.0} | fleet))
    return FleetTargets(
        {"1": PROFILE}, {"1": settings}, objectives=ServiceObjectives(), knobs=PredictiveKnobs(down_window_s=60.0)
    )


def exposition(requests: int, tier: int = 1, worker: int = 0) -> str:
    labels = f'tier="{tier}",worker="{worker}"'
    return (
        f'# TYPE aio_requests counter\naio_requests_total{{{labels},status="ok"}} {requests}\n'
        f"# TYPE aio_prompt_tokens counter\naio_prompt_tokens_total{{{labels}}} {requests * 100}\n"
        f"# TYPE aio_completion_tokens counter\naio_completion_tokens_total{{{labels}}} {requests * 10}\n"
    )


def test_counters_of_all_gateways_and_workers_are_added_up():
    counters = TrafficCounters()
    first = {"a": exposition(5) + exposition(2, worker=1), "b": exposition(1, tier=2)}
    assert counters.take(first) is None
    second = {"a": exposition(9) + exposition(3, worker=1), "b": exposition(4, tier=2)}
    assert counters.take(second) == {
        "1": Passed(requests=5, prompt_tokens=500, output_tokens=50),
        "2": Passed(requests=3, prompt_tokens=300, output_tokens=30),
    }


def test_a_counter_that_was_reset_counts_from_zero():
    counters = TrafficCounters()
    counters.take({"a": exposition(50)})
    found = counters.take({"a": exposition(7)})
    assert found is not None
    assert found["1"].requests == 7


def test_an_interval_without_an_answer_is_unknown_and_so_is_the_one_that_catches_up():
    counters = TrafficCounters()
    counters.take({"a": exposition(10)})
    assert counters.take({"a": None}) is None
    assert counters.take({"a": exposition(90)}) is None
    found = counters.take({"a": exposition(95)})
    assert found is not None
    assert found["1"].requests == 5


def test_traffic_raises_the_target_and_its_end_lowers_it_to_the_warm_minimum():
    fleet = targets()
    for step in range(8):
        fleet.update(15.0 * step, {"1": BUSY})
    busy = fleet.tiers["1"]
    assert 3 < busy.target < 40
    assert busy.requests_per_second == 40
    for step in range(8, 200):
        fleet.update(15.0 * step, {"1": Passed()})
    assert fleet.tiers["1"].target == 3


def test_the_target_never_passes_its_limits():
    fleet = targets(most=5)
    fleet.update(0.0, {"1": Passed(requests=10**6, prompt_tokens=10**9, output_tokens=10**8)})
    assert fleet.tiers["1"].target == 5


def test_gaps_leave_the_target_as_it_was():
    fleet = targets()
    for step in range(8):
        fleet.update(15.0 * step, {"1": BUSY})
    before = fleet.tiers["1"].target
    for step in range(8, 30):
        fleet.update(15.0 * step, None)
    assert fleet.tiers["1"].target == before
    assert not fleet.tiers["1"].known


async def test_an_autoscaler_reads_what_gateways_count_as_json_and_as_a_gauge():
    counted = itertools.count(0, 600)

    def answer(asked):
        return Reply(exposition(next(counted)).encode()) if asked.path == "/metrics" else Reply(status=404)

    with answering(answer) as url:
        service = TargetService(targets(), [url], 15.0)
        async with httpx.AsyncClient() as client:
            for _ in range(6):
                await service.scrape(client)
    wanted = service.targets.tiers["1"].target
    assert wanted > 3
    assert f'aio_fleet_target_replicas{{tier="1"}} {wanted:.1f}' in target_exposition(service.targets).decode()


async def test_a_name_of_many_gateways_is_all_of_them_each_time(monkeypatch):
    pods = ["10.0.0.2", "10.0.0.1", "10.0.0.1"]

    async def resolve(self, host, port, **options):
        assert host == "gateways"
        six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 0, 0, 0))
        return [six, *((socket.AF_INET, socket.SOCK_STREAM, 6, "", (pod, 0)) for pod in pods)]

    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", resolve)
    assert await addresses_of("http://gateways:8080") == ["http://10.0.0.1:8080", "http://10.0.0.2:8080"]
    pods[:] = []
    assert await addresses_of("http://gateways:8080") == ["http://[fd00::1]:8080"]
    assert await addresses_of("https://gateways") == ["https://gateways"]


async def test_an_unknown_host_name_is_a_gateway_that_does_not_answer():
    assert await addresses_of("http://no-such-host.invalid:8080") == ["http://no-such-host.invalid:8080"]


async def test_the_service_answers_while_no_gateway_does():
    service = TargetService(targets(), ["http://127.0.0.1:9"], 15.0)
    async with AsyncTestClient(target_app(service)) as client:
        tier = (await client.get("/v1/fleet")).json()["tiers"]["tier-1"]
        assert (tier["target"], tier["known"]) == (3, False)
        assert 'aio_fleet_target_replicas{tier="1"} 3.0' in (await client.get("/metrics")).text
