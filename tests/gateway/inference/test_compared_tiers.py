"""Cheap tiers answer at once; what they agree on is sent, else the tier above answers. All are billed."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from classifier.policy.agreement import AgreementSettings
from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from gateway.base.inference_request import InferenceRequest
from gateway.base.settings import Settings
from gateway.inference.agreement import Agreements
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.inference.service import Service
from gateway.tenancy.admission import max_cost_usd
from gateway.tenancy.budgets.lease_book import microusd
from quality.verification.comparison import read_agreements
from tests.gateway.batches.batching import made, outcome, request_line
from tests.gateway.chats import chat
from tests.gateway.inference.api.test_disconnects import only_record
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, running_gateway, scripted_tiers
from tests.support.scripted_classifier import ScriptedClassifier
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.consent import Consent
from tiers.catalog.load import load_catalog
from tiers.conversation import ToolCallDelta
from tiers.errors import ReplicaTry, TierError
from tiers.tier import Delta, TierLoad

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "Which number is larger?\nA) 9.11\nB) 9.9\nAnswer with the letter."
MODELS = {1: "smollm2-int4", 2: "smollm2-bf16", 3: "smollm2-bf16", 4: "smollm2-bf16"}
ASKED = {"x-aio-agree": "true"}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "ticket",
        "schema": {
            "type": "object",
            "properties": {"level": {"enum": ["low", "high"]}, "why": {"type": "string"}},
            "required": ["level", "why"],
        },
    },
}


@pytest.fixture(autouse=True)
def doubtful(gateway: RunningGateway) -> None:
    """No cheap tier is good enough alone, and nothing was compared before."""
    gateway.classifier.p_ok = (0.6, 0.6, 0.65, 1.0)
    gateway.serving.service.agreements.table = AgreementTable()


# Weak tiers, of which it is not certain that agreement pays.
WEAK = (0.3, 0.4, 0.7, 1.0)


def say(gateway: RunningGateway, *answers: str) -> None:
    for tier, words in zip(gateway.tiers, answers, strict=False):
        tier.words = (words,)


async def ask(gateway: RunningGateway, headers: dict[str, str] = ASKED, **more: Any) -> httpx.Response:
    body = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]} | more
    return await gateway.http.post("/v1/chat/completions", json=body, headers={"x-aio-cache": "off"} | headers)


async def attempts(gateway: RunningGateway, answer: httpx.Response) -> list[tuple[int, str]]:
    """The attempts of the record, whose costs are the bill."""
    assert answer.status_code == 200, answer.text
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert record.cost_usd == pytest.approx(sum(attempt.cost_usd for attempt in record.attempts))
    assert float(answer.headers["x-aio-cost-usd"]) == pytest.approx(record.cost_usd, rel=1e-6)
    assert all(attempt.cost_usd > 0 for attempt in record.attempts)
    return [(attempt.tier, attempt.status) for attempt in record.attempts]


async def test_the_middles_answer_is_sent_where_a_cheaper_one_agrees_and_both_are_billed(
    gateway: RunningGateway,
) -> None:
    say(gateway, "A", "The answer is A.")
    answer = await ask(gateway)
    assert answer.json()["choices"][0]["message"]["content"] == "The answer is A."
    assert (answer.headers["x-aio-tier"], answer.headers["x-aio-agreed"]) == ("2", "true")
    assert await attempts(gateway, answer) == [(1, "agreed"), (2, "ok")]
    assert not gateway.tier(4).requests
    metrics = (await gateway.http.get("/metrics")).text
    assert 'aio_agreements_total{kind="choice",outcome="agreed",tier="2"} 1.0' in metrics


async def test_each_answer_names_the_replicas_that_were_asked_for_it_once(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(gateway, "A", "A")
    asked = ReplicaTry(replica="http://one.example", outcome="answered", seconds=0.1)

    def by_replica(said: Callable[..., Delta], *given: Any, **more: Any) -> Delta:
        delta = said(*given, **more)
        delta.tries = [asked]
        return delta

    for tier in gateway.tiers[:2]:
        monkeypatch.setattr(tier, "_said", partial(by_replica, tier._said))
    answer = await ask(gateway)
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert answer.headers["x-aio-agreed"] == "true"
    assert [attempt.replicas for attempt in record.attempts] == [[asked], [asked]]
    shown = (await gateway.http.get(f"/v1/requests/{record.request_id}")).json()
    assert [attempt["replicas"][0]["replica"] for attempt in shown["attempts"]] == ["replica 1"] * 2


async def test_where_they_differ_the_strongest_is_asked(gateway: RunningGateway) -> None:
    say(gateway, "A", "B", "", "B, since 0.9 is more than 0.11.")
    answer = await ask(gateway)
    assert (answer.headers["x-aio-tier"], answer.headers["x-aio-agreed"]) == ("4", "false")
    assert await attempts(gateway, answer) == [(1, "differed"), (2, "differed"), (4, "ok")]


async def test_both_are_asked_at_the_same_time(gateway: RunningGateway) -> None:
    say(gateway, "A", "A")
    gateway.tier(1).hold_at = gateway.tier(2).hold_at = 0
    asked = asyncio.create_task(ask(gateway))
    await gateway.tier(1).holding.wait()
    await gateway.tier(2).holding.wait()
    gateway.tier(1).go.set()
    gateway.tier(2).go.set()
    assert (await asked).headers["x-aio-agreed"] == "true"


@pytest.mark.parametrize(("level", "agreed"), [("high", "true"), ("low", "false")])
async def test_of_a_schema_the_checkable_fields_count_alone(gateway: RunningGateway, level: str, agreed: str) -> None:
    say(
        gateway, '{"level": "high", "why": "it burns"}', f'{{"why": "there is a fire", "level": "{level}"}}', "",
        '{"level": "low", "why": "no"}',
    )  # fmt: skip
    answer = await ask(gateway, response_format=SCHEMA)
    assert answer.headers["x-aio-agreed"] == agreed


@pytest.mark.parametrize(("failing", "other"), [(1, 2), (2, 1)])
async def test_a_partner_that_fails_is_no_failure_and_the_other_answer_is_not_waited_for(
    gateway: RunningGateway, failing: int, other: int
) -> None:
    say(gateway, "A", "A", "", "B")
    gateway.tier(failing).fail_at, gateway.tier(failing).error = 0, TierError("broke")
    gateway.tier(other).words, gateway.tier(other).hold_at = ("A", "."), 1  # for good
    answer = await ask(gateway)
    assert answer.headers["x-aio-tier"] == "4"
    found = await attempts(gateway, answer)
    assert found == [*sorted([(failing, "error"), (other, "aborted")]), (4, "ok")]


async def test_a_tier_that_was_not_waited_for_answers_where_the_strongest_fails(gateway: RunningGateway) -> None:
    say(gateway, "A", "B")
    gateway.tier(1).fail_at = gateway.tier(4).fail_at = gateway.tier(4).hold_at = gateway.tier(2).hold_at = 0
    asked = asyncio.create_task(ask(gateway))
    await gateway.tier(4).holding.wait()
    gateway.tier(2).go.set()
    gateway.tier(4).go.set()
    answer = await asked
    assert answer.json()["choices"][0]["message"]["content"] == "B"
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    found = [(one.tier, one.status) for one in record.attempts]
    assert found == [(1, "error"), (2, "aborted"), (4, "error"), (2, "ok")]
    assert record.cost_usd == pytest.approx(sum(one.cost_usd for one in record.attempts))


@pytest.mark.parametrize(
    ("first", "middle", "held", "answers"),
    [
        ("A", "A", 2, 3),  # they agree whatever tier 2 says
        ("A", "B", 1, 3),  # tiers 2 and 3 agree whatever tier 1 says
        ("A", "none", 2, 4),  # nothing agrees with an answer that chooses nothing
    ],
)
async def test_of_three_tiers_those_are_waited_for_that_may_change_what_is_sent(
    first: str, middle: str, held: int, answers: int
) -> None:
    service, tiers, _ = serving_alone(AgreementSettings(price_share=1.0), p_ok=(0.9, 0.9, 0.9, 1.0))
    for tier, words in zip(tiers, (first, middle, middle, "B"), strict=True):
        tier.words = (words,)
    tiers[held - 1].hold_at = 0  # for good
    answer = await service.complete(asking(quality_target=0.95))
    assert answer.tier.number == answers
    assert tiers[held - 1].closed_early == 1
    assert [len(tier.requests) for tier in tiers] == [1, 1, 1, answers == 4]


async def test_the_best_cheap_answer_is_sent_where_the_strongest_fails(gateway: RunningGateway) -> None:
    say(gateway, "A", "B")
    gateway.tier(4).fail_at = 0
    answer = await ask(gateway)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "B"
    assert answer.headers["x-aio-agreed"] == "false"
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert [(one.tier, one.status) for one in record.attempts] == [(1, "differed"), (4, "error"), (2, "ok")]
    assert record.cost_usd == pytest.approx(sum(one.cost_usd for one in record.attempts))
    assert record.completion_tokens == 1


async def test_of_two_paid_answers_the_one_that_is_more_likely_good_is_sent_where_the_strongest_fails(
    gateway: RunningGateway,
) -> None:
    gateway.classifier.p_ok = (0.65, 0.6, 0.65, 1.0)
    say(gateway, "A", "B")
    gateway.tier(4).fail_at = 0
    answer = await ask(gateway)
    assert answer.json()["choices"][0]["message"]["content"] == "A"
    assert await attempts(gateway, answer) == [(2, "differed"), (4, "error"), (1, "ok")]


async def test_the_best_cheap_answer_is_sent_where_the_strongest_is_down_by_then(gateway: RunningGateway) -> None:
    say(gateway, "A", "B")
    gateway.tier(2).hold_at = 0
    asked = asyncio.create_task(ask(gateway))
    await gateway.tier(2).holding.wait()
    gateway.tier(4).health = TierLoad(healthy=False)
    gateway.tier(2).go.set()
    answer = await asked
    assert answer.json()["choices"][0]["message"]["content"] == "B"
    assert await attempts(gateway, answer) == [(1, "differed"), (2, "ok")]
    assert not gateway.tier(4).requests


def serving_alone(
    settings: AgreementSettings | None = None, p_ok: tuple[float, ...] = WEAK, catalogue: str = "laptop"
) -> tuple[Service, list[ScriptedTier], RoutingKnobFile]:
    """A service that compares, without HTTP."""
    tiers, classifier, knobs = scripted_tiers(), ScriptedClassifier(), RoutingKnobFile()
    classifier.p_ok = p_ok
    routing = RoutingService(load_catalog(catalogue), {tier.number: tier for tier in tiers}, classifier, None)
    return Service(routing, [], agreements=Agreements(knobs, routing, settings)), tiers, knobs


def asking(**more: Any) -> InferenceRequest:
    return chat(QUESTION, **{"agree": True} | more)


async def test_tokens_count_when_their_tier_gave_them_not_when_the_comparison_ended() -> None:
    service, tiers, _ = serving_alone()
    tiers[0].words, tiers[1].words = ("A",), ("A", ".")
    tiers[0].hold_at, tiers[1].hold_at = 0, 1
    asked = asyncio.create_task(service.complete(asking()))
    await tiers[1].holding.wait()
    before = time.monotonic()
    tiers[1].go.set()
    await tiers[1].ended.wait()
    ended = time.monotonic()
    tiers[0].go.set()
    stamps = (await asked).stamps
    assert stamps.first_made is not None
    assert stamps.last_made is not None
    assert stamps.first_made <= before <= stamps.last_made <= ended


@pytest.mark.parametrize("allowed", [{1, 4}, {1, 2, 4}])
async def test_a_tier_that_may_not_see_the_request_is_no_partner(allowed: set[int]) -> None:
    service, tiers, _ = serving_alone()
    for tier in tiers:
        tier.words = ("A",)
    answer = await service.complete(asking(own_consent=Consent(tiers=frozenset(allowed))))
    asked = {tier.number for tier in tiers if tier.requests}
    assert (asked, answer.agreed) == (({1, 2}, True) if 2 in allowed else ({4}, None))


async def test_a_budget_that_covers_all_that_may_be_asked_is_enough_and_a_smaller_one_leaves_one_tier(
    tmp_path: Path,
) -> None:
    async with running_gateway(Settings(data_dir=str(tmp_path), monitor=False)) as gateway:
        request, served = asking(max_tokens=8), gateway.serving.routing.served
        usd = {number: max_cost_usd(request, served.tier(number), served.spec(number)) for number in (1, 2, 3, 4)}
        whole = usd[1] + usd[2] + usd[4]
        second, third = (0.5, 0.95, 0.96, 1.0), (0.5, 0.6, 0.95, 1.0)
        # Where routing chose tier 3, which is dearer than that but not compared, nothing is held for it.
        assert usd[3] > whole
        cases = [(second, 0.9, [2]), (second, 1.0, [1, 2]), (third, 1.0, [1, 2]), (third, 100.0, [1, 2])]
        for place, (p_ok, share, tiers) in enumerate(cases):
            gateway.reset()
            gateway.classifier.p_ok, gateway.classifier.kind, amount = p_ok, "prior", share * whole
            say(gateway, "A", "A", "", "A")
            name = f"compared {place}"
            key = await gateway.key(name)
            await gateway.budget(name, amount + 2e-6)
            answer = await ask(gateway, ASKED | bearer(key), max_tokens=8)
            assert answer.status_code == 200, answer.text
            assert [tier.number for tier in gateway.tiers if tier.requests] == tiers
            assert float(answer.headers["x-aio-cost-usd"]) <= amount
            record = await only_record(gateway, answer.headers["x-aio-decision-id"])
            control = gateway.serving.service._admission_control
            assert control is not None
            *_, part = control._budget_leases._slices.values()
            assert (part.held, part.spent) == (0, microusd(record.cost_usd))


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ({}, {}),
        ({"x-aio-agree": "false"}, {}),
        (ASKED | {"x-aio-max-cost": "0.0000001"}, {}),
        (ASKED | {"x-aio-deadline-ms": "60000"}, {}),
        (ASKED, {"n": 2}),
        (ASKED, {"model": "tier-4"}),
        (ASKED, {"messages": [{"role": "user", "content": "Write a poem about rivers."}]}),
        (
            ASKED,
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
        ),
    ],
    ids=["not asked", "refused", "cost", "deadline", "choices", "pinned", "open", "forced tool"],
)
async def test_one_tier_answers_where_nothing_may_be_compared(
    gateway: RunningGateway, headers: dict[str, str], more: dict[str, Any]
) -> None:
    say(gateway, "A", "A", "A", "A")
    gateway.classifier.p_ok = WEAK
    if "tools" in more:
        for tier in gateway.tiers:
            tier.calls = (ToolCallDelta(index=0, id="call_1", name="f", arguments="{}"),)
    answer = await ask(gateway, headers, **more)
    assert "x-aio-agreed" not in answer.headers
    assert sum(len(tier.requests) for tier in gateway.tiers) <= 1


async def test_a_caller_that_leaves_frees_both_and_pays_for_both(gateway: RunningGateway) -> None:
    say(gateway, "A", "A")
    for tier in gateway.tiers[:2]:
        tier.words, tier.hold_at = ("A", " and"), 1
    asked = asyncio.create_task(ask(gateway))
    await gateway.tier(1).holding.wait()
    await gateway.tier(2).holding.wait()
    asked.cancel()
    await gateway.tier(1).ended.wait()
    await gateway.tier(2).ended.wait()
    assert (gateway.tier(1).closed_early, gateway.tier(2).closed_early) == (1, 1)
    await eventually(lambda: gateway.serving.service.in_flight == 0)
    page = await eventually(lambda: _aborted(gateway))
    assert [(one["tier"], one["status"]) for one in page["attempts"]] == [(1, "aborted"), (2, "aborted")]
    assert page["cost_usd"] == pytest.approx(sum(one["cost_usd"] for one in page["attempts"]))
    assert page["cost_usd"] > 0


async def _aborted(gateway: RunningGateway) -> dict[str, Any] | None:
    rows = (await gateway.http.get("/admin/api/requests", params={"status": "aborted"})).json()["rows"]
    if not rows:
        return None
    found: dict[str, Any] = (await gateway.http.get(f"/v1/requests/{rows[0]['request_id']}")).json()
    return found


async def test_lines_of_a_batch_are_compared_where_the_knob_says_so(gateway: RunningGateway) -> None:
    say(gateway, "A", "A", "", "B")
    gateway.serving.routing.knobs.change({"agreement": "always"})
    try:
        line = request_line("one", model="auto", messages=[{"role": "user", "content": QUESTION}])
        batch, output, _ = await outcome(gateway.openai, (await made(gateway.openai, [line])).id)
    finally:
        gateway.serving.routing.knobs.change({"agreement": "verified"})
    assert (batch.status, output["one"]["response"]["body"]["model"]) == ("completed", "smollm2-bf16")
    assert [len(tier.requests) for tier in gateway.tiers] == [1, 1, 0, 0]


async def test_verified_comparisons_that_say_so_are_enough(gateway: RunningGateway) -> None:
    say(gateway, "A", "A", "", "B")
    gateway.classifier.p_ok = WEAK
    assert "x-aio-agreed" not in (await ask(gateway, {})).headers
    table = gateway.serving.service.agreements.table
    place = AgreementPlace("", "", "", "choice")
    for _ in range(20):
        table.compared(place, (1, 2), True)
        table.verified(place, (1, 2), 0.0)
    assert (await ask(gateway, {})).headers["x-aio-agreed"] == "true"


@pytest.mark.parametrize(("catalogue", "tiers"), [("datacenter", [1, 1, 0, 0]), ("laptop", [0, 0, 0, 1])])
async def test_no_comparison_is_waited_for_where_ladders_agree_enough_for_these_prices(
    catalogue: str, tiers: list[int]
) -> None:
    """Tiers of the laptop have the same weights, so that they err alike."""
    service, scripted, _ = serving_alone(p_ok=(0.6, 0.6, 0.65, 1.0), catalogue=catalogue)
    for tier in scripted:
        tier.words = ("A",)
    await service.complete(asking(agree=None))
    assert [len(tier.requests) for tier in scripted] == tiers


async def test_what_was_compared_is_counted_again_after_a_restart(gateway: RunningGateway) -> None:
    agreements = gateway.serving.service.agreements
    await gateway.serving.records.flush()
    before = await read_agreements(gateway.serving.database, MODELS)
    say(gateway, "A", "A", "", "B")
    agreed = await ask(gateway)
    say(gateway, "A", "B", "", "B")
    differed = await ask(gateway)
    for answer in (agreed, differed):
        await only_record(gateway, answer.headers["x-aio-decision-id"])
    await gateway.serving.records.flush()
    after = await read_agreements(gateway.serving.database, MODELS)
    place = AgreementPlace("", "", "", "choice")
    (*_, old), (*_, new) = before.levels(place, (1, 2)), after.levels(place, (1, 2))
    assert (new.compared - old.compared, new.agreed - old.agreed) == (2, 1)
    assert (await read_agreements(gateway.serving.database, {1: "another", 2: "model"})).levels(place, (1, 2))[
        -1
    ].compared == 0
    await agreements.catch_up(gateway.serving.database)
    assert agreements.table.levels(place, (1, 2))[-1].compared == new.compared


@pytest.mark.parametrize(
    ("fields", "knob", "is_compared"),
    [
        ({}, False, False),
        ({"may_wait": True}, False, True),
        ({}, True, True),
        ({"may_wait": False}, True, False),
        ({"agree": False, "may_wait": True}, True, False),
    ],
)
async def test_a_stream_is_compared_where_it_pays_and_its_first_byte_may_wait(
    fields: dict[str, Any], knob: bool, is_compared: bool
) -> None:
    service, _, knobs = serving_alone(p_ok=(0.6, 0.6, 0.65, 1.0), catalogue="datacenter")
    knobs.change({"streams_may_wait": knob})
    request = asking(**{"stream": True, "agree": None} | fields)
    assert service.agreements is not None
    assert (service.agreements.plan(request, service.routing.routed(request).decision) is not None) is is_compared
