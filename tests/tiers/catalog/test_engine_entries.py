"""Tiers of a catalogue on engines that AIO starts, and models by Hugging Face id."""

from typing import Any

import pytest

from tiers.catalog.catalog import Catalog
from tiers.catalog.load import parse_catalog
from tiers.errors import CatalogError

OTHER = {"name": "other", "url": "http://localhost:8001/v1"}


def parsed(*tiers: dict[str, Any]) -> Catalog:
    return parse_catalog({"name": "test", "tiers": [*tiers, OTHER]}, "catalogue test")


def complaint(**tier: Any) -> str:
    with pytest.raises(CatalogError) as error:
        parsed({"name": "small", **tier})
    return str(error.value)


def test_three_lines_are_a_tier_on_an_engine() -> None:
    catalog = parsed({"name": "small", "engine": "vllm", "model": "Qwen/Qwen3-8B"})
    tier = next(tier for tier in catalog.tiers if tier.name == "small")
    assert tier.remote is not None
    assert tier.remote.engine is not None
    assert (tier.remote.kind, tier.remote.model, tier.url) == ("vllm", "Qwen/Qwen3-8B", "engine vllm")
    assert tier.price.estimated == "size"
    assert not tier.remote.is_replicated


def test_every_option_of_an_engine_has_a_short_key() -> None:
    catalog = parsed(
        {
            "name": "small",
            "engine": "llama-server",
            "model": "Qwen/Qwen3-8B-GGUF:Q5_0",
            "engine_args": ["--threads", "4"],
            "engine_env": {"CUDA_VISIBLE_DEVICES": "1"},
            "revision": "v1",
            "start_timeout_seconds": 60,
            "max_context": 4096,
        }
    )
    (engine,) = catalog.engines.values()
    assert engine.args == ("--threads", "4")
    assert engine.env == {"CUDA_VISIBLE_DEVICES": "1"}
    assert (engine.revision, engine.start_timeout_seconds) == ("v1", 60)
    assert catalog.tiers[0].remote is not None
    assert next(t for t in catalog.tiers if t.name == "small").remote.max_context == 4096  # type: ignore[union-attr]


def test_tiers_with_the_same_engine_share_one_process() -> None:
    engine = {"engine": "vllm", "model": "Qwen/Qwen3-8B"}
    catalog = parsed(
        {"name": "brief", **engine, "max_tokens": 100},
        {"name": "long", **engine, "max_tokens": 1000},
        {"name": "alone", **engine, "engine_args": ["--enforce-eager"]},
    )
    assert list(catalog.engines) == ["brief", "alone"]
    assert [catalog.engine_name(tier) for tier in catalog.tiers if tier.name == "long"] == ["brief"]


def test_the_fingerprint_knows_the_model_and_not_how_long_a_start_may_take() -> None:
    def fingerprint(**changed: Any) -> str:
        return parsed({"name": "small", "engine": "vllm", "model": "org/a", **changed}).fingerprint

    assert fingerprint() == fingerprint(start_timeout_seconds=5, engine_env={"CUDA_VISIBLE_DEVICES": "0"})
    others = [
        fingerprint(model="org/b"),
        fingerprint(engine="sglang"),
        fingerprint(revision="v2"),
        fingerprint(engine_args=["--quantization", "fp8"]),
    ]
    assert len({fingerprint(), *others}) == 5


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ({"engine": "vlm", "model": "m"}, "remote.engine.kind = 'vlm': allowed: llama-server, ollama, sglang, vllm"),
        ({"engine": ["vllm"], "model": "m"}, "remote.engine.kind = ['vllm']"),
        ({"engine": "vllm"}, "remote.engine.model: missing"),
        ({"engine": "vllm", "model": 3}, "remote.engine.model = 3"),
        ({"engine": "vllm", "model": "m", "engine_args": "--x 1"}, "remote.engine.args = '--x 1'"),
        ({"engine": "vllm", "model": "m", "engine_args": ["a\x00b"]}, "remote.engine.args"),
        ({"engine": "vllm", "model": "m", "engine_args": ["--port", "80"]}, "--port is set by AIO"),
        (
            {"engine": "vllm", "model": "m", "url": "http://localhost:1/v1"},
            "exactly one of base_url, base_urls, replicas and engine must be set",
        ),
        ({"engine": "vllm", "model": "m", "api_key_env": "KEY"}, "api_key_env"),
        ({"engine": "ollama", "model": "m", "start_timeout_seconds": 0}, "start_timeout_seconds = 0"),
    ],
)
def test_a_wrong_engine_is_named(tier: dict[str, Any], expected: str) -> None:
    assert expected in complaint(**tier)


def test_a_hugging_face_id_is_a_model_in_process_with_a_short_name_and_its_revision() -> None:
    catalog = parsed({"name": "small", "model": "Qwen/Qwen3-0.6B-GGUF:Q8_0", "revision": "abc"})
    (model,) = catalog.core.models
    assert (model.name, model.path) == ("Qwen3-0.6B-GGUF", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0@abc")


def test_a_revision_of_what_is_no_hugging_face_id_is_refused() -> None:
    assert "revision = 'abc': unknown" in complaint(model="/models/x.gguf", revision="abc")
