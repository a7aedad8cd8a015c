"""What a tier supports: declared, or the default of its kind of server."""

from typing import Any

import pytest

from tiers.catalog.catalog import Catalog
from tiers.catalog.load import parse_catalog
from tiers.catalog.tier_spec import CAPABILITIES
from tiers.errors import CatalogError

URL = "http://localhost:1/v1"


def catalogue(**tier: Any) -> Catalog:
    return parse_catalog({"name": "c", "tiers": [{"name": "a", **tier}, {"name": "b", "url": URL}]}, "catalogue 'c'")


@pytest.mark.parametrize(
    "tier",
    [
        {"model": "models/one.gguf"},
        {"url": URL},
        {"remote": {"base_url": URL, "model": "m", "kind": "vllm"}},
    ],
)
def test_undeclared_tiers_have_tools_schemas_and_logprobs_and_read_text_only(tier: dict[str, Any]) -> None:
    assert catalogue(**tier).tier(1).has == {"tools", "json_schema", "logprobs"}


def test_declared_capabilities_precede_the_defaults() -> None:
    declared = {"vision": True, "tools": False}

    assert catalogue(url=URL, capabilities=declared).tier(1).has == {"vision", "json_schema", "logprobs"}
    assert catalogue(url=URL, capabilities=dict.fromkeys(CAPABILITIES, True)).tier(1).has == set(CAPABILITIES)


def test_tritons_backends_have_no_tools() -> None:
    kinds = {"triton-tensorrt-llm": {"json_schema"}, "triton-vllm": set()}

    for kind, supported in kinds.items():
        assert catalogue(remote={"base_url": URL, "model": "m", "kind": kind}).tier(1).has == supported


@pytest.mark.parametrize("name", ["vision", "audio", "files"])
def test_a_model_in_process_cannot_be_declared_to_read_more_than_text(name: str) -> None:
    with pytest.raises(CatalogError, match=rf"tiers 'a'\.capabilities\.{name} = true: in-process"):
        catalogue(model="models/one.gguf", capabilities={name: True})


def test_declared_logprobs_decide_whether_the_judge_asks_for_them() -> None:
    vllm = {"base_url": URL, "model": "m", "kind": "vllm"}

    assert not catalogue(url=URL).tier(1).tells_logprobs
    assert catalogue(url=URL, capabilities={"logprobs": True}).tier(1).tells_logprobs
    assert catalogue(remote=vllm).tier(1).tells_logprobs
    assert not catalogue(remote=vllm, capabilities={"logprobs": False}).tier(1).tells_logprobs
