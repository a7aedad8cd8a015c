"""The activity of a tier's replicas is in the request's record, the operators' statistics and the metrics."""

import msgspec
import pytest

from gateway.inference.router import RoutingService
from gateway.inference.service import Service
from quality.records.record import Record
from tests.gateway.chats import chat
from tests.support.app import RunningGateway, scripted_tiers
from tests.support.scripted_classifier import ScriptedClassifier
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import remote_spec
from tiers.catalog.load import load_catalog
from tiers.errors import ReplicaStatus
from tiers.replicas.replica_set import ReplicaSet
from tiers.tier import Tier


async def broken(call: Call) -> None:
    await call.reply(500, {"error": {"message": "out of memory"}})


async def well(call: Call) -> None:
    await call.begin()
    await call.chunk("Hello", finish="stop")


async def recorded(*servers: LoopbackServer) -> Record:
    """Return the record of the first request sent to two of these servers, tier 1, read back from JSON."""
    records: list[Record] = []
    replicated = ReplicaSet(remote_spec(base_urls=[server.base_url for server in servers]))
    tiers: dict[int, Tier] = {1: replicated} | {tier.number: tier for tier in scripted_tiers()[1:]}
    routing = RoutingService(load_catalog("laptop"), tiers, ScriptedClassifier(), None)
    service = Service(routing, [lambda answer, record: records.append(record)])
    for number in range(40):
        request = chat(f"Prompt {number}.", request_id=f"r{number}")
        await service.complete(request)
        if len(records[-1].attempts[0].replicas) == 2:
            break
    await replicated.close()
    return msgspec.json.decode(msgspec.json.encode(records[-1]), type=Record)


async def test_a_record_names_the_replicas_that_were_asked_and_the_one_that_answered() -> None:
    async with LoopbackServer(broken) as first, LoopbackServer(well) as second:
        (attempt,) = (await recorded(first, second)).attempts
        failed, answered = attempt.replicas
        assert (failed.replica, failed.outcome) == (first.base_url, "failed")
        assert "out of memory" in str(failed.error)
        assert (answered.replica, answered.outcome) == (second.base_url, "answered")
    assert attempt.status == "ok"


async def test_where_no_replica_answers_the_next_tier_does_and_the_record_has_it_all() -> None:
    async with LoopbackServer(broken) as first, LoopbackServer(broken) as second:
        record = await recorded(first, second)
    assert [(attempt.tier, attempt.status) for attempt in record.attempts] == [(1, "error"), (2, "ok")]
    assert [one.outcome for one in record.attempts[0].replicas] == ["failed", "failed"]
    assert record.attempts[1].replicas == []


@pytest.mark.asyncio(loop_scope="module")
async def test_statistics_and_metrics_show_every_replica(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ReplicaStatus(
        replica="http://a/v1", weight=1.0, condition="ejected", available_in_seconds=3.5, outstanding=2,
        ttft_seconds=0.25, consecutive_failures=3, requests=9, failures=4,
    )  # fmt: skip
    monkeypatch.setattr(gateway.tier(2), "replicas", lambda: [shown])
    tiers = (await gateway.http.get("/v1/admin/stats")).json()["tiers"]
    assert [tier["replicas"] for tier in tiers] == [[], [msgspec.to_builtins(shown)], [], []]
    metrics = (await gateway.http.get("/metrics")).text
    labels = '{replica="http://a/v1",tier="2"}'
    for name, value in (("outstanding", 2.0), ("serving", 0.0), ("ttft_seconds", 0.25), ("failures", 4.0)):
        assert f"aio_replica_{name}{labels} {value}" in metrics
