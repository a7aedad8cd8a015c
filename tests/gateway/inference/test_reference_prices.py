"""What a strongest answer usually costs a caller: by key and system prompt, and bounded."""

import time

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.features.routing_input import app_of
from classifier.policy.decide import decide
from gateway.base.inference_request import Caller
from gateway.inference.router import RoutingService
from gateway.inference.served_catalogue import MOST, OWN_WEIGHT, ReferencePrices
from tests.gateway.chats import chat
from tests.quality.loop_world import record, store_request
from tests.support.scripted_classifier import ScriptedClassifier
from tiers.catalog.consent import Consent
from tiers.catalog.load import load_catalog
from tiers.conversation import Turn


@pytest.fixture
def engine(any_engine: AsyncEngine) -> AsyncEngine:
    return any_engine


def test_before_any_request_a_prompt_is_compared_with_itself() -> None:
    assert ReferencePrices().of("k", "", 0.25) == 0.25
    assert ReferencePrices().of("k", "app", 0.25) == pytest.approx(0.25)


def test_the_mean_of_a_key_replaces_the_prompts_own_price_as_requests_come() -> None:
    prices = ReferencePrices()
    for _ in range(int(OWN_WEIGHT)):
        prices.observe("k", "", 1.0)
    assert prices.of("k", "", 9.0) == pytest.approx(5.0)
    for _ in range(2000):
        prices.observe("k", "", 1.0)
    assert prices.of("k", "", 9.0) == pytest.approx(1.0, abs=0.2)
    assert prices.of("other", "", 9.0) == 9.0


def test_a_system_prompt_has_a_mean_of_its_own_once_it_has_requests_enough() -> None:
    prices = ReferencePrices()
    for _ in range(500):
        prices.observe("k", "long", 10.0)
        prices.observe("k", "short", 1.0)
    assert prices.of("k", "long", 10.0) == pytest.approx(10.0, rel=0.1)
    assert prices.of("k", "short", 1.0) == pytest.approx(1.0, rel=0.3)
    assert prices.of("k", "new", 1.0) == pytest.approx(5.5, rel=0.1)


def test_old_prices_are_forgotten() -> None:
    prices = ReferencePrices()
    for usd in (1.0, 2.0):
        for _ in range(5000):
            prices.observe("k", "", usd)
    assert prices.of("k", "", 2.0) == pytest.approx(2.0, rel=0.01)
    prices.clear()
    assert prices.of("k", "", 3.0) == 3.0


def test_the_least_recently_used_are_forgotten_beyond_the_bound() -> None:
    prices = ReferencePrices()
    for _ in range(200):
        prices.observe("steady", "", 1.0)
    for number in range(MOST - 1):
        prices.observe(f"k{number}", "", 1.0)
        if number == MOST // 2:
            prices.observe("steady", "", 1.0)
    prices.observe("one more", "", 1.0)
    assert prices.of("steady", "", 10.0) < 3.0
    assert prices.of("k0", "", 10.0) == 10.0


async def test_after_a_restart_a_keys_mean_is_that_of_its_stored_requests(engine: AsyncEngine) -> None:
    for number in range(20):
        await store_request(engine, record(f"r{number}", created_at=2000.0 + number, key_id="alice"))
    usual = record("r").decision.inputs.costs
    prices = ReferencePrices()
    await prices.restore(engine, len(usual))
    assert prices.of("alice", "", 10.0) == pytest.approx((OWN_WEIGHT * 10.0 + 20 * usual[-1]) / (OWN_WEIGHT + 20))
    assert prices.of("bob", "", 10.0) == 10.0
    other = ReferencePrices()
    await other.restore(engine, len(usual) + 1)
    assert other.of("alice", "", 10.0) == 10.0, "of another ladder"


async def test_after_a_restart_a_system_prompts_mean_is_that_of_its_stored_requests(engine: AsyncEngine) -> None:
    usual = record("r").decision
    for number in range(40):
        app, usd = ("dear", 10.0) if number % 2 else ("cheap", 1.0)
        inputs = msgspec.structs.replace(usual.inputs, costs=[*usual.inputs.costs[:-1], usd], app=app)
        decided = msgspec.structs.replace(usual, inputs=inputs)
        await store_request(engine, record(f"r{number}", created_at=2000.0 + number, key_id="alice", decision=decided))
    before, after = ReferencePrices(), ReferencePrices()
    for number in range(40):
        before.observe("alice", "dear" if number % 2 else "cheap", 10.0 if number % 2 else 1.0)
    await after.restore(engine, len(usual.inputs.costs))
    for app in ("dear", "cheap", "new"):
        assert after.of("alice", app, 5.0) == before.of("alice", app, 5.0)
    assert after.of("alice", "dear", 5.0) > after.of("alice", "new", 5.0) > after.of("alice", "cheap", 5.0)


def test_the_system_prompt_of_a_decision_is_known_to_its_record_where_the_caller_consents() -> None:
    routing = RoutingService(load_catalog("laptop"), {}, ScriptedClassifier(), None)
    turns = [Turn.of("system", "Answer in French."), Turn.of("user", "Hello")]
    known = routing.route(chat(messages=turns)).inputs.app
    assert known == app_of("Answer in French.")
    kept = chat(messages=turns, own_consent=Consent(reuse=False))
    assert routing.route(kept).inputs.app == ""
    assert routing.route(chat("Hello")).inputs.app == ""


async def test_requests_of_this_process_are_not_counted_twice(engine: AsyncEngine) -> None:
    prices = ReferencePrices()
    late = record("late", created_at=time.time() + 10.0, key_id="alice")
    await store_request(engine, late)
    await prices.restore(engine, len(late.decision.inputs.costs))
    assert prices.of("alice", "", 10.0) == 10.0


def test_a_prompt_much_longer_than_usual_goes_to_a_cheaper_tier_and_dry_runs_teach_nothing() -> None:
    classifier = ScriptedClassifier()
    classifier.p_ok = (0.5, 0.6, 0.7, 1.0)
    routing = RoutingService(load_catalog("laptop"), {}, classifier, "careful")
    usual, long = chat("Which fruit is red?"), chat("Which of these is red? " + "apple " * 20_000)
    for _ in range(200):
        routing.route(usual)
    assert routing.route(long).tier == 4
    for _ in range(200):
        assert routing.routed(usual).decision.tier == 4
    decision = routing.route(long)
    assert decision.tier == 1
    assert decision.inputs.costs[-1] > 3 * decision.inputs.reference
    assert decide(decision.inputs) == decision
    # Another caller's prompts are compared with their own.
    assert routing.route(chat("Which of these is red? " + "apple " * 20_000, caller=Caller(key_id="bob"))).tier == 4
