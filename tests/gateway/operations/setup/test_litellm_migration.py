"""`aio init --from`: LiteLLM's config.yaml becomes a catalogue and settings, and every field is accounted for."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.settings import Settings
from gateway.cli import main
from gateway.operations.setup.other_gateways.account import Account
from gateway.operations.setup.other_gateways.hosted import migrated_file as migrated
from tests.support.app import StartApp
from tests.support.upstream import Upstream, running_upstream
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import TierSpec

CONFIGS = Path(__file__).parent / "litellm_configs"
MASTER = "b3f1c29a7de84f60951c7ad23e0f4b68"
ENVIRONMENT = {
    "VLLM_A": "http://127.0.0.1:9/v1", "VLLM_B": "http://127.0.0.2:9/v1", "OLLAMA": "http://127.0.0.1:9",
    "LITELLM_MASTER_KEY": MASTER,
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("AIO_", "AZURE_", "OPENAI_", "AWS_"))]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def aio(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, arguments)])


def written(name: str, *options: object) -> tuple[str, Catalog]:
    """What is printed for a config, and the catalogue as `aio serve` reads it."""
    result = aio("--from", CONFIGS / f"{name}.yaml", *options)
    assert result.exit_code == 0, result.output
    return result.output, load_catalog("aio.toml")


def tier(catalog: Catalog, name: str) -> TierSpec:
    return next(one for one in catalog.tiers if one.name == name)


def without_numbers(text: str) -> str:
    return re.sub(r"\[[0-9,-]+\]", "[]", text)


@pytest.mark.parametrize("name", ["team", "azure", "many"])
def test_every_field_is_named_as_carried_over_or_not(here: Path, name: str) -> None:
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    found = migrated(CONFIGS / f"{name}.yaml", ENVIRONMENT)
    named = {*found.carried, *found.left}

    def missing(value: Any, path: str) -> list[str]:
        if path in named or value in (None, {}, []):
            return []
        if isinstance(value, dict) and value:
            return [one for key, each in value.items() for one in missing(each, f"{path}.{key}" if path else str(key))]
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            return [one for place, each in enumerate(value) for one in missing(each, f"{path}[{place}]")]
        return [path]

    assert missing(config, "") == []
    assert not {*found.carried} & {*found.left}
    report = without_numbers(found.account.report())
    assert all(without_numbers(path) in report for path in named)


def test_a_teams_proxy_becomes_three_tiers(here: Path) -> None:
    said, catalog = written("team")

    assert [one.name for one in catalog.tiers] == ["qwen", "gpt-4o", "claude"]
    gpt, claude, qwen = (tier(catalog, name) for name in ("gpt-4o", "claude", "qwen"))
    assert gpt.remote is not None
    assert claude.remote is not None
    assert qwen.remote is not None
    assert (gpt.remote.kind, gpt.remote.model) == ("openai-provider", "gpt-4o")
    assert [(one.env, one.requests_per_minute, one.tokens_per_minute) for one in gpt.remote.api_keys] == [
        ("OPENAI_API_KEY", 480, 100_000)
    ]
    assert qwen.fallback == ["gpt-4o", "claude"]
    assert (gpt.remote.total_timeout_seconds, gpt.remote.read_timeout_seconds) == (300, 60)
    assert gpt.capabilities.vision
    assert (claude.remote.kind, claude.remote.total_timeout_seconds) == ("anthropic", 600)
    assert (claude.sampling.temperature, claude.default_max_tokens) == (0.2, 2048)
    assert [(one.base_url, one.weight, one.api_key_env) for one in qwen.remote.replicas] == [
        ("http://127.0.0.1:9/v1", 2, None), ("http://127.0.0.2:9/v1", 1, "QWEN_API_KEY"),
    ]  # fmt: skip
    assert (qwen.remote.balancing.max_attempts, qwen.remote.balancing.ejection_seconds) == (3, 30)
    assert (qwen.price.input_usd_per_million, qwen.price.output_usd_per_million) == (0.05, 0.15)
    assert qwen.remote.max_context == 32_768
    assert "0.15 }  # LiteLLM's config" in Path("aio.toml").read_text()
    assert catalog.aliases == {"gpt-4": "gpt-4o"}
    assert "set QWEN_API_KEY to the key in model_list[3].litellm_params.api_key" in said
    assert "aio knobs cache ttl_seconds=600" in said


def test_what_is_not_carried_over_is_said_with_the_reason(here: Path) -> None:
    left = migrated(CONFIGS / "team.yaml", ENVIRONMENT).left

    assert left["general_settings.a_field_of_tomorrow.deep"].startswith("AIO has nothing like it")
    assert "observability.md" in left["litellm_settings.success_callback"]
    assert "gone is no model here" in left["router_settings.model_group_alias.old"]
    assert "one of its own" in left["general_settings.database_url"]


def test_no_secret_of_the_file_is_written_or_printed(here: Path) -> None:
    for name in ("team", "many"):
        said, _ = written(name, "--force")
        files = Path("aio.toml").read_text() + Path("aio.env").read_text()
        for secret in ("sk-a-key-in-the-file", "sk-first", "sk-second", "in-the-file"):
            assert secret not in said + files


def test_a_companys_regions_stand_in_for_each_other_and_each_name_has_what_it_had(here: Path) -> None:
    _, catalog = written("azure")

    entries = (*catalog.tiers, *catalog.targets)
    assert {one.name: one.remote.base_url for one in entries if one.remote is not None} == {
        "gpt-4o": "https://eu.openai.azure.com/openai/v1",
        "gpt-4o-2": "https://us.openai.azure.com/openai/v1",
        "gpt-4o-eu": "https://eu.openai.azure.com/openai/v1",
        "claude-bedrock": "https://bedrock-runtime.eu-central-1.amazonaws.com",
        "titan": "https://bedrock-runtime.us-east-1.amazonaws.com",
        "gemini": "https://europe-west4-aiplatform.googleapis.com/v1/projects/project/locations/europe-west4",
    }
    assert [one.name for one in catalog.targets] == ["gpt-4o-2", "gpt-4o-eu"]
    eu = tier(catalog, "gpt-4o")
    assert (eu.price.input_usd_per_million, eu.max_output_tokens) == (2.5, 16_384)
    assert eu.remote is not None
    assert (eu.remote.kind, eu.remote.responses, eu.remote.total_timeout_seconds) == ("azure", "needed", 120)
    left = migrated(CONFIGS / "azure.yaml", {}).left
    assert "v1 API" in left["model_list[0].litellm_params.api_version"]
    assert eu.fallback == ["gpt-4o-2"]
    assert "no model has several servers" in left["router_settings.num_retries"]


def test_a_key_and_a_redis_of_the_file_are_not_written_and_a_line_says_what_to_set(here: Path) -> None:
    found = migrated(CONFIGS / "team.yaml", ENVIRONMENT)
    assert found.left["general_settings.master_key"].startswith("set AIO_API_KEYS=master=KEY and AIO_ADMIN_KEYS")
    assert found.left["router_settings.redis_password"].startswith("set AIO_REDIS_URL to redis://")
    assert MASTER not in "".join([found.account.report(), *found.environment.values()])


def test_what_grew_over_years_keeps_what_can_be_asked(here: Path) -> None:
    said, catalog = written("many")

    assert {one.name for one in catalog.tiers} == {"llama3.2", "tgi", "groq-llama", "o3-low", "o3-high"}
    keys = tier(catalog, "o3-high").remote
    assert keys is not None
    assert [one.env for one in keys.api_keys] == ["O3_LOW_API_KEY", "O3_HIGH_API_KEY"]
    assert (tier(catalog, "o3-low").effort, tier(catalog, "o3-high").effort) == ("low", "high")
    assert {name: to for name, to in catalog.aliases.items() if not name.startswith("anthropic/")} == {
        "meta/llama": "llama", "cheap": "llama3.2",
    }  # fmt: skip
    assert "llama" in [one.name for one in catalog.targets], "the model is a tier once, under its first name"
    assert catalog.aliases["anthropic/claude-opus-5-5"] == "claude-opus-5-5"
    remote = tier(catalog, "tgi").remote
    assert remote is not None
    assert (remote.kind, remote.base_url) == ("tgi", "http://127.0.0.1:9/v1")
    left = migrated(CONFIGS / "many.yaml", ENVIRONMENT).left
    for place, why in (
        (6, "one of `auto`"), (10, "which is not set here"), (11, "no provider 'acme'"),
    ):  # fmt: skip
        assert why in left[f"model_list[{place}]"]
    assert "set AIO_REDIS_URL" in left["litellm_settings.cache_params.password"]
    assert "seed" in said


def test_a_shell_that_reads_the_settings_gives_aio_what_the_file_said(here: Path) -> None:
    assert aio("--from", CONFIGS / "azure.yaml").exit_code == 0
    shell = shutil.which("sh")
    assert shell is not None
    script = "set -a; . ./aio.env; set +a; exec env"
    out = subprocess.run([shell, "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)

    lines = dict(line.split("=", 1) for line in out.stdout.splitlines())
    assert {name: value for name, value in lines.items() if name.startswith("AIO_")} == {
        "AIO_LOG_LEVEL": "debug", "AIO_STORE_TEXTS": "false", "AIO_BUDGETS_WITHOUT_DATABASE": "open",
        "AIO_MAX_IN_FLIGHT": "500", "AIO_BODY_LIMIT": str(32 * 2**20),
    }  # fmt: skip


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Upstream, Upstream]]:
    with running_upstream() as first, running_upstream() as second:
        yield first, second


async def test_the_migrated_catalogue_serves_by_the_old_names(
    here: Path, settings: Settings, servers: tuple[Upstream, Upstream], monkeypatch: pytest.MonkeyPatch, app: StartApp
) -> None:
    for name, server in zip(("VLLM_A", "VLLM_B"), servers, strict=True):
        monkeypatch.setenv(name, server.base_url)
    monkeypatch.setenv("OPENAI_SERVER", servers[0].base_url)
    monkeypatch.setenv("QWEN_API_KEY", "any")
    text = (CONFIGS / "team.yaml").read_text()
    text = text.replace("model: openai/gpt-4o\n", "model: openai/gpt-4o\n      api_base: os.environ/OPENAI_SERVER\n")
    text = text.replace("os.environ/OPENAI_API_KEY", "none")
    (here / "config.yaml").write_text(text)
    result = await asyncio.to_thread(aio, "--from", "config.yaml")
    assert result.exit_code == 0, result.output

    served = msgspec.structs.replace(settings, catalog=str(here / "aio.toml"))
    gateway = await app(served, scripted=False, protocol="httptools")
    for name, answering in (("qwen", "qwen"), ("gpt-4", "gpt-4o"), ("auto", None)):
        body = {"model": name, "messages": [{"role": "user", "content": "Say something"}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        if answering is not None:
            catalog = load_catalog(served.catalog)
            assert answer.headers["x-aio-tier"] == str(tier(catalog, answering).number)


def test_one_model_alone_is_both_tiers_until_there_is_another(here: Path) -> None:
    Path("one.yaml").write_text("model_list: [{model_name: a, litellm_params: {model: groq/llama-3.3-70b-versatile}}]")
    alone = aio("--from", "one.yaml")
    assert alone.exit_code == 0, alone.output
    assert "a is the only model" in alone.output
    assert {one.name for one in load_catalog("aio.toml").tiers} == {"a", "a-again"}

    both = aio("--from", "one.yaml", "--force", "--tier", "b=openai:gpt-4o")
    assert both.exit_code == 0, both.output
    assert {one.name for one in load_catalog("aio.toml").tiers} == {"a", "b"}


def test_beyond_eight_models_the_others_are_targets(here: Path) -> None:
    models = [
        {"model_name": f"m{n}", "litellm_params": {"model": f"openai/m{n}", "api_base": "http://a/v1"}}
        for n in range(10)
    ]
    Path("ten.yaml").write_text(yaml.safe_dump({"model_list": models}))
    found = migrated(Path("ten.yaml"), {})
    assert [one.name for one in found.candidates] == [f"m{n}" for n in range(8)]
    assert [one.name for one in found.targets] == ["m8", "m9"]
    assert not found.left


def test_credentials_kept_apart_are_those_of_the_entries_that_name_them(here: Path) -> None:
    (here / "config.yaml").write_text(
        """
model_list:
  - {model_name: small, litellm_params: {model: openai/m, litellm_credential_name: ours}}
  - {model_name: large, litellm_params: {model: openai/n, litellm_credential_name: ours, api_key: os.environ/OWN}}
  - {model_name: lost, litellm_params: {model: openai/o, litellm_credential_name: nobody}}
credential_list:
  - {credential_name: ours, credential_values: {api_key: os.environ/TEAM, api_base: "http://127.0.0.1:9/v1"}}
"""
    )
    found = migrated(here / "config.yaml", {})
    entries = {one.name: (one.url, one.api_key_env) for one in (*found.candidates, *found.targets)}

    assert entries["small"] == ("http://127.0.0.1:9/v1", "TEAM")
    assert entries["large"] == ("http://127.0.0.1:9/v1", "OWN")
    assert set(found.left) == {"model_list[2].litellm_params.litellm_credential_name"}


def test_a_deployment_at_azure_costs_what_the_others_of_its_name_do(here: Path) -> None:
    (here / "config.yaml").write_text(
        """
model_list:
  - model_name: chat
    litellm_params: {model: azure/ours-eu, api_base: "https://eu.openai.azure.com"}
    model_info: {base_model: azure/gpt-4o-mini}
  - {model_name: chat, litellm_params: {model: azure/ours-us, api_base: "https://us.openai.azure.com"}}
"""
    )
    prices = [one.price for one in migrated(here / "config.yaml", {}).candidates]

    assert prices[0] is not None
    assert prices == [prices[0], prices[0]]
    assert not prices[0].estimated


def test_a_model_of_openai_that_answers_no_chats_is_left(here: Path) -> None:
    (here / "config.yaml").write_text(
        """
model_list:
  - {model_name: old, litellm_params: {model: text-completion-openai/gpt-3.5-turbo-instruct}}
  - {model_name: own, litellm_params: {model: text-completion-openai/davinci-002, api_base: "http://127.0.0.1:9/v1"}}
  - {model_name: new, litellm_params: {model: gpt-4o-mini}}
"""
    )
    found = migrated(here / "config.yaml", {})

    assert {one.name for one in found.candidates} == {"own", "new"}
    assert found.left["model_list[0]"].endswith("only completes texts")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model_list: [", "is no YAML"),
        ("tiers: []", "has no model_list"),
        ("model_list: []\nmodel_list: []", "add --tier NAME=WHAT"),
        ("a: &a [*a]\nmodel_list: 1", "has no model_list"),
    ],
)
def test_a_file_that_is_none_is_refused(here: Path, text: str, said: str) -> None:
    Path("config.yaml").write_text(text)
    result = aio("--from", "config.yaml")
    assert result.exit_code == 1
    assert said in result.output
    assert not Path("aio.toml").exists()


def test_existing_files_are_not_overwritten(here: Path) -> None:
    Path("aio.env").write_text("mine")
    result = aio("--from", CONFIGS / "team.yaml")
    assert result.exit_code == 1
    assert "aio.env exists" in result.output
    assert not Path("aio.toml").exists()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "model", "api_base", "api_key", "weight", "timeout", "temperature", "max_tokens", "reasoning_effort",
    "aws_region_name", "input_cost_per_token", "custom_llm_provider",
)  # fmt: skip
PARAMS = st.dictionaries(st.sampled_from(NAMES), VALUES | st.sampled_from(("openai/a", "azure/b", "http://a/v1", "x")))
SETTINGS = (
    "num_retries", "timeout", "cache", "cache_params", "model_group_alias", "redis_host", "callbacks", "master_key",
    "drop_params", "max_request_size_mb", "redis_url", "fallbacks",
)  # fmt: skip
ENTRIES = st.fixed_dictionaries({}, optional={"model_name": VALUES, "litellm_params": PARAMS, "model_info": VALUES})


@given(st.lists(ENTRIES, max_size=3), st.dictionaries(st.sampled_from(SETTINGS), VALUES))
def test_odd_values_are_left_and_never_an_error(
    tmp_path_factory: pytest.TempPathFactory, models: list[Any], section: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("odd") / "config.yaml"
    config = {
        "model_list": models,
        "router_settings": section,
        "litellm_settings": section,
        "general_settings": section,
    }
    path.write_text(yaml.safe_dump(config))
    migrated(path, {}).account.report()


def test_what_is_left_covers_what_is_below_it() -> None:
    account = Account()
    account.carry("a.b", "it")
    account.leave("a", "why")
    account.close({"a": {"b": 1, "c": 2}, "d": 3, "e": None, "f": {}})
    assert (account.carried, [*account.left]) == ({}, ["a", "d"])
