"""`aio init --from` for Portkey and Bifrost: their models become a catalogue that loads, and every field is named as
carried over or not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gateway.operations.setup.found_tiers import SetupError
from gateway.operations.setup.other_gateways.hosted import migrated_file
from tests.gateway.in_process_cli import aio
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog

LUNA = {"model": "gpt-6-luna"}
PORTKEY = {
    "strategy": {"mode": "fallback", "on_status_codes": [429]},
    "retry": {"attempts": 3},
    "cache": {"mode": "simple", "max_age": 600},
    "request_timeout": 20_000,
    "input_guardrails": ["pii"],
    "targets": [
        {
            "strategy": {"mode": "loadbalance"},
            "targets": [
                {"provider": "openai", "api_key": "{{OPENAI_A}}", "weight": 0.7, "override_params": LUNA},
                {"provider": "openai", "api_key": "sk-in-the-file", "weight": 0.3, "override_params": LUNA},
            ],
        },
        {"override_params": {"model": "@anthropic-prod/claude-haiku-5-5", "temperature": 0.2}, "request_timeout": 5000},
        {"virtual_key": "my-own-vendor", "override_params": {"model": "m"}},
    ],
}  # fmt: skip
BOTH = ["gpt-6-luna", "gpt-6.1-sol"]
BIFROST = {
    "client": {"disable_content_logging": True, "initial_pool_size": 300},
    "providers": {
        "openai": {
            "keys": [
                {"name": "a", "value": "env.OPENAI_A", "models": ["gpt-6-luna"], "weight": 0.7},
                {"name": "b", "value": {"env_var": "env.OPENAI_B"}, "models": BOTH, "weight": 0.3},
                {"name": "c", "value": "env.OPENAI_C", "models": ["gpt-6.1-sol"], "weight": 1, "enabled": False},
            ],
            "network_config": {"default_request_timeout_in_seconds": 30, "max_retries": 2},
        },
        "azure": {
            "keys": [
                {
                    "value": "env.AZURE_KEY",
                    "models": ["gpt-4o"],
                    "azure_key_config": {"endpoint": "https://x.openai.azure.com", "deployments": {"gpt-4o": "my-4o"}},
                }
            ]
        },
        "vllm": {"keys": [{"value": "", "models": ["llama"], "vllm_key_config": {"url": "http://127.0.0.1:9"}}]},
        "runway": {"keys": [{"value": "env.RUNWAY", "models": ["video"], "weight": 1}]},
    },
    "governance": {"virtual_keys": [{"name": "v", "value": "sk-bf-secret"}]},
}  # fmt: skip
FILES = {"portkey.json": json.dumps(PORTKEY), "bifrost.json": json.dumps(BIFROST)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("AIO_", "AZURE_", "OPENAI_", "AWS_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def written(name: str) -> tuple[Result, Catalog]:
    result = aio("init", "--yes", "--from", name)
    assert result.exit_code == 0, result.output
    return result, load_catalog("aio.toml")


def entries(catalog: Catalog) -> dict[str, Any]:
    return {one.name: one for one in (*catalog.tiers, *catalog.targets)}


def leaves(value: Any, path: str = "") -> list[str]:
    """Paths of all fields that have a value."""
    if value in (None, "", {}, []):
        return []
    if isinstance(value, dict):
        return [one for key, each in value.items() for one in leaves(each, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return [one for place, each in enumerate(value) for one in leaves(each, f"{path}[{place}]")]
    return [path]


@pytest.mark.parametrize("name", FILES)
def test_every_field_is_named_as_carried_over_or_not(here: Path, name: str) -> None:
    found = migrated_file(here / name, {})
    named = {*found.carried, *found.left}

    def is_named(path: str) -> bool:
        return any(path == one or path.startswith((f"{one}.", f"{one}[")) for one in named)

    assert [path for path in leaves(json.loads(FILES[name])) if not is_named(path)] == []


@pytest.mark.parametrize("name", FILES)
def test_no_secret_of_a_file_is_written_or_printed(here: Path, name: str) -> None:
    result, _ = written(name)
    texts = result.output + "".join(path.read_text() for path in (here / "aio.toml", here / "aio.env") if path.exists())
    assert "sk-" not in texts.replace("api_key_env", "")


def test_a_portkey_config_balances_keys_and_falls_back(here: Path) -> None:
    result, catalog = written("portkey.json")
    found = entries(catalog)
    luna, haiku = found["gpt-6-luna"], found["claude-haiku-5-5"]
    assert luna.fallback == ["claude-haiku-5-5"]
    assert luna.remote is not None
    assert haiku.sampling.temperature == 0.2
    assert (luna.remote.total_timeout_seconds, haiku.remote.total_timeout_seconds) == (20.0, 5.0)
    text = (here / "aio.toml").read_text()
    assert "OPENAI_A" in text
    assert "set GPT_6_LUNA_API_KEY to the key in targets[0].targets[1].api_key" in result.output
    for line in (
        "targets[2]: its provider is not known by my-own-vendor",
        "input_guardrails: declare AIO's own as [[guardrails]]",
        "strategy.on_status_codes: a chain is tried whatever the failure",
    ):
        assert line in result.output
    assert "aio knobs cache ttl_seconds=600" in result.output


def test_slugs_of_portkey_with_a_number_are_their_providers_and_a_base_url_is_where_requests_go(here: Path) -> None:
    targets = [
        {"provider": "openai", "base_url": "http://127.0.0.1:9/v1", "override_params": {"model": "llama"}},
        {"virtual_key": "gemini1", "override_params": {"model": "gemini-3-flash"}},
        {"virtual_key": "@grok1", "override_params": {"model": "grok-5"}},
    ]
    (here / "portkey.json").write_text(json.dumps({"strategy": {"mode": "fallback"}, "targets": targets}))
    _, catalog = written("portkey.json")
    found = entries(catalog)
    assert {name: one.remote.base_url for name, one in found.items()} == {
        "llama": "http://127.0.0.1:9/v1",
        "gemini-3-flash": "https://generativelanguage.googleapis.com/v1beta",
        "grok-5": "https://api.x.ai/v1",
    }


def test_targets_that_portkey_balances_are_one_name_of_which_the_second_model_stands_in(here: Path) -> None:
    targets = [{"provider": "openai", "override_params": {"model": model}} for model in ("gpt-6-luna", "gpt-6.1-sol")]
    (here / "portkey.json").write_text(json.dumps({"strategy": {"mode": "loadbalance"}, "targets": targets}))
    _, catalog = written("portkey.json")
    found = entries(catalog)
    assert found["gpt-6-luna"].fallback == ["gpt-6-luna-2"]
    assert found["gpt-6-luna-2"].remote.model == "gpt-6.1-sol"


def test_a_bifrost_config_keeps_keys_deployments_and_settings(here: Path) -> None:
    result, catalog = written("bifrost.json")
    found = entries(catalog)
    assert {"gpt-6-luna", "gpt-6.1-sol", "gpt-4o", "llama"} <= {*found}
    assert found["gpt-4o"].remote.model == "my-4o"
    assert found["llama"].remote.base_url == "http://127.0.0.1:9/v1"
    assert catalog.aliases["openai/gpt-6-luna"] == "gpt-6-luna"
    text = (here / "aio.toml").read_text()
    assert "OPENAI_A" in text
    assert "OPENAI_B" in text
    assert "OPENAI_C" not in text
    assert "AIO_STORE_TEXTS=false" in (here / "aio.env").read_text()
    for line in ("keys[2]: it is disabled", "governance: keys, teams and budgets", "AIO has no provider 'runway'"):
        assert line in result.output


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", "{", "cannot be read"),
        ("x.json", '{"a": 1}', "no config of Portkey or Bifrost"),
        ("x.json", "[1, 2]", "no config of Portkey or Bifrost"),
        ("tensorzero.toml", "[models.a]", "does not read tensorzero.toml .*: write each model as --tier"),
        ("x.json", '{"data": [{"designated_version": {}}]}', "does not read OpenRouter's presets: write each model as"),
    ],
)
def test_a_file_of_no_gateway_is_refused_in_a_sentence(here: Path, name: str, text: str, said: str) -> None:
    (here / name).write_text(text)
    with pytest.raises(SetupError, match=said):
        migrated_file(here / name, {})


@pytest.mark.parametrize(
    "document",
    [
        {"providers": {"openai": {"keys": [None, {"models": 3}]}}},
        {"targets": [None, 3]},
        {"strategy": 1, "options": [{}]},
        {"providers": {"a": 3}},
    ],
)
def test_values_of_other_types_are_no_errors(here: Path, document: dict[str, Any]) -> None:
    (here / "x.json").write_text(json.dumps(document))
    assert migrated_file(here / "x.json", {}).account.left
