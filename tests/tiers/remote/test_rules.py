"""Provider rules: which rows hold for which server and model."""

import re

import pytest

from tiers.catalog.tier_spec import RemoteSpec
from tiers.remote.rules import ROWS, SAMPLING, rules_of, server_of
from tiers.remote.server_failures import is_secret


@pytest.mark.parametrize(
    ("fields", "provider", "server"),
    [
        ({"base_url": "https://api.mistral.ai/v1", "kind": "openai"}, None, "mistral"),
        ({"base_url": "https://eu.api.mistral.ai/v1", "kind": "openai"}, None, "mistral"),
        ({"base_url": "https://notapi.mistral.ai.example.com/v1", "kind": "openai"}, None, "compatible"),
        ({"base_url": "http://10.0.0.1:9/v1", "kind": "openai-provider"}, "mistral", "mistral"),
        ({"base_url": "http://10.0.0.1:9/v1", "kind": "openai-provider"}, None, "provider"),
        ({"base_url": "http://localhost:11434/v1", "kind": "openai"}, None, "ollama"),
        ({"base_url": "http://localhost:8000/v1", "kind": "vllm"}, None, "vllm"),
        ({"base_url": "http://localhost:8000", "kind": "anthropic"}, None, "anthropic"),
    ],
)
def test_a_server_is_known_by_its_provider_else_its_address_else_its_kind(
    fields: dict[str, str], provider: str | None, server: str
) -> None:
    assert server_of(RemoteSpec(**fields), provider) == server  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("server", "model", "refuses"),
    [
        ("anthropic", "claude-opus-4-7", True),
        ("anthropic", "claude-opus-4-8-20260528", True),
        ("anthropic", "claude-opus-5", True),
        ("anthropic", "claude-haiku-5-5", True),
        ("anthropic", "claude-opus-4-20250514", False),
        ("anthropic", "claude-opus-4-6", False),
        ("anthropic", "claude-sonnet-4-5-20250929", False),
        ("anthropic", "claude-3-5-haiku-latest", False),
        ("bedrock", "eu.anthropic.claude-opus-4-7-v1:0", True),
        ("bedrock", "eu.anthropic.claude-sonnet-4-5-20250929-v1:0", False),
        ("openai", "o4-mini", True),
        ("openai", "gpt-5-mini", True),
        ("openai", "gpt-5.6-sol", False),
        ("openai", "gpt-5-chat-latest", False),
        ("openai", "gpt-4.1", False),
    ],
)
def test_later_models_refuse_to_be_sampled_otherwise(server: str, model: str, refuses: bool) -> None:
    assert (rules_of(server, model).refused >= SAMPLING) is refuses


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.servers} {row.models}")
def test_every_row_has_its_source_and_is_reachable(row: object) -> None:
    servers, models, rules, source, seen = row  # type: ignore[misc]
    assert source.startswith("https://")
    assert re.fullmatch(r"20\d\d-[01]\d", seen)
    assert rules
    re.compile(models)
    assert servers


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        *((word, False) for word in ("", "ollama", "not-needed", "EMPTY", "sk-1234", "lm-studio")),
        *((key, True) for key in ("sk-proj-4f9a8b7c6d5e", "test-key-123", "sk-ant-very-secret", "D681PevKsX2mQ")),
    ],
)
def test_a_word_that_stands_for_a_key_is_no_secret(key: str, secret: bool) -> None:
    assert is_secret(key) is secret
