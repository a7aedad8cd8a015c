"""What a strongest answer usually costs a caller: by key and system prompt, and bounded."""

import pytest

from classifier.policy.decide import decide
from gateway.base.requests.caller import Caller
from gateway.inference.routing.reference_prices import MOST, OWN_WEIGHT, ReferencePrices
from gateway.inference.routing.router import RoutingService
from tests.gateway.chats import chat
from tests.gateway.scripted_classifier import ScriptedClassifier
from tiers.catalog.load import load_catalog


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
