"""What a provider bills besides tokens: which row holds, its bound, and its bill."""

import re
from typing import Any

import msgspec
import pytest

from inference_core.protocol import SamplingParams
from tiers.catalog.tier_spec import Price, RemoteSpec, TierSpec
from tiers.conversation import OpaqueFields, Turn, media
from tiers.dialects.extras import (
    EXTRAS,
    ROUNDS,
    USES,
    UnboundedCostError,
    asked_extras,
    billed_extras,
    extra_reads,
    most_extra_costs,
    with_bounds,
)
from tiers.tier import GenerationRequest, Usage

SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def spec(kind: Any = "anthropic", model: str = "claude-opus-4-6", **more: Any) -> TierSpec:
    remote = RemoteSpec(base_url="https://models.example/v1", model=model, kind=kind)
    return TierSpec(name="t", remote=remote, price=Price(input_usd_per_million=1, output_usd_per_million=2), **more)


OPENAI = spec("openai-provider", "gpt-5", provider="openai")


def request(opaque_fields: dict[str, Any] | None = None, dialect: Any = "messages", **more: Any) -> GenerationRequest:
    fields = {name: msgspec.json.encode(value) for name, value in (opaque_fields or {}).items()}
    own = tuple(tool["type"] for tool in (opaque_fields or {}).get("tools", ()) if tool["type"] != "function")
    if opaque_fields is not None:
        more["opaque"] = OpaqueFields(dialect, fields, own)
    return GenerationRequest(request_id="r", sampling=SamplingParams(), **more)


def test_every_row_has_a_source_and_what_bounds_or_prices_it() -> None:
    for row in EXTRAS:
        assert row.source.startswith("https://") or (row.usd is row.factor is None), row
        for pattern in (row.models, row.asked.partition("=")[2], row.where):
            re.compile(pattern)
        assert row.usd is None or row.factor is None, row


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        ("gpt-5.5", 2.5), ("gpt-5-mini-2025-08-07", 1.8), ("gpt-5", 2.0), ("gpt-5.1-codex", 2.0),
        ("gpt-4.1-mini", 1.75), ("gpt-4.1-nano", 2.0), ("gpt-4o", 1.7), ("gpt-4o-2024-05-13", 1.75),
        ("gpt-4o-mini", 1.6667), ("o3", 1.75),
        ("o4-mini", 1.8182), ("gpt-5-pro", None), ("o3-pro", None), ("gpt-4o-audio-preview", None), ("gpt-9", None),
    ],
)  # fmt: skip
def test_priority_multiplies_tokens_by_model_and_is_unpriced_for_others(model: str, factor: float | None) -> None:
    tier = spec("openai-provider", model, provider="openai")
    asked = request(passed={"service_tier": "priority"})
    told = billed_extras(tier, asked, Usage(extras={"service_tier=priority": 1}), 1)
    if factor is None:
        assert told.notes == ("priority: unpriced",)
        with pytest.raises(UnboundedCostError, match="service_tier: what 'priority' costs at tier 't' is not known"):
            most_extra_costs(tier, asked, 10, 10, 1)
    else:
        assert told.factor == most_extra_costs(tier, asked, 10, 10, 1).factor == factor


def test_the_class_that_the_answer_names_is_billed_and_without_one_the_class_that_was_asked_for() -> None:
    asked = request(passed={"service_tier": "priority"})
    assert billed_extras(OPENAI, asked, Usage(extras={"service_tier=default": 1}), 1).factor == 1.0
    assert billed_extras(OPENAI, asked, Usage(), 1).factor == 2.0
    assert billed_extras(OPENAI, request(), Usage(extras={"service_tier=priority": 1}), 1).factor == 2.0
    flex = request(passed={"service_tier": "flex"})
    assert billed_extras(OPENAI, flex, Usage(extras={"service_tier=flex": 1}), 1).factor == 0.5
    assert most_extra_costs(OPENAI, flex, 10, 10, 1).factor == 1.0, "a discount is not held before it is given"


def test_multipliers_stack_and_uses_come_on_top() -> None:
    asked = request({"speed": "fast", "inference_geo": "us", "tools": [SEARCH | {"max_uses": 4}]})
    usage = Usage(extras={"speed=fast": 1, "inference_geo=us": 1, "web_search_requests": 3})
    billed = billed_extras(spec(), asked, usage, 1)
    assert (billed.factor, billed.usd) == (pytest.approx(6.6), pytest.approx(0.03))
    most = most_extra_costs(spec(), asked, 10, 10, 1)
    assert (most.factor, most.usd, most.reads) == (pytest.approx(6.6), pytest.approx(0.04), 4)


def test_a_count_of_a_tool_that_the_request_did_not_name_costs_nothing() -> None:
    searched = Usage(extras={"web_search_requests": 2})
    assert billed_extras(spec(), request(), searched, 1).usd == 0.0
    assert billed_extras(spec(), request({"tools": [SEARCH]}), searched, 1).usd == pytest.approx(0.02)


@pytest.mark.parametrize("bound", [None, -1, True, 0.5, "many"])
def test_a_tool_without_a_bound_gets_one_where_a_budget_holds(bound: Any) -> None:
    asked = request({"tools": [SEARCH | {"max_uses": bound}, {"type": "function", "name": "f"}]})
    sent = with_bounds(spec(), asked)
    assert sent.opaque is not None
    assert msgspec.json.decode(sent.opaque.fields["tools"]) == [
        SEARCH | {"max_uses": USES}, {"type": "function", "name": "f"}
    ]  # fmt: skip
    assert most_extra_costs(spec(), asked, 10, 10, 1).usd == pytest.approx(USES * 0.01)
    bounded = request({"tools": [SEARCH | {"max_uses": 2}]})
    assert with_bounds(spec(), bounded) is bounded


def test_openais_tools_are_bounded_together() -> None:
    asked = request({"tools": [{"type": "web_search"}]}, "responses")
    sent = with_bounds(OPENAI, asked).opaque
    assert sent is not None
    assert msgspec.json.decode(sent.fields["max_tool_calls"]) == USES
    bounded = request({"tools": [{"type": "web_search"}], "max_tool_calls": 3}, "responses")
    assert most_extra_costs(OPENAI, bounded, 10, 10, 1).usd == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "code_execution_20250825"}]}, "tools"),
        ({"tools": [{"type": "tool_of_next_year"}]}, "tools"),
        ({"mcp_servers": [{"type": "url", "url": "https://a.example"}]}, "mcp_servers"),
        ({"container": "c_1"}, "container"),
        ({"inference_geo": "mars"}, "inference_geo"),
    ],
)
def test_what_has_no_known_price_has_no_bound_unless_the_catalogue_prices_it(
    fields: dict[str, Any], param: str
) -> None:
    asked = request(fields)
    with pytest.raises(UnboundedCostError) as refused:
        most_extra_costs(spec(), asked, 10, 10, 1)
    assert refused.value.param == param
    (use,) = asked_extras(spec(), asked)
    assert billed_extras(spec(), asked, Usage(), 1).notes == (f"{use.extra.name}: unpriced",)
    priced = spec(extra_prices={use.extra.name: 0.5})
    assert most_extra_costs(priced, asked, 10, 10, 1).usd == 0.5
    assert billed_extras(priced, asked, Usage(), 2).usd == 1.0


def test_the_callers_own_tools_and_a_tier_in_process_cost_nothing_besides_tokens() -> None:
    own = request({"tools": [{"type": "bash_20250124"}, {"type": "text_editor_20250728"}]})
    assert most_extra_costs(spec(), own, 10, 10, 1)[:3] == (0.0, 1.0, 0)
    assert extra_reads(spec(), own) == 0
    here = TierSpec(name="t", model="m")
    assert asked_extras(here, request(passed={"service_tier": "priority"})) == []


def test_a_field_that_the_server_does_not_get_costs_nothing() -> None:
    asked = request(extra={"search_parameters": {"mode": "on"}})
    assert asked_extras(spec("vllm", "m"), asked) == []
    with pytest.raises(UnboundedCostError, match="search_parameters"):
        most_extra_costs(spec("openai", "m"), asked, 10, 10, 1)


def test_a_tool_makes_the_server_read_the_prompt_again() -> None:
    assert extra_reads(spec(), request({"tools": [SEARCH | {"max_uses": 7}]})) == 7
    assert extra_reads(spec(), request({"tools": [{"type": "tool_of_next_year"}]})) == ROUNDS


def test_audio_costs_what_the_price_list_says_of_it() -> None:
    hearing = spec("openai-provider", "gpt-audio", provider="openai")
    part = media("audio", {"data": "AAAA", "format": "mp3"})
    asked = request(messages=[Turn.of("user", [*(part, part)])])
    billed = billed_extras(hearing, asked, Usage(prompt_tokens=100, extras={"audio_prompt_tokens": 60}), 1)
    assert billed.usd == pytest.approx(60 * (32 - 1) / 1e6), "beyond what they cost as text"
    assert most_extra_costs(hearing, asked, 100, 10, 1).usd == pytest.approx(100 * (32 - 1) / 1e6)
    spoken = request(extra={"modalities": ["text", "audio"]})
    assert most_extra_costs(hearing, spoken, 100, 10, 1).usd == pytest.approx(10 * (64 - 2) / 1e6)
    with pytest.raises(UnboundedCostError, match="modalities"):
        most_extra_costs(OPENAI, spoken, 100, 10, 1)
