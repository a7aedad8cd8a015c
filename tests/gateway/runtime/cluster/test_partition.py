"""A partition without closed connections: a replica falls silent while a proxy still acknowledges what is sent."""

from collections.abc import AsyncIterator

import pytest

from inference_core.errors import CoreGoneError
from tests.gateway.runtime.cluster.core_fleet import CoreFleet, answer, request, tokens_of, until_connected
from tests.polling import eventually


@pytest.fixture
async def fleet() -> AsyncIterator[CoreFleet]:
    """Replicas a and b, each behind a relay that can fall silent."""
    fleet = CoreFleet(silent_seconds=0.5)
    for name in ("a", "b"):
        await (await fleet.add(name)).put_behind_a_relay()
    yield fleet
    await fleet.close()


@pytest.fixture
async def core(fleet: CoreFleet) -> AsyncIterator[object]:
    client = fleet.client()
    await client.start()
    await until_connected(client, "a", "b")
    yield client
    await client.close()


async def test_a_silent_replicas_started_requests_end_with_an_error_and_the_rest_go_elsewhere(core, fleet):
    outputs = core.generate(request("started", tokens=2000))
    await anext(outputs)
    await eventually(lambda: "started" in core._requests)
    lost = fleet.replicas[core._requests["started"].name]
    (other,) = (replica for replica in fleet.replicas.values() if replica is not lost)
    lost.said, lost.relay.silent = False, True

    # Both replicas get a share of these; the silent one is not known yet.
    answers = [await answer(core, request(f"r{number}", prompt=(number, 2))) for number in range(8)]
    with pytest.raises(CoreGoneError, match=r"nothing was heard for 0\.5 s"):
        [output async for output in outputs]

    assert all(len(tokens_of(outputs)) == 8 for outputs in answers)
    assert core.replicas == [other.name]


async def test_a_silent_replica_drops_requests_of_lost_clients(core, fleet):
    outputs = core.generate(request("started", tokens=2000))
    await anext(outputs)
    await eventually(lambda: "started" in core._requests)
    lost = fleet.replicas[core._requests["started"].name]
    lost.paused.set()
    assert lost.server._is_busy()

    lost.relay.silent = True
    await eventually(lambda: not lost.server._is_busy())


async def test_a_replica_that_is_heard_again_serves_again(core, fleet):
    silent = fleet.replicas["a"]
    silent.said, silent.relay.silent = False, True
    while "a" in core.replicas:
        await core.stats()

    silent.said, silent.relay.silent = True, False
    await until_connected(core, "a", "b")

    answers = [await answer(core, request(f"r{number}", prompt=(number,))) for number in range(8)]
    assert all(len(tokens_of(outputs)) == 8 for outputs in answers)
