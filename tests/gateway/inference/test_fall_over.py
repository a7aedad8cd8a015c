"""A tier that fails is replaced once, by what the same decision takes without it, as long as nothing has reached the
caller."""

import json

import openai
import pytest

from classifier.policy.decide import decide
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway
from tiers.errors import TierError, TierRequestError, TierUnavailableError
from tiers.tier import TierLoad

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [TierError("broke"), TierUnavailableError("full"), RuntimeError("a bug")])
async def test_a_failure_before_the_first_token_goes_one_tier_up(
    gateway: RunningGateway, stream: bool, error: Exception
) -> None:
    gateway.tier(1).fail_at, gateway.tier(1).error = 0, error
    body = {"model": "auto", "messages": HELLO, "stream": stream}
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-aio-tier"] == "2"
    assert " you?" in answer.text
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert [(attempt.tier, attempt.status) for attempt in record.attempts] == [(1, "error"), (2, "ok")]
    assert (record.status, record.tier, record.decision.tier) == ("ok", 2, 1)
    assert record.cost_usd == sum(attempt.cost_usd for attempt in record.attempts)


@pytest.mark.parametrize(
    ("p_ok", "headers", "failing", "answers"),
    [
        # The next dearer tier is not worth its price, the strongest is.
        ((0.2, 0.99, 0.3, 1.0), {}, 2, "4"),
        # A cheaper tier that is worth most answers, unless it may not.
        ((0.95, 0.9999, 0.3, 1.0), {}, 2, "1"),
        ((0.95, 0.9999, 0.3, 1.0), {"x-aio-min-tier": "2"}, 2, "4"),
        # Without the strongest the best of the rest answers.
        ((0.1, 0.2, 0.3, 1.0), {}, 4, "3"),
    ],
)
async def test_what_stands_in_is_worth_most_of_the_rest(
    gateway: RunningGateway, p_ok: tuple[float, ...], headers: dict[str, str], failing: int, answers: str
) -> None:
    gateway.classifier.p_ok = p_ok
    gateway.tier(failing).fail_at = 0
    answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO}, headers=headers)
    assert (answer.status_code, answer.headers["x-aio-tier"]) == (200, answers)
    assert answer.headers["x-aio-fell-over-from"] == f"tier-{failing}"
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert f"tier {failing} failed (TierError), tier {answers} took over" in record.decision.reason
    assert decide(record.decision.inputs) == record.decision


async def test_a_whole_answer_is_replaced_even_late_and_both_attempts_are_billed(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at = 4
    answer = await gateway.openai.chat.completions.with_raw_response.create(
        model="auto", messages=[{"role": "user", "content": "word " * 40}]
    )
    assert answer.parse().choices[0].message.content == "Hello there, how are you?"
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    failed, done = record.attempts
    # 44 prompt tokens at $0.125 and 4 generated ones at $0.375 per million.
    assert failed.cost_usd == 0.000007
    assert record.cost_usd == pytest.approx(failed.cost_usd + done.cost_usd)
    assert float(answer.headers["x-aio-cost-usd"]) == pytest.approx(record.cost_usd, rel=1e-9)


async def test_a_started_stream_ends_with_an_error_event(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at = 1
    stream = await gateway.openai.chat.completions.create(model="auto", messages=HELLO, stream=True)
    pieces = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
    assert pieces == ["", "Hello"]
    with pytest.raises(openai.APIError):
        await anext(stream)
    assert not gateway.tier(2).requests


async def test_there_is_one_fall_over_and_no_more(gateway: RunningGateway) -> None:
    for tier in gateway.tiers:
        tier.fail_at = 0
    answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO})
    assert answer.status_code == 500
    assert [len(tier.requests) for tier in gateway.tiers] == [1, 1, 0, 0]
    record = await only_record(gateway, gateway.tier(1).requests[0].request_id)
    assert (record.status, record.http_status) == ("error", 500)
    assert [attempt.tier for attempt in record.attempts] == [1, 2]


async def test_a_pinned_tier_is_never_replaced(gateway: RunningGateway) -> None:
    gateway.tier(2).fail_at, gateway.tier(2).error = 0, TierUnavailableError("queue full")
    with pytest.raises(openai.InternalServerError) as caught:
        await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"]
    assert not gateway.tier(3).requests


async def test_the_callers_own_mistake_is_not_tried_elsewhere(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at, gateway.tier(1).error = 0, TierRequestError("token 9 is unknown", "logit_bias")
    with pytest.raises(openai.BadRequestError) as caught:
        await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    assert caught.value.param == "logit_bias"
    assert not gateway.tier(2).requests


async def test_the_fall_over_keeps_to_the_maximum_cost(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at = 0
    answer = await gateway.http.post(
        "/v1/chat/completions", json={"model": "auto", "messages": HELLO}, headers={"x-aio-max-cost": "0.0001"}
    )
    assert answer.status_code == 500
    assert not gateway.tier(2).requests


async def test_a_tier_that_is_down_is_passed_over(gateway: RunningGateway) -> None:
    gateway.tier(1).health = TierLoad(healthy=False)
    gateway.tier(2).fail_at = 0
    gateway.tier(3).health = TierLoad(healthy=False)
    answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO})
    assert answer.headers["x-aio-tier"] == "4"
    record = (await gateway.http.get(f"/v1/requests/{answer.headers['x-aio-decision-id']}")).json()
    assert "not tier 1: the tier is down" in record["decision"]["reason"]


async def test_no_healthy_tier_is_503_with_the_reasons(gateway: RunningGateway) -> None:
    for tier in gateway.tiers:
        tier.health = TierLoad(healthy=False, down_seconds=tier.number + 4.5)
    answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "6", "clients that retry earlier give up before any is asked again"
    assert answer.json()["error"]["code"] == "no_tier_available"
    assert json.dumps(answer.json()).count("the tier is down") == 4
    assert answer.json()["error"]["message"].endswith("Try again later.")
