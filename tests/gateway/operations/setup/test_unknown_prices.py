"""No model of a provider comes before a server of one's own by a price that is unknown."""

import tomllib
from collections.abc import Iterator
from datetime import date
from types import SimpleNamespace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.setup import init
from gateway.operations.setup.candidate import Candidate, in_order, price_notes, with_names
from gateway.operations.setup.catalog_text import catalog_text
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import parse_catalog
from tiers.catalog.price_list import listed_family, listed_model
from tiers.catalog.tier_spec import Price

OPENROUTER = "https://openrouter.ai/api/v1"
OWN = ("http://127.0.0.1:9/v1", "http://vllm:8000/v1", "http://10.1.2.3/v1", "http://gpu.svc.cluster.local/v1")
PAID = (OPENROUTER, "https://llm.example.com/v1")


def usd(price: float) -> Price:
    return Price(input_usd_per_million=price, output_usd_per_million=3 * price)


def parsed(candidates: list[Candidate]) -> Catalog:
    return parse_catalog({"name": "test", **tomllib.loads(catalog_text(candidates, date(2026, 1, 1)))}, "it")


PRICES = st.none() | st.floats(0.001, 90).map(usd)
SERVERS = st.one_of(
    st.builds(
        Candidate, source=st.just("own"), model=st.sampled_from(("qwen3-0.6b", "qwen2.5-72b", "mine")),
        url=st.sampled_from(OWN), price=PRICES,
    ),
    st.builds(
        Candidate, source=st.just("own"), model=st.just("llama-405b"), kind=st.just("vllm"),
        url=st.sampled_from(PAID), price=PRICES,
    ),
    st.builds(
        Candidate, source=st.just("paid"), url=st.sampled_from(PAID), price=PRICES,
        model=st.sampled_from(("claude-opus-9", "claude-haiku-9", "acme-large", "acme-1b", "grok-99-fast")),
    ),
    st.builds(
        Candidate, source=st.just("paid"), url=st.sampled_from(OWN), price=PRICES, model=st.just("gpt-99-nano"),
    ),
    st.builds(Candidate, source=st.just("paid"), provider=st.just("groq"), model=st.just("new-8b"), price=PRICES),
)  # fmt: skip


@given(st.lists(SERVERS, min_size=2, max_size=8))
def test_no_model_without_a_price_comes_before_a_server_of_ones_own(found: list[Candidate]) -> None:
    chosen = with_names(in_order(found))
    catalog = parsed(chosen)

    numbers = {tier.name: tier.number for tier in catalog.tiers}
    own = [numbers[one.name] for one in chosen if one.source == "own"]
    guesses = [one for one in chosen if one.source == "paid" and (one.price is None or one.price.estimated)]
    assert all(numbers[one.name] > place for one in guesses for place in own)
    assert not chosen[0].lacks_price or all(one in guesses for one in chosen)
    assert [numbers[one.name] for one in chosen] == sorted(numbers.values())
    assert [note.partition(":")[0] for note in price_notes(chosen)] == [one.name for one in guesses]
    assert [one.name for one in with_names(in_order(chosen))] == [one.name for one in chosen]


@pytest.mark.parametrize(
    ("model", "listed"),
    [
        ("anthropic/claude-opus-4-6", "claude-opus-4-6"),
        ("us.anthropic.claude-opus-4-6-v1:0", "claude-opus-4-6"),
        ("acme-large", None),
        ("claude-opus-99", None),
    ],
)
def test_a_closed_model_costs_what_its_maker_asks_whatever_the_address(model: str, listed: str | None) -> None:
    for url in (OPENROUTER, "https://llm.example.com/v1", "http://127.0.0.1:4000/v1"):
        found = listed_model(model, base_url=url)
        assert (None if found is None else found.model) == listed


@pytest.mark.parametrize(
    ("model", "start"),
    [
        ("claude-opus-99", "claude-opus-"),
        ("eu.anthropic.claude-haiku-99-v1:0", "claude-haiku-"),
        ("my-gpt-99-mini", "gpt-"),
        ("x/grok-99", "grok-"),
        ("acme-large", None),
        ("7", None),
    ],
)
def test_a_family_is_known_by_the_words_of_a_name(model: str, start: str | None) -> None:
    found = listed_family(model)
    assert (
        (found is None) if start is None else (found is not None and found.model.rpartition("/")[2].startswith(start))
    )


@pytest.mark.parametrize("billions", [8, 70])
def test_of_a_family_the_nearest_size_is_taken(billions: int) -> None:
    found = listed_family(f"Meta-Llama-3.9-{billions}B-Instruct")
    assert found is not None
    assert f"-{billions}b" in found.model.lower()


def answers(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    given: Iterator[str] = iter(texts)

    def prompt(text: str, **_: Any) -> str:
        return next(given)

    monkeypatch.setattr(click, "prompt", prompt)
    monkeypatch.setattr(init.sys, "stdin", SimpleNamespace(isatty=lambda: True))


def test_an_unknown_price_is_asked_for_until_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Candidate(source="it", model="acme-large", url=PAID[1], name="acme")
    cheap = Candidate(source="it", model="b", url=PAID[1], name="b", price=usd(1))
    answers(monkeypatch, "cheap", "$0.1 / 0.4")

    chosen = init._priced([cheap, unknown], yes=False)

    assert [(one.name, one.price and one.price.input_usd_per_million) for one in chosen] == [("acme", 0.1), ("b", 1)]


def test_an_unknown_price_may_stay_unknown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = Candidate(source="it", model="acme-large", url=PAID[1], name="acme")
    dear = Candidate(source="it", model="b", url=PAID[1], name="b", price=usd(80))
    answers(monkeypatch, "")

    assert [one.name for one in init._priced([dear, unknown], yes=False)] == ["b", "acme"]
    assert "acme: its price is unknown; it is placed last" in capsys.readouterr().err
