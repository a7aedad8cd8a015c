"""What the tiers of a catalogue are like while none of their outcomes are known."""

from typing import Any

from classifier.complexity.classes import Complexity
from gateway.routing.tier_kinds import tier_kinds
from tiers.catalog_file import load_catalog, parse_catalog

SIMPLE, MEDIUM, COMPLEX, EXPERT = Complexity


def kinds(*tiers: dict[str, Any]) -> tuple[Complexity, ...]:
    entries = [{"name": f"t{place}", "number": place, **tier} for place, tier in enumerate(tiers, start=1)]
    return tier_kinds(parse_catalog({"name": "kinds", "tiers": entries}, "catalogue 'kinds'"))


def remote(model: str, **more: Any) -> dict[str, Any]:
    return {"url": "http://localhost:1/v1", "model": model, **more}


def test_the_shipped_tiers_are_what_their_classes_say() -> None:
    assert tier_kinds(load_catalog("laptop")) == tier_kinds(load_catalog("datacenter")) == tuple(Complexity)


def test_a_declared_class_counts_before_the_size_and_the_size_before_the_place() -> None:
    assert kinds(remote("m-8b"), remote("m-70b")) == (MEDIUM, COMPLEX)
    assert kinds(remote("m-8b", **{"class": "SIMPLE"}), remote("m-70b")) == (SIMPLE, COMPLEX)
    assert kinds(remote("mini"), remote("m-8b"), remote("max")) == (SIMPLE, MEDIUM, EXPERT)


def test_a_model_that_thinks_first_is_like_the_next_kind() -> None:
    policy = {"kind": "chain-of-thought", "budget_tokens": 500}
    plain, thinking = {"model": "m-70b.gguf"}, {"model": "m-70b.gguf", "policy": policy}
    assert kinds(plain, thinking) == (COMPLEX, EXPERT)
