"""Prices and contexts that a catalogue leaves out come from the price list, where it is sure."""

import subprocess
import sys
from typing import Any

import pytest

from tiers.catalog.load import parse_catalog
from tiers.catalog.price_list import listed_model, similar_listed
from tiers.catalog.pricing import cost_usd, long_price, most_cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.tier import Usage

LOCAL = "http://127.0.0.1:8000/v1"


def tier(url: str, model: str, **more: Any) -> TierSpec:
    entries = [{"name": "asked", "url": url, "model": model, **more}, {"name": "other", "url": LOCAL, "model": "x"}]
    catalog = parse_catalog({"name": "short", "tiers": entries}, "catalogue 'short'")
    return next(spec for spec in catalog.tiers if spec.name == "asked")


@pytest.mark.parametrize(
    ("model", "provider", "base_url", "owner"),
    [
        ("claude-haiku-4-5", "anthropic", "", "anthropic"),
        ("claude-haiku-4-5-20251001", "anthropic", "", "anthropic"),
        ("gemini-2.5-flash", "gemini", "", "google"),
        ("models/gemini-2.5-flash", "gemini", "", "google"),
        ("gpt-5-mini", "azure", "", "azure"),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "bedrock", "", "aws"),
        ("openai/gpt-5-mini", None, "https://openrouter.ai/api/v1", "openrouter"),
        ("gpt-5-mini", None, "https://api.openai.com/v1", "openai"),
        ("gpt-5-mini", None, "http://127.0.0.1:4000/v1", "openai"),
    ],
)
def test_a_model_is_found_by_its_provider_its_address_or_its_makers_name(
    model: str, provider: str | None, base_url: str, owner: str
) -> None:
    listed = listed_model(model, provider=provider, base_url=base_url)
    assert listed is not None
    assert listed.provider == owner
    assert 0 < listed.price.input_usd_per_million < listed.price.output_usd_per_million
    assert listed.price.estimated == ""


@pytest.mark.parametrize(
    ("model", "provider", "base_url"),
    [
        ("qwen3-8b", None, LOCAL),
        ("gpt-oss:20b", None, "http://127.0.0.1:11434/v1"),
        ("gemma3:4b", None, "https://models.example.com/v1"),
        ("gpt-5-of-another-name", "openai", ""),
        ("llama-3.3-70b", "no-such-provider", ""),
    ],
)
def test_what_the_list_cannot_know_is_not_guessed(model: str, provider: str | None, base_url: str) -> None:
    assert listed_model(model, provider=provider, base_url=base_url) is None


def test_a_missing_price_and_context_come_from_the_list_and_are_no_estimate() -> None:
    listed = listed_model("gpt-5-mini", provider="openai")
    assert listed is not None
    spec = tier("https://api.openai.com/v1", "gpt-5-mini")
    assert spec.price == listed.price
    assert spec.price.cached_input_usd_per_million is not None
    assert spec.remote is not None
    assert spec.remote.max_context == listed.max_context == 400_000


def test_a_provider_bills_cached_tokens_at_the_lists_price_of_cache_reads() -> None:
    spec = tier("https://api.openai.com/v1", "gpt-5-mini")
    listed = spec.price
    million = Usage(prompt_tokens=1_000_000, cached_tokens=1_000_000)
    assert cost_usd(spec, million) == listed.cached_input_usd_per_million
    assert listed.cached_input_usd_per_million is not None
    assert listed.cached_input_usd_per_million < listed.input_usd_per_million


def test_what_an_entry_says_wins_over_the_list() -> None:
    price = {"input_usd_per_million": 9.0, "output_usd_per_million": 11.0}
    spec = tier("https://api.openai.com/v1", "gpt-5-mini", price=price, max_context=4000)
    assert (spec.price.input_usd_per_million, spec.price.output_usd_per_million) == (9.0, 11.0)
    assert spec.remote is not None
    assert spec.remote.max_context == 4000


def test_a_model_of_ones_own_server_costs_an_estimate() -> None:
    spec = tier(LOCAL, "qwen3-8b")
    assert spec.price.estimated == "size"
    assert spec.remote is not None
    assert spec.remote.max_context is None


def test_a_misspelt_model_has_similar_names() -> None:
    assert "gpt-5-mini" in similar_listed("gpt-5-min")


def test_a_catalogue_with_prices_or_local_servers_does_not_load_the_list() -> None:
    program = """
import sys
from tiers.catalog.load import parse_catalog
price = {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0}
parse_catalog({"name": "c", "tiers": [
    {"name": "a", "url": "http://127.0.0.1:1/v1", "model": "qwen3-8b"},
    {"name": "b", "url": "https://api.openai.com/v1", "model": "gpt-5", "price": price, "max_context": 4000}]}, "c")
sys.exit("genai_prices" in sys.modules or "pydantic" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_list_has_the_steps_of_long_prompts_and_writes_for_an_hour() -> None:
    listed = listed_model("claude-sonnet-4-5", provider="anthropic")
    assert listed is not None
    price = listed.price
    assert price.cache_write_1h_usd_per_million == 2 * price.input_usd_per_million
    [step] = price.steps
    assert step.above_prompt_tokens == 200_000
    assert price.of_prompt(200_000) is price
    long = price.of_prompt(200_001)
    assert long.input_usd_per_million == step.input_usd_per_million > price.input_usd_per_million
    assert long.cache_write_1h_usd_per_million == step.cache_write_1h_usd_per_million


def test_a_long_prompt_is_billed_at_its_step_and_each_choice_has_its_own_prompt() -> None:
    listed = listed_model("claude-sonnet-4-5", provider="anthropic")
    assert listed is not None
    spec = tier("https://api.anthropic.com/v1", "claude-sonnet-4-5")
    assert cost_usd(spec, Usage(prompt_tokens=200_001)) == pytest.approx(200_001 * 6 / 1e6)
    assert cost_usd(spec, Usage(prompt_tokens=200_000)) == pytest.approx(200_000 * 3 / 1e6)
    both = Usage(prompt_tokens=300_000)
    assert long_price(spec, both, 2, 1).input_usd_per_million == 3
    assert long_price(spec, both, 1, 1).input_usd_per_million == 6
    assert most_cost_usd(listed.price, 200_001, 0) >= 200_001 * 12 / 1e6
