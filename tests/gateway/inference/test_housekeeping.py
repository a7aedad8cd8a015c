"""An agent's titles and commit messages go to the cheapest tier that may answer, and leave its session as it was."""

import pytest

from classifier.policy.decide import decide
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HARD = "prove the theorem rigorously, step by step, and analyse each case"
AGENT = {"user-agent": "opencode/1.18.33"}
TITLE = [{"role": "system", "content": "You are a title generator. Say a title."}, {"role": "user", "content": HARD}]


async def asked(gateway: RunningGateway, messages: list[dict[str, str]], **headers: str) -> tuple[int, str]:
    answer = await gateway.ask(headers=AGENT | headers, messages=messages)
    assert answer.status_code == 200, answer.text
    return int(answer.headers["x-aio-tier"]), answer.json()["id"]


async def test_a_title_goes_to_the_cheapest_tier_and_the_record_says_why(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = [0.1, 0.2, 0.3, 1.0]
    tier, request_id = await asked(gateway, TITLE)
    assert tier == 1
    decision = (await only_record(gateway, request_id)).decision
    assert decision.reason.startswith("housekeeping of opencode: tier 1 is the cheapest")
    assert (decision.inputs.client, decision.inputs.purpose) == ("opencode", "housekeeping")
    assert decide(decision.inputs) == decision


async def test_work_goes_where_routing_sends_it(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = [0.1, 0.2, 0.3, 1.0]
    tier, request_id = await asked(gateway, TITLE[1:])
    assert tier == 4
    inputs = (await only_record(gateway, request_id)).decision.inputs
    assert (inputs.client, inputs.purpose, inputs.cheapest) == ("opencode", "main", None)


async def test_a_minimum_tier_and_the_knob_come_first(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = [0.1, 0.2, 0.3, 1.0]
    assert (await asked(gateway, TITLE, **{"x-aio-min-tier": "2"}))[0] == 2
    gateway.serving.routing.knobs.change({"agents_housekeeping": "route"})
    try:
        assert (await asked(gateway, TITLE))[0] == 4
    finally:
        gateway.serving.routing.knobs.change({"agents_housekeeping": None})


async def test_a_title_does_not_move_its_session(gateway: RunningGateway) -> None:
    session = {"x-aio-conversation": "session-of-titles"}
    gateway.classifier.p_ok = [0.1, 0.2, 0.3, 1.0]
    assert (await asked(gateway, [{"role": "user", "content": HARD}], **session))[0] == 4
    tier, title_id = await asked(gateway, TITLE, **session)
    assert tier == 1
    assert (await only_record(gateway, title_id)).decision.inputs.previous_tier is None
    turns = [
        {"role": "user", "content": HARD},
        {"role": "assistant", "content": "Shall I?"},
        {"role": "user", "content": "yes"},
    ]
    _, request_id = await asked(gateway, turns, **session)
    assert (await only_record(gateway, request_id)).decision.inputs.previous_tier == 4
