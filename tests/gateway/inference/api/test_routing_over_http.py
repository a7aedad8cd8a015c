"""Routing as callers steer and see it: the x-aio headers, the dry run, and the heuristic behind the classifier."""

from typing import Any

import pytest

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from tests.support.app import RunningGateway
from tiers.tier import TierLoad

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


async def chosen(gateway: RunningGateway, headers: dict[str, str] | None = None, **fields: Any) -> int:
    body = {"model": "auto", "messages": HELLO, **fields}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.headers["x-aio-tier"])


async def test_a_prompt_that_every_tier_answers_well_goes_to_the_cheapest(gateway: RunningGateway) -> None:
    assert await chosen(gateway) == 1


async def test_a_prompt_that_only_the_strongest_answers_well_goes_there(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = (0.1, 0.2, 0.3, 1.0)
    assert await chosen(gateway) == 4


async def test_a_higher_quality_target_never_lowers_the_tier(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = (0.8, 0.82, 0.9, 1.0)
    tiers = [await chosen(gateway, {"x-aio-quality": str(target)}) for target in (0, 0.25, 0.5, 0.75, 0.9, 0.99, 1)]
    assert tiers == sorted(tiers)
    assert (tiers[0], tiers[-1]) == (1, 4)


@pytest.mark.parametrize(("setting", "target"), QUALITY_SETTINGS.items())
async def test_a_named_setting_is_its_quality_target(gateway: RunningGateway, setting: str, target: float) -> None:
    answer = await gateway.http.post("/v1/route", json={"messages": HELLO}, headers={"x-aio-quality": setting})
    assert answer.json()["decision"]["inputs"]["quality_target"] == target


async def test_the_minimum_tier_is_kept(gateway: RunningGateway) -> None:
    assert await chosen(gateway, {"x-aio-min-tier": "3"}) == 3


async def test_the_maximum_cost_is_kept(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = (0.1, 0.2, 0.3, 1.0)
    assert await chosen(gateway, {"x-aio-max-cost": "0.0005"}) == 2


async def test_a_maximum_cost_below_every_tier_is_refused_by_name(gateway: RunningGateway) -> None:
    body = {"model": "auto", "messages": HELLO}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers={"x-aio-max-cost": "0"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-aio-max-cost"


async def test_a_pinned_tier_below_the_minimum_is_the_callers_mistake(gateway: RunningGateway) -> None:
    body = {"model": "tier-1", "messages": HELLO}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers={"x-aio-min-tier": "3"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-aio-min-tier"


async def test_a_request_that_only_a_tier_that_is_down_could_hold_is_503(gateway: RunningGateway) -> None:
    for tier in gateway.tiers[:3]:
        tier.max_context = 5
    gateway.tier(4).health = TierLoad(healthy=False)
    try:
        answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO})
    finally:
        for tier in gateway.tiers[:3]:
            tier.max_context = 256
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_tier_available"


async def test_a_tier_whose_queue_is_longer_than_the_deadline_is_passed_over(gateway: RunningGateway) -> None:
    gateway.tier(1).health = TierLoad(predicted_wait_seconds=30)
    assert await chosen(gateway) == 1
    assert await chosen(gateway, {"x-aio-deadline-ms": "500"}) == 2


async def test_without_a_deadline_the_knob_says_how_long_a_queue_is_passed_over(gateway: RunningGateway) -> None:
    gateway.tier(1).health = TierLoad(predicted_wait_seconds=30)
    knobs = gateway.serving.service.routing.knobs
    knobs.change({"queue_seconds": 10})
    try:
        assert await chosen(gateway) == 2
        assert await chosen(gateway, service_tier="flex") == 1
        assert await chosen(gateway, {"x-aio-deadline-ms": "40000"}) == 1
        assert await chosen(gateway, model="tier-1") == 1
    finally:
        knobs.change({"queue_seconds": 0})


async def test_the_deadline_reaches_the_tier_as_a_moment(gateway: RunningGateway) -> None:
    await chosen(gateway, {"x-aio-deadline-ms": "5000"}, model="tier-1")
    await chosen(gateway, model="tier-1")
    explicit, objective = gateway.tier(1).requests
    assert explicit.deadline is not None
    assert explicit.deadline - explicit.arrival == pytest.approx(5.0)
    assert objective.deadline is not None
    assert objective.deadline - objective.arrival == pytest.approx(1.0)  # the catalogue's 1,000 ms
    # A late answer is worth nothing to those who said so; a missed objective is merely a pity.
    assert (explicit.strict_deadline, objective.strict_deadline) == (True, False)


async def test_a_tier_with_too_short_a_context_is_passed_over(gateway: RunningGateway) -> None:
    try:
        # The prompt has six tokens, and an answer one at least.
        for context, tier in ((5, 2), (6, 2), (7, 1)):
            gateway.tier(1).max_context = context
            assert await chosen(gateway) == tier
    finally:
        gateway.tier(1).max_context = 256


async def test_a_dry_run_shows_the_decision_and_generates_nothing(gateway: RunningGateway) -> None:
    answer = await gateway.http.post("/v1/route", json={"prompt": "Why is the sky blue?"})
    routing = answer.json()
    assert (routing["tier"], routing["model"]) == (1, "smollm2-int4")
    assert routing["p_ok"] == [0.999, 0.999, 0.999, 1.0]
    assert routing["costs_usd"] == sorted(routing["costs_usd"])
    assert "tier 1 has the highest utility, with P(good enough) 1.00" in routing["reason"]
    assert "which counts as 30 points of P" in routing["reason"]
    assert routing["decision"]["inputs"]["prediction"]["classifier_version"] == "scripted"
    assert not any(tier.requests for tier in gateway.tiers)


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": HELLO}, {"messages": []}])
async def test_a_dry_run_needs_a_prompt_or_messages(gateway: RunningGateway, body: dict[str, Any]) -> None:
    answer = await gateway.http.post("/v1/route", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


async def test_a_classifier_that_fails_is_replaced_by_the_length_heuristic(gateway: RunningGateway) -> None:
    gateway.classifier.error = RuntimeError("artefact broken")
    short = (await gateway.http.post("/v1/route", json={"prompt": "Hi"})).json()
    long = (await gateway.http.post("/v1/route", json={"prompt": "Explain why this is so. " * 30})).json()
    assert short["decision"]["inputs"]["prediction"]["kind"] == "heuristic"
    assert short["tier"] < long["tier"]
    assert await chosen(gateway) == short["tier"]


async def test_the_classifier_sees_a_short_turn_after_the_one_it_goes_on_with_and_counts(
    gateway: RunningGateway,
) -> None:
    messages = [
        {"role": "system", "content": "Secret instructions."},
        {"role": "user", "content": "First."},
        {"role": "assistant", "content": "Answer."},
        {"role": "user", "content": "Second."},
    ]
    await chosen(gateway, messages=messages, max_tokens=20)
    seen = gateway.classifier.seen[-1]
    assert (seen.turn, seen.user_turns, seen.assistant_turns, seen.max_tokens) == ("First. Second.", 2, 1, 20)
