"""Short catalogues: missing values are filled in, and a missing price is estimated and marked."""

from pathlib import Path
from typing import Any

import pytest

from tiers.catalog.catalog import Catalog
from tiers.catalog.gpu_group import named_billions
from tiers.catalog.load import load_catalog, parse_catalog
from tiers.catalog.pricing import predicted_costs
from tiers.errors import CatalogError

TEN_LINES = """
[[tiers]]
name = "small"
url = "http://localhost:8001/v1"

[[tiers]]
name = "large"
model = "models/Qwen3-8B-Q4_0.gguf"
"""


def remote(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "url": "http://localhost:1/v1", **more}


def catalogue(*tiers: dict[str, Any], **more: Any) -> Catalog:
    return parse_catalog({"name": "short", "tiers": list(tiers), **more}, "catalogue 'short'")


def price(usd: float) -> dict[str, float]:
    return {"input_usd_per_million": usd, "output_usd_per_million": 3 * usd}


def test_a_name_and_a_model_or_a_url_make_a_tier(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TEN_LINES)
    catalog = load_catalog(str(tmp_path / "mine.toml"))
    small, large = catalog.tiers
    assert (catalog.name, small.number, large.number) == ("mine", 1, 2)
    assert (small.url, small.model_name) == ("http://localhost:8001/v1", "small")
    assert (large.model, catalog.core.models[0].path) == ("Qwen3-8B-Q4_0", "models/Qwen3-8B-Q4_0.gguf")
    assert catalog.core_names == ["cpu"]
    assert all(tier.mean_latency_ms and tier.expected_answer_tokens for tier in catalog.tiers)
    assert (small.stated_limit(None), small.stated_limit(9), large.stated_limit(None)) == (None, 9, 2048)
    assert (small.sampling.given(), large.sampling.temperature, large.sampling.top_p) == ({}, 0.7, 0.9)


def test_the_remote_model_name_and_the_key_variable_can_be_given_with_the_url() -> None:
    tier = catalogue(remote("a", model="gpt-5", api_key_env="KEY"), remote("b")).tier(1)
    assert tier.remote is not None
    assert (tier.remote.model, tier.remote.api_key_env) == ("gpt-5", "KEY")


def test_tiers_of_one_file_share_its_model() -> None:
    path = "models/one.gguf"
    catalog = catalogue({"name": "plain", "model": path}, {"name": "thinking", "model": path})
    assert [m.name for m in catalog.core.models] == ["one"]
    assert [t.model for t in catalog.tiers] == ["one", "one"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama-3.2-3B-Instruct-Q4_0.gguf", 3.0),
        ("smollm2-135m", 0.135),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.5),
        ("qwen3-30b-a3b", 3.0),
        ("mixtral-8x7b", 14.0),
        ("llama3.1:8b", 8.0),
        ("gpt-4o-mini", None),
        ("tier-1", None),
    ],
)
def test_a_models_size_is_read_off_its_name(name: str, billions: float | None) -> None:
    assert named_billions(name) == billions


def test_without_a_price_a_tier_costs_by_its_models_size() -> None:
    catalog = catalogue(remote("a", model="llama-3.2-3b"), remote("b", model="llama-3.3-70b"))
    assert [t.price.estimated for t in catalog.tiers] == ["size", "size"]
    assert [t.price.input_usd_per_million for t in catalog.tiers] == pytest.approx([0.15, 3.5])
    assert catalog.tier(2).price.output_usd_per_million == pytest.approx(10.5)


def test_without_a_size_it_costs_by_the_seconds_of_an_answer() -> None:
    tier = catalogue(remote("a", mean_latency_ms=3600), remote("b", mean_latency_ms=36_000)).tier(1)
    assert tier.price.estimated == "seconds"
    # 3.6 s at $1 an hour are $0.001 for 200 prompt tokens and 200 of the answer at three times their price.
    assert tier.price.input_usd_per_million * (200 + 3 * 200) == pytest.approx(1000)


def test_without_either_it_costs_by_its_place_between_what_is_known() -> None:
    catalog = catalogue(remote("a"), remote("b", price=price(1.0)), remote("c"), remote("d", price=price(9.0)))
    assert [t.price.estimated for t in catalog.tiers] == ["order", "", "order", ""]
    assert [t.price.input_usd_per_million for t in catalog.tiers] == pytest.approx([0.25, 1.0, 3.0, 9.0])
    assert [t.price.input_usd_per_million for t in catalogue(remote("a"), remote("b")).tiers] == [0.15, 0.6]


def test_tiers_without_numbers_are_numbered_by_cost_and_ties_keep_their_order() -> None:
    catalog = catalogue(
        remote("dear", price=price(9.0)),
        remote("unknown"),
        remote("one", price=price(1.0)),
        remote("same", price=price(1.0)),
    )
    assert [t.name for t in catalog.tiers] == ["one", "unknown", "same", "dear"]
    assert [t.number for t in catalog.tiers] == [1, 2, 3, 4]


def test_an_estimate_refuses_no_order_that_was_given_and_predicted_costs_do_not_fall() -> None:
    catalog = catalogue(
        remote("a", number=1, model="m-70b"), remote("b", number=2, model="m-3b"), remote("c", number=3)
    )
    costs = predicted_costs(catalog, 100, None)
    assert costs == sorted(costs)


def test_given_prices_that_fall_are_refused_even_with_an_estimate_between_them() -> None:
    with pytest.raises(CatalogError, match=r"less than .* of a; costs must not fall"):
        catalogue(
            remote("a", number=1, price=price(2.0)), remote("b", number=2), remote("c", number=3, price=price(1.0))
        )


def test_a_thought_is_expected_to_be_billed_and_a_short_answer_to_be_due_sooner() -> None:
    thinking = {"name": "t", "model": "x.gguf", "policy": {"kind": "chain-of-thought", "budget_tokens": 500}}
    catalog = catalogue({"name": "p", "model": "x.gguf", "mean_latency_ms": 500}, thinking)
    assert sorted(t.expected_answer_tokens for t in catalog.tiers) == [200, 700]
    assert next(t for t in catalog.tiers if t.name == "p").objective.ttft_ms == 500


def test_prices_that_are_given_stay_and_are_not_marked() -> None:
    for name in ("laptop", "datacenter"):
        assert {tier.price.estimated for tier in load_catalog(name).tiers} == {""}
