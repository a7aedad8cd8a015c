"""Rules of the catalogue: which requests they match, what they leave together, and what is said of them."""

from datetime import datetime
from itertools import permutations
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.features.routing_input import routing_input
from classifier.policy.decide import decide
from gateway.base.inference_request import Caller, InferenceRequest
from gateway.inference.routing_rules import Matched, RoutingRules, script_of
from gateway.planning.backtests.backtest import dry_request
from tests.examples import examples
from tests.gateway.chained_tiers import BACKUP, HELLO, SECOND, ask, broken, chained_tiers
from tests.support.app import RunningGateway
from tiers.catalog.catalog import Catalog, RuleSpec, RuleWhen
from tiers.catalog.load import parse_catalog
from tiers.catalog.rule_check import bounds_of, routing_warnings
from tiers.conversation import Turn
from tiers.errors import CatalogError

NAMES = ("small", "medium", "large")
TIERS: list[dict[str, Any]] = [
    {"name": name, "url": "http://127.0.0.1:9/v1", "model": name,
     "price": {"input_usd_per_million": price, "output_usd_per_million": price}}
    for name, price in zip(NAMES, (1.0, 10.0, 100.0), strict=True)
]  # fmt: skip
TARGET = {"name": "backup", "url": "http://127.0.0.1:9/v1", "model": "b", "stands_for": "medium"}


def catalog(*rules: dict[str, Any], **fields: Any) -> Catalog:
    return parse_catalog({"name": "t", "tiers": TIERS, "targets": [TARGET], "rules": list(rules), **fields}, "here")


def problem(*rules: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(CatalogError) as caught:
        catalog(*rules, **fields)
    return str(caught.value)


def matched(rules: RoutingRules, text: str = "Hello", **fields: Any) -> Matched | None:
    at = fields.pop("created_at", None)
    request = dry_request([Turn.of("user", text)], **fields)
    if at is not None:
        request = msgspec.structs.replace(request, created_at=at)
    return rules.of(request, routing_input([{"role": "user", "content": text}]))


def applies(when: dict[str, Any], text: str = "Hello", **fields: Any) -> bool:
    rules = RoutingRules(catalog({"name": "r", "when": when, "floor": "medium"}))
    return matched(rules, text, **fields) is not None


def test_a_rule_without_conditions_matches_every_request() -> None:
    assert applies({})


def test_a_key_is_matched_by_its_id_or_its_name() -> None:
    caller = Caller(key_id="key-1", name="shop")
    assert applies({"key": ["key-1"]}, caller=caller)
    assert applies({"key": ["other", "shop"]}, caller=caller)
    assert not applies({"key": ["other"]}, caller=caller)
    assert not applies({"key": ["other"]})


def test_a_team_is_matched() -> None:
    assert applies({"team": ["legal"]}, caller=Caller(team="legal"))
    assert not applies({"team": ["legal"]}, caller=Caller(team="sales"))
    assert not applies({"team": ["legal"]})


def test_a_tag_is_a_value_of_the_metadata() -> None:
    assert applies({"tag": {"app": ["a", "b"]}}, metadata={"app": "b"})
    assert not applies({"tag": {"app": ["a"]}}, metadata={"app": "b"})
    assert applies({"tag": {"app": ["*"]}}, metadata={"app": "whatever"})
    assert not applies({"tag": {"app": ["*"]}}, metadata={"other": "x"})
    assert not applies({"tag": {"app": ["*"]}})


def test_all_conditions_of_a_rule_must_hold() -> None:
    when = {"team": ["legal"], "tag": {"app": ["a"]}}
    assert applies(when, caller=Caller(team="legal"), metadata={"app": "a"})
    assert not applies(when, caller=Caller(team="legal"), metadata={"app": "b"})
    assert not applies(when, caller=Caller(team="sales"), metadata={"app": "a"})


def test_tokens_are_those_that_routing_estimates_with_both_ends_included() -> None:
    tokens = routing_input([{"role": "user", "content": "word " * 40}]).prompt_tokens
    assert applies({"min_tokens": tokens, "max_tokens": tokens}, "word " * 40)
    assert not applies({"min_tokens": tokens + 1}, "word " * 40)
    assert not applies({"max_tokens": tokens - 1}, "word " * 40)


@pytest.mark.parametrize(
    ("hour", "clock", "holds"),
    [
        ("08:00-18:00", "08:00", True),
        ("08:00-18:00", "17:59", True),
        ("08:00-18:00", "18:00", False),
        ("08:00-18:00", "07:59", False),
        ("22:00-06:00", "23:30", True),
        ("22:00-06:00", "05:59", True),
        ("22:00-06:00", "06:00", False),
        ("22:00-06:00", "21:59", False),
    ],
)
@pytest.mark.parametrize("day", ["2026-01-15", "2026-07-15"])
def test_an_hour_is_that_of_its_time_zone_in_summer_and_winter(hour: str, clock: str, holds: bool, day: str) -> None:
    there = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=ZoneInfo("America/New_York"))
    when = {"hour": hour, "time_zone": "America/New_York"}
    assert applies(when, created_at=there.timestamp()) is holds


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("What is the capital of France?", "latin"),
        ("Où est la gare ? Привет", "latin"),
        ("Какая столица Франции?", "cyrillic"),
        ("Ποια είναι η πρωτεύουσα;", "greek"),
        ("ما هي عاصمة فرنسا؟", "arabic"),
        ("מהי בירת צרפת?", "hebrew"),
        ("फ़्रांस की राजधानी क्या है?", "devanagari"),
        ("เมืองหลวงของฝรั่งเศสคืออะไร", "thai"),
        ("法国的首都是哪里？", "han"),
        ("フランスのくにのなまえ", "kana"),
        ("프랑스의 수도는 어디인가요?", "hangul"),
        ("Ո՞րն է Ֆրանսիայի մայրաքաղաքը", "other"),
        ("12 + 30 = ?", None),
        ("", None),
    ],
)
def test_the_language_of_a_turn_is_the_script_of_most_letters(text: str, script: str | None) -> None:
    assert script_of(text) == script
    if script is not None:
        assert applies({"language": [script]}, text)
    others = [one for one in ("latin", "han") if one != script]
    assert not applies({"language": others}, text)


WHENS = st.builds(
    RuleWhen,
    team=st.none() | st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2),
    language=st.none() | st.just(["latin"]) | st.just(["han"]),
    min_tokens=st.none() | st.integers(0, 30),
)
RULES = st.lists(
    st.builds(
        RuleSpec,
        name=st.just("r"),
        when=WHENS,
        allow=st.none() | st.lists(st.sampled_from([*NAMES, "backup"]), min_size=1, max_size=4, unique=True),
        floor=st.none() | st.sampled_from(NAMES),
        target=st.none() | st.sampled_from([*NAMES, "backup"]),
        quality=st.none() | st.sampled_from([0.5, "careful"]),
    ),
    max_size=4,
)


def _given(when: RuleWhen) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(when).items() if value not in (None, {}, "UTC")}


def _table(rule: RuleSpec) -> dict[str, Any]:
    table = {name: value for name, value in msgspec.structs.asdict(rule).items() if value is not None}
    return table | {"when": _given(rule.when)}


@settings(max_examples=examples(150), deadline=None)
@given(rules=RULES, team=st.sampled_from(["a", "b", "c"]), text=st.sampled_from(["Hello", "法国", "word " * 40]))
def test_allowed_sets_intersect_and_the_highest_floor_holds_in_any_order(
    rules: list[RuleSpec], team: str, text: str
) -> None:
    kept = [msgspec.structs.replace(rule, name=f"rule {place}") for place, rule in enumerate(rules) if _is_valid(rule)]
    whole = catalog(*map(_table, kept))
    found = matched(RoutingRules(whole), text, caller=Caller(team=team))
    alone = [rule for rule in kept if matched(RoutingRules(catalog(_table(rule))), text, caller=Caller(team=team))]
    if not alone:
        assert found is None
        return
    assert found is not None
    assert found.names == [rule.name for rule in alone]
    left = frozenset.intersection(*(bounds_of(whole, rule).tiers for rule in alone))
    assert {1, 2, 3} - found.barred.keys() == left
    floors = [NAMES.index(rule.floor) + 1 for rule in alone if rule.floor is not None]
    assert found.floor == max(floors, default=1)
    # What no rule rules out is left by each of them: no rule takes back what another one forbids.
    for rule in alone:
        assert left <= bounds_of(whole, rule).tiers
    for order in permutations(kept):
        again = matched(RoutingRules(catalog(*map(_table, order))), text, caller=Caller(team=team))
        assert again is not None
        assert (again.barred.keys(), again.targets, again.floor) == (found.barred.keys(), found.targets, found.floor)


def test_a_target_stands_in_only_if_every_rule_with_a_list_names_it() -> None:
    with_it = {"name": "a", "allow": ["small", "medium", "backup"]}
    without, unlisted = {"name": "b", "allow": ["small", "medium"]}, {"name": "c", "floor": "small"}
    for rules, left in (
        ([with_it, unlisted], {"backup"}),
        ([with_it, without], set()),
        ([without, with_it], set()),
        ([unlisted], None),
    ):
        found = matched(RoutingRules(catalog(*rules)))
        assert found is not None
        assert found.targets == left


def _is_valid(rule: RuleSpec) -> bool:
    try:
        catalog(_table(rule))
    except CatalogError:
        return False
    return True


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            {"allow": ["huge"]},
            "rules 'r'.allow: 'huge' is not a tier or target; there are small, medium, large, backup",
        ),
        ({"floor": "backup"}, "rules 'r'.floor = 'backup': no such tier"),
        ({"target": "huge"}, "rules 'r'.target = 'huge': no such tier or target"),
        ({"allow": ["small"], "floor": "medium"}, "rules 'r'.floor = 'medium': is above every tier in allow"),
        ({"allow": ["small"], "target": "large"}, "rules 'r'.target = 'large': the rule's own allow or floor"),
        ({"allow": ["small"], "target": "backup"}, "rules 'r'.target = 'backup': the rule's own allow or floor"),
        ({"allow": ["small", "backup"], "target": "backup"}, "stands for medium, which the rule rules out"),
        ({"floor": "large", "target": "small"}, "rules 'r'.target = 'small': the rule's own allow or floor"),
        ({"allow": ["backup"]}, "rules 'r'.allow: names only targets"),
        ({}, "rules 'r': does nothing; give allow, floor, target or quality"),
        ({"floor": "medium", "when": {"hour": "8-18"}}, "rules 'r'.when.hour = '8-18': expected HH:MM-HH:MM"),
        ({"floor": "medium", "when": {"hour": "08:00-08:00"}}, "begins and ends at the same minute"),
        (
            {"floor": "medium", "when": {"hour": "08:00-18:00", "time_zone": "Mars/Olympus"}},
            "rules 'r'.when.time_zone = 'Mars/Olympus': this machine has no such time zone",
        ),
        ({"floor": "medium", "when": {"time_zone": "Europe/Berlin"}}, "when.time_zone: belongs to hour"),
        ({"floor": "medium", "when": {"min_tokens": 9, "max_tokens": 8}}, "rules 'r'.when.min_tokens = 9: above"),
        ({"floor": "medium", "when": {"language": ["french"]}}, "rules[0].when.language = ['french']"),
        ({"floor": "medium", "when": {"colour": ["red"]}}, "rules[0].when.colour = ['red']: unknown"),
        ({"quality": 2.0}, "rules[0].quality = 2.0"),
    ],
)
def test_a_rule_that_cannot_be_meant_refuses_the_catalogue_naming_rule_and_field(
    rule: dict[str, Any], said: str
) -> None:
    assert said in problem({"name": "r", **rule})


def test_two_rules_of_one_name_are_refused() -> None:
    assert "the name 'r' occurs 2 times" in problem({"name": "r", "floor": "medium"}, {"name": "r", "floor": "large"})


@pytest.mark.parametrize(
    ("fallback", "said"),
    [
        (["huge"], "tiers 'small'.fallback: 'huge' is not a tier or target"),
        (["tier-1"], "tiers 'small'.fallback: 'tier-1' is the tier itself"),
        (["large", "tier-3"], "tiers 'small'.fallback: 3 is listed more than once"),
    ],
)
def test_a_chain_that_cannot_be_meant_refuses_the_catalogue(fallback: list[str], said: str) -> None:
    assert said in problem(tiers=[TIERS[0] | {"fallback": fallback}, *TIERS[1:]])


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"name": "small"}, "targets 'small': another tier or target has this name"),
        ({"stands_for": "huge"}, "targets 'backup'.stands_for = 'huge': no such tier"),
        ({"fallback": ["large"]}, "targets 'backup'.fallback: 'large' is not another target"),
        ({"url": "ftp://x"}, "targets 'backup'"),
    ],
)
def test_a_target_that_cannot_be_meant_refuses_the_catalogue(target: dict[str, Any], said: str) -> None:
    assert said in problem(targets=[TARGET | target])


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            [{"name": "a", "allow": ["small"]}, {"name": "b", "floor": "large"}],
            "rules a and b: leave no tier together",
        ),
        (
            [{"name": "a", "target": "small"}, {"name": "b", "when": {"team": ["x"]}, "target": "large"}],
            "rule b: its target never applies, because rule a before it always does too",
        ),
        ([{"name": "a", "floor": "small"}], "rule a: allows every tier and target, so it changes nothing"),
    ],
)
def test_what_can_never_apply_is_warned_of(rules: list[dict[str, Any]], said: str) -> None:
    assert any(said in warning for warning in routing_warnings(catalog(*rules)))


def test_rules_that_no_request_can_match_together_are_no_conflict() -> None:
    for one, other in (
        ({"team": ["a"]}, {"team": ["b"]}),
        ({"tag": {"x": ["1"]}}, {"tag": {"x": ["2"]}}),
        ({"hour": "08:00-18:00"}, {"hour": "18:00-08:00"}),
        ({"max_tokens": 10}, {"min_tokens": 11}),
        ({"language": ["han"]}, {"language": ["latin"]}),
    ):
        rules = [{"name": "a", "when": one, "allow": ["small"]}, {"name": "b", "when": other, "floor": "large"}]
        assert not [said for said in routing_warnings(catalog(*rules)) if "together" in said]


RULED = """
[[rules]]
name = "research"
when = {{ tag = {{ project = ["research"] }} }}
allow = ["small", "medium"]

[[rules]]
name = "app"
when = {{ header = {{ "X-App" = ["checkout"] }} }}
floor = "medium"

[[rules]]
name = "reports"
when = {{ tag = {{ kind = ["report"] }} }}
target = "backup"

[[rules]]
name = "careful"
when = {{ tag = {{ kind = ["careful"] }} }}
quality = "careful"
"""
TARGETS = BACKUP.replace('model = "backup-model"', 'model = "backup-model"\nstands_for = "medium"')


async def route(gateway: RunningGateway, headers: dict[str, str] | None = None, **tags: str) -> Any:
    body = {"messages": HELLO, "metadata": tags}
    answer = await gateway.http.post("/v1/route", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_rules_decide_behind_a_gateway_and_the_reason_names_them(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, RULED + TARGETS) as (gateway, servers):
        free = await route(gateway)
        assert (free["tier"], free["decision"]["inputs"]["rules"]) == (1, None)
        assert "rule" not in free["reason"]

        gateway.classifier.p_ok = (0.1, 0.2, 1.0)
        research = await route(gateway, project="research")
        assert research["tier"] == 2
        assert "not tier 3: rule research allows only small, medium" in research["reason"]
        assert research["reason"].endswith("matching rules: research")

        gateway.classifier.p_ok = (0.999, 0.999, 1.0)
        app = await route(gateway, {"x-app": "checkout"})
        assert app["tier"] == 2
        assert "not tier 1: rule app asks for at least medium" in app["reason"]
        both = await route(gateway, {"x-app": "checkout"}, project="research")
        assert both["tier"] == 2
        assert both["reason"].endswith("matching rules: research, app")

        gateway.classifier.p_ok = (0.8, 0.8, 1.0)
        assert (await route(gateway))["tier"] == 1
        assert (await route(gateway, kind="careful"))["tier"] == 3
        told = await gateway.http.post(
            "/v1/route",
            json={"messages": HELLO, "metadata": {"kind": "careful"}},
            headers={"x-aio-quality": "economy"},
        )
        assert told.json()["tier"] == 1, "what the request asks for comes first"
        assert servers.asked == []


async def test_a_rule_is_for_the_keys_of_a_team_or_for_one_key(tmp_path: Path) -> None:
    rules = """
[[rules]]
name = "lab"
when = {{ team = ["lab"] }}
floor = "medium"

[[rules]]
name = "one"
when = {{ key = ["first"] }}
floor = "large"
"""
    async with chained_tiers(tmp_path, rules) as (gateway, servers):
        assert (await gateway.http.post("/admin/api/teams", json={"name": "lab"})).is_success
        made = [
            (await gateway.http.post("/admin/api/keys", json=body)).json()["key"]
            for body in ({"name": "first", "team": "lab"}, {"name": "second", "team": "lab"}, {"name": "third"})
        ]
        for key in made:
            assert (await ask(gateway, {"authorization": f"Bearer {key}"})).status_code == 200
        assert servers.asked == ["large", "medium", "small"]


async def test_a_rule_sends_a_request_to_its_target_and_the_record_says_so(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, RULED + TARGETS) as (gateway, servers):
        answer = await ask(gateway, metadata={"kind": "report"})
        assert servers.asked == ["backup"]
        assert (answer.headers["x-aio-tier"], answer.headers["x-aio-target"]) == ("2", "backup")
        record = (await gateway.http.get(f"/v1/requests/{answer.headers['x-aio-decision-id']}")).json()
        assert record["attempts"][0]["target"] == "backup"
        assert record["cost_usd"] == pytest.approx(12 * 7e-6)
        reason = record["decision"]["reason"]
        assert reason.startswith("a rule sends the request to tier 2 (target backup)")
        assert reason.endswith("matching rules: reports")

        # It does not matter whether the tier's own server is up.
        servers.asked.clear()
        gateway.serving.routing.served.tier(2)._failures.cool_down(1000)  # type: ignore[attr-defined]
        await ask(gateway, metadata={"kind": "report"})
        assert servers.asked == ["backup"]

        # Where the target is down, routing decides; and it goes on with the tier's own server, if that is up.
        servers.asked.clear()
        servers.by_model["backup"] = broken
        failed = await ask(gateway, metadata={"kind": "report"})
        assert servers.asked == ["backup"], "the tier itself is down"
        assert failed.status_code == 503
        servers.asked.clear()
        await ask(gateway, metadata={"kind": "report"})
        assert servers.asked == ["small"]


async def test_a_failed_target_of_a_rule_is_replaced_by_its_tier(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, RULED + TARGETS) as (gateway, servers):
        servers.by_model["backup"] = broken
        answer = await ask(gateway, metadata={"kind": "report"})
        assert servers.asked == ["backup", "medium"]
        assert answer.headers["x-aio-fell-over-from"] == "backup"
        assert "x-aio-target" not in answer.headers


async def test_a_request_that_no_rule_leaves_a_tier_is_refused_with_the_rules(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, RULED + TARGETS) as (gateway, servers):
        pinned = await ask(gateway, model="large", metadata={"project": "research"})
        assert pinned.status_code == 403
        error = pinned.json()["error"]
        assert (error["code"], error["param"]) == ("no_tier_allowed", "model")
        assert "rule research allows only small, medium" in error["message"]
        assert servers.asked == []


async def test_a_chain_keeps_to_the_rules(tmp_path: Path) -> None:
    chain = 'fallback = ["large", "second", "medium"]'
    async with chained_tiers(tmp_path, RULED + TARGETS + SECOND, small=chain) as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway, metadata={"project": "research"})
        assert answer.status_code == 200
        assert servers.asked == ["small", "medium"]
        reason = answer.json()["x_aio"]["reason"]
        assert "not large: rule research allows only small, medium" in reason
        assert "not second: the rules do not allow it" in reason


async def test_without_a_chain_the_next_tier_up_keeps_to_the_rules(tmp_path: Path) -> None:
    only = '[[rules]]\nname = "small alone"\nallow = ["small"]\n'
    async with chained_tiers(tmp_path, only) as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway)
        assert answer.status_code == 503
        assert servers.asked == ["small"]


async def test_an_equal_request_under_another_rule_gets_no_answer_from_the_cache(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, RULED + TARGETS) as (gateway, servers):
        servers.by_model["small"] = broken
        first = await ask(gateway, temperature=0)
        assert (first.headers["x-aio-tier"], first.headers["x-aio-cache"]) == ("2", "miss")
        gateway.serving.routing.served.tier(1)._failures.unhealthy_until = 0.0  # type: ignore[attr-defined]
        servers.by_model.clear()
        second = await ask(gateway, temperature=0, metadata={"project": "research"})
        assert second.headers["x-aio-cache"] == "miss"
        again = await ask(gateway, temperature=0, metadata={"project": "research"})
        assert again.headers["x-aio-cache"] == "hit"


async def test_a_decision_under_rules_can_be_replayed(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, RULED + TARGETS) as (gateway, _):
        routing = gateway.serving.routing
        for metadata in ({"kind": "report"}, {"project": "research"}, {"kind": "careful"}):
            request: InferenceRequest = dry_request([Turn.of("user", "Hello")], metadata=metadata)
            decision = routing.route(request)
            kept = msgspec.json.decode(msgspec.json.encode(decision.inputs), type=type(decision.inputs))
            assert decide(kept) == decision
