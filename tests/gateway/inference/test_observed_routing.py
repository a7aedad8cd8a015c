"""Routing that is only watched: one tier answers all, the decision is written down as if it held."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from classifier.policy.decide import decide
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway

HELLO = [{"role": "user", "content": "hello there"}]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def watched(gateway: RunningGateway) -> AsyncIterator[RunningGateway]:
    """The gateway while its routing is only watched."""
    gateway.serving.routing.knobs.change({"mode": "observe"})
    yield gateway
    gateway.serving.routing.knobs.change({"mode": None, "observe_tier": None})


async def answered(gateway: RunningGateway, model: str = "auto", **headers: str) -> tuple[str, str | None, str]:
    """Tier, would-be tier and id of one answer."""
    body = {"model": model, "messages": HELLO}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    return answer.headers["x-aio-tier"], answer.headers.get("x-aio-would-be-tier"), answer.json()["id"]


async def test_the_strongest_answers_and_the_record_says_what_would_have_been(watched: RunningGateway) -> None:
    tier, would_be, request_id = await answered(watched)
    assert (tier, would_be) == ("4", "1")
    record = await only_record(watched, request_id)
    assert (record.tier, record.decision.tier, record.decision.would_be) == (4, 4, 1)
    assert record.cost_usd == record.baseline_cost_usd
    assert decide(record.decision.inputs) == record.decision
    metrics = (await watched.http.get("/metrics")).text
    assert 'aio_would_be_requests_total{tier="1"} 1.0' in metrics


async def test_another_tier_can_be_the_one_and_the_next_up_stands_in_for_it(watched: RunningGateway) -> None:
    watched.serving.routing.knobs.change({"observe_tier": 2})
    assert (await answered(watched))[:2] == ("2", "1")
    watched.tier(2).fail_at = 0
    assert (await answered(watched))[:2] == ("3", "1")


async def test_who_names_a_tier_gets_it_and_a_decision_that_holds(watched: RunningGateway) -> None:
    assert (await answered(watched, "tier-1"))[:2] == ("1", None)


async def test_a_conversation_is_followed_along_the_tiers_that_would_have_answered(watched: RunningGateway) -> None:
    named = {"x-aio-conversation": "c-1"}
    await answered(watched, **named)
    _, would_be, request_id = await answered(watched, **named)
    record = await only_record(watched, request_id)
    assert (would_be, record.decision.inputs.previous_tier) == ("1", 1)


async def test_without_it_nothing_is_as_if(gateway: RunningGateway) -> None:
    tier, would_be, request_id = await answered(gateway)
    assert (tier, would_be) == ("1", None)
    assert (await only_record(gateway, request_id)).decision.would_be is None
