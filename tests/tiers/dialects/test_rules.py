"""Provider rules: which rows hold for which server and model."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tiers.catalog.tier_spec import ProviderName, RemoteKind, RemoteSpec
from tiers.dialects import quirks
from tiers.dialects.quirks import read_rows
from tiers.dialects.rules import ServerRow, ServerRows, rules_of, server_of, server_rows
from tiers.remote.server_failures import is_secret

SAMPLING = {"temperature", "top_p", "top_k"}
_SERVERS_WITHOUT_A_KIND = {"compatible", "provider", "ollama", "triton", "vertex-anthropic"}


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
    assert (rules_of(server, model).parameters.refused >= SAMPLING) is refuses


@pytest.mark.parametrize("row", server_rows().rows, ids=lambda row: f"{row.servers} {row.families}")
def test_every_row_has_its_source_and_is_reachable(row: ServerRow) -> None:
    assert row.source.startswith("https://")
    assert re.fullmatch(r"20\d\d-[01]\d", row.seen)
    assert row.rules
    servers = {*get_args(ProviderName), *get_args(RemoteKind), *_SERVERS_WITHOUT_A_KIND}
    servers |= {*server_rows().hosts.values(), *server_rows().groups}
    assert row.servers
    assert {*row.servers} <= servers


def test_a_family_of_models_is_named_by_some_row() -> None:
    assert {name for row in server_rows().rows for name in row.families} == server_rows().families.keys()


@pytest.mark.parametrize(
    ("changed", "with_what"),
    [
        ("rules.stops = 4", "rules.stop = 4"),
        ("rules.stops = 4", 'rules.stops = "four"'),
        ('families = ["nova"]', 'families = ["unknown"]'),
        ("seen =", "saw ="),
    ],
)
def test_a_row_with_a_field_or_a_family_that_is_not_known_is_no_row(
    changed: str, with_what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (quirks._FOLDER / "servers.toml").read_text(encoding="utf-8")
    (tmp_path / "servers.toml").write_text(text.replace(changed, with_what, 1), encoding="utf-8")
    monkeypatch.setattr(quirks, "_FOLDER", tmp_path)
    with pytest.raises(msgspec.ValidationError):
        read_rows("servers", ServerRows)


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        *((word, False) for word in ("", "ollama", "not-needed", "EMPTY", "sk-1234", "lm-studio")),
        *((key, True) for key in ("sk-proj-4f9a8b7c6d5e", "test-key-123", "sk-ant-very-secret", "D681PevKsX2mQ")),
    ],
)
def test_a_word_that_stands_for_a_key_is_no_secret(key: str, secret: bool) -> None:
    assert is_secret(key) is secret
