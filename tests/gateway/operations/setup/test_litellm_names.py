"""`aio init --from`: each kind of entry met in LiteLLM's configurations, and the entry by which its name answers."""

import asyncio
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.settings import Settings
from gateway.operations.setup.other_gateways.account import Account, Fields, report_lines, tables
from gateway.operations.setup.other_gateways.hosted import migrated_file as migrated
from gateway.operations.setup.other_gateways.migrate import Migration
from gateway.operations.setup.other_gateways.models import time_limits
from gateway.operations.setup.other_gateways.servers import server_of
from tests.gateway.in_process_cli import aio
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import TierSpec

LOCAL = "{model_name: local, litellm_params: {model: hosted_vllm/q, api_base: 'http://127.0.0.1:9/v1'}}"
OTHER = "{model_name: other, litellm_params: {model: hosted_vllm/r, api_base: 'http://127.0.0.1:9/v1'}}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    starts = ("AIO_", "AZURE_", "OPENAI_", "AWS_", "GOOGLE_", "VERTEX", "ANTHROPIC_", "GEMINI_")
    for name in [name for name in os.environ if name.startswith(starts)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def migration(text: str, environ: Mapping[str, str] | None = None, **options: Any) -> Migration:
    Path("config.yaml").write_text(text)
    return migrated(Path("config.yaml"), environ or {}, **options)


def written(*entries: str, rest: str = "") -> Catalog:
    """The catalogue of a model_list, as `aio serve` reads it."""
    Path("config.yaml").write_text("model_list:\n" + "".join(f"  - {entry}\n" for entry in entries) + rest)
    result = aio("init", "--yes", "--force", "--from", "config.yaml")
    assert result.exit_code == 0, result.output
    return load_catalog("aio.toml")


def entry(catalog: Catalog, name: str) -> TierSpec:
    name = catalog.aliases.get(name, name)
    return next(one for one in (*catalog.tiers, *catalog.targets) if one.name == name)


def chain(catalog: Catalog, name: str) -> list[str]:
    return entry(catalog, name).fallback or []


@pytest.mark.parametrize(
    ("params", "server"),
    [
        ("{model: gpt-4o}", ("openai", None, "gpt-4o")),
        ("{model: openai/responses/gpt-5}", ("openai", None, "gpt-5")),
        ("{model: openai/m, api_base: 'http://a/v1/'}", (None, "http://a/v1", "m")),
        ("{model: azure/o_series/o3, api_base: 'https://a.openai.azure.com/openai/'}",
         ("azure", "https://a.openai.azure.com", "o3")),
        ("{model: azure/d, api_base: 'https://openai-mine.openai.azure.com/openai/deployments/d?api-version=1'}",
         ("azure", "https://openai-mine.openai.azure.com", "d")),
        ("{model: us.anthropic.claude-x}", ("bedrock", None, "us.anthropic.claude-x")),
        ("{model: azure_ai/claude-opus-4-5, api_base: 'https://a.services.ai.azure.com/anthropic/'}",
         ("anthropic", "https://a.services.ai.azure.com/anthropic/v1", "claude-opus-4-5")),
        ("{model: azure_ai/grok-4, api_base: 'https://a.services.ai.azure.com/models'}",
         ("azure", "https://a.services.ai.azure.com", "grok-4")),
        ("{model: anthropic/claude-x, api_base: 'http://a'}", ("anthropic", "http://a/v1", "claude-x")),
        ("{model: anthropic/claude-x, api_base: 'http://a/v1/messages'}", ("anthropic", "http://a/v1", "claude-x")),
        ("{model: gemini/gemini-x, api_base: 'http://a/v1beta/models/gemini-x'}",
         ("gemini", "http://a/v1beta", "gemini-x")),
        ("{model: bedrock/us-west-2/anthropic.claude-x}",
         ("bedrock", "https://bedrock-runtime.us-west-2.amazonaws.com", "anthropic.claude-x")),
        ("{model: bedrock/invoke/anthropic.claude-x}", ("bedrock", None, "anthropic.claude-x")),
        ("{model: bedrock/converse/m, aws_region_name: os.environ/REGION}",
         ("bedrock", "https://bedrock-runtime.eu-central-1.amazonaws.com", "m")),
        ("{model: vertex_ai/claude-x@1, vertex_project: p, vertex_location: eu}",
         ("vertex", "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu", "claude-x@1")),
        ("{model: vertex_ai/gemini-x, vertex_project: os.environ/PROJECT}",
         ("vertex", "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1", "gemini-x")),
        ("{model: vertex_ai/claude-x, api_base: 'https://h/v1/projects/p/locations/eu/publishers/anthropic/models/m'}",
         ("vertex", "https://h/v1/projects/p/locations/eu", "claude-x")),
        ("{model: ollama_chat/llama3, api_base: 'http://o:11434'}", (None, "http://o:11434/v1", "llama3")),
        ("{model: huggingface/together/org/m}", (None, "https://router.huggingface.co/v1", "org/m:together")),
        ("{model: moonshot/kimi-k2}", (None, "https://api.moonshot.ai/v1", "kimi-k2")),
        ("{model: dashscope/qwen-max}", (None, "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "qwen-max")),
        ("{model: novita/deepseek/m}", (None, "https://api.novita.ai/v3/openai", "deepseek/m")),
        ("{model: cloudflare/@cf/m}", (None, "https://api.cloudflare.com/client/v4/accounts/abc/ai/v1", "@cf/m")),
        ("{model: ollama_chat/llama3}", (None, "http://o:11434/v1", "llama3")),
        ("{model: xai/grok}", ("xai", "http://x/v1", "grok")),
        ("{model: os.environ/MODEL}", ("mistral", None, "mistral-small")),
        ("{model: m, custom_llm_provider: groq}", ("groq", None, "m")),
    ],
)  # fmt: skip
def test_a_model_is_asked_where_litellm_asks_it(params: str, server: tuple[str | None, str | None, str]) -> None:
    import yaml

    environ = {"REGION": "eu-central-1", "PROJECT": "p", "MODEL": "mistral/mistral-small", "XAI_API_BASE": "http://x/v1/",
               "CLOUDFLARE_ACCOUNT_ID": "abc", "OLLAMA_API_BASE": "http://o:11434"}  # fmt: skip
    fields = Fields()
    fields.read(yaml.safe_load(params), "", tables()["litellm"]["litellm_params"], Account())
    found = server_of(fields, environ, "chat")
    assert not isinstance(found, str), found
    assert (found.provider, found.url, found.model) == server


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ("{model: os.environ/MODEL}", "MODEL, which is not set here"),
        ("{model: azure/m}", "AZURE_API_BASE is not set here"),
        ("{model: cloudflare/m}", "CLOUDFLARE_ACCOUNT_ID is not set here"),
        ("{model: vertex_ai/gemini-x, vertex_project: os.environ/P}", "its project is in the variable P"),
        ("{model: vertex_ai/meta/llama-4}", "Gemini and Claude"),
        ("{model: bedrock/agent/x}", "Converse API alone"),
        ("{model: openai/}", "names a provider alone"),
        ("{model: openai/a, api_base: 'https://user:pass@h/v1'}", "holds credentials"),
        ("{model: openai/a, api_base: 'http://169.254.169.254/v1'}", "metadata"),
        ("{model: unknown-model}", "write provider/model"),
        ("{model: replicate/meta/m}", "no provider 'replicate'"),
    ],
)
def test_a_model_that_cannot_be_asked_is_one_line(here: Path, params: str, why: str) -> None:
    found = migration(f"model_list: [{{model_name: a, litellm_params: {params}, model_info: {{x: 1, y: 2}}}}, {LOCAL}]")
    assert [*found.left] == ["model_list[0]"]
    assert why in found.left["model_list[0]"]


def test_deployments_of_one_name_stand_in_for_each_other_in_their_order(here: Path) -> None:
    catalog = written(
        "{model_name: claude, litellm_params: {model: bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0, order: 2}}",
        "{model_name: claude, litellm_params: {model: anthropic/claude-sonnet-4-5, order: 1}}",
        LOCAL,
    )
    assert [one.name for one in catalog.tiers] == ["local", "claude"]
    assert entry(catalog, "claude").provider == "anthropic"
    assert chain(catalog, "claude") == ["claude-2"]
    assert (entry(catalog, "claude-2").provider, entry(catalog, "claude-2").number) == ("bedrock", 2)


@pytest.mark.parametrize(
    ("rest", "chains"),
    [
        ("litellm_settings: {fallbacks: [{a: [b]}]}", {"a": ["b"], "b": [], "c": []}),
        ("router_settings: {fallbacks: [{a: [b]}, {b: [c]}]}", {"a": ["b", "c"], "b": ["c"], "c": []}),
        ("litellm_settings: {fallbacks: [{a: b}, {b: []}], default_fallbacks: [c]}", {"a": ["b"], "b": [], "c": []}),
        ("router_settings: {fallbacks: [{'*': [c]}]}", {"a": ["c"], "b": ["c"], "c": []}),
        ("router_settings: {context_window_fallbacks: [{a: [c]}], fallbacks: [{a: [b]}]}", {"a": ["b", "c"]}),
        ("router_settings: {model_group_alias: {big: c}, fallbacks: [{a: [big, gone]}]}", {"a": ["c"]}),
    ],
)
def test_fallbacks_are_chains_of_names(here: Path, rest: str, chains: dict[str, list[str]]) -> None:
    models = [
        f"{{model_name: {name}, litellm_params: {{model: groq/{name}, input_cost_per_token: {cost}.0e-6, "
        f"output_cost_per_token: {cost}.0e-6}}}}"
        for cost, name in enumerate("abc", start=1)
    ]
    catalog = written(*models, rest=rest)
    for name, stand_ins in chains.items():
        assert chain(catalog, name) == stand_ins
        assert entry(catalog, name).fallback_named == bool(stand_ins)


def test_a_fallback_that_no_model_has_is_named(here: Path) -> None:
    models = "".join(f"  - {{model_name: {name}, litellm_params: {{model: groq/{name}}}}}\n" for name in "ab")
    rest = "router_settings: {fallbacks: [{a: [gone]}, {gone: [a]}, {b: [a, gone]}]}"
    found = migration(f"model_list:\n{models}{rest}")
    chains = {one.name: one.further.get("fallback") for one in found.candidates}
    assert chains == {"a": None, "b": ["a"]}
    assert [*found.left] == ["router_settings.fallbacks[0].a", "router_settings.fallbacks[1].gone"]
    assert "but for gone" in found.carried["router_settings.fallbacks[2].b"]


@pytest.mark.parametrize(
    ("own", "common", "found"),
    [
        ({"total": 60}, {"total": 300, "read": 300}, {"read": 60, "total": 60}),
        ({"total": 300}, {"read": 60}, {"read": 60, "total": 300}),
        ({"read": 600}, {"total": 300}, {"read": 600, "total": 600}),
        ({}, {"total": 30, "read": 60}, {"read": 30, "total": 30}),
        ({"total": 0.5}, {}, {"read": 2, "total": 2}),
        ({}, {"total": 600}, {"read": 600, "total": 600}),
        ({}, {}, {}),
    ],
)
def test_a_models_own_time_limits_precede_those_of_all(
    own: dict[str, float], common: dict[str, float], found: dict[str, float]
) -> None:
    def named(limits: dict[str, float]) -> dict[str, float]:
        return {f"{name}_timeout_seconds": seconds for name, seconds in limits.items()}

    assert time_limits(named(own), named(common)) == named(found)


@pytest.mark.parametrize(
    ("pattern", "rest", "names"),
    [
        ("{model_name: 'anthropic/*', litellm_params: {model: 'anthropic/*'}}", "",
         {"anthropic/claude-opus-5-5": ("anthropic", "claude-opus-5-5")}),
        ("{model_name: 'my-*', litellm_params: {model: 'openrouter/openai/*'}}", "",
         {"my-gpt-6-luna": ("openrouter", "openai/gpt-6-luna")}),
        ("{model_name: '*', litellm_params: {model: '*'}}", "",
         {"gpt-6-luna": ("openai", "gpt-6-luna"), "gemini/gemini-4-argon": ("gemini", "gemini-4-argon"), "*": "auto"}),
        ("{model_name: '*', litellm_params: {model: hosted_vllm/only, api_base: 'http://v/v1'}}", "",
         {"only": ("", "only"), "*": "only"}),
        ("{model_name: 'v/*', litellm_params: {model: 'openai/*', api_base: 'http://v/v1', api_key: k}}",
         "router_settings: {fallbacks: [{local: [v/of-the-file]}]}", {"v/of-the-file": ("", "of-the-file")}),
        ("{model_name: 'mistral/*', litellm_params: {model: 'mistral/*'}}",
         "router_settings: {fallbacks: [{local: [mistral/of-the-file]}]}",
         {"mistral/of-the-file": ("mistral", "of-the-file")}),
    ],
)  # fmt: skip
def test_patterns_become_the_models_that_are_known_of_them(
    here: Path, pattern: str, rest: str, names: dict[str, Any]
) -> None:
    found = migration(f"model_list:\n  - {pattern}\n  - {LOCAL}\n  - {OTHER}\n{rest}")
    entries = {one.name: one for one in (*found.candidates, *found.targets)}
    for name, expected in names.items():
        answering = found.aliases.get(name, name)
        if isinstance(expected, str):
            assert answering == expected
        else:
            assert (entries[answering].provider, entries[answering].model) == expected
    assert [one.name for one in found.candidates if one.name != "of-the-file"] == ["local", "other"]


def test_of_a_file_of_patterns_alone_cheap_and_strong_models_are_tiers(here: Path) -> None:
    found = migration("model_list: [{model_name: '*', litellm_params: {model: '*'}}]", {"OPENAI_API_KEY": "k"})
    assert [one.model for one in found.candidates] == ["gpt-6-luna", "gpt-6.1-sol"]
    assert {one.provider for one in found.targets} == {"openai"}, "the key that is there"


@pytest.mark.parametrize(
    "pattern",
    [
        "{model_name: 'v/*', litellm_params: {model: 'openai/*', api_base: 'http://w/v1'}}",
        "{model_name: 'claude-*', litellm_params: {model: groq/big}}",
    ],
)
def test_a_pattern_of_which_no_model_is_known_is_one_line(here: Path, pattern: str) -> None:
    assert migration(f"model_list: [{pattern}, {LOCAL}]").left == {
        "model_list[0]": "no model of this pattern is known here: list its models, each as an entry"
    }


@pytest.mark.parametrize(
    ("text", "where", "found"),
    [
        ("{model: openai/text-embedding-3-small}", "embeddings", {"provider": "openai"}),
        ("{model: ollama/nomic-embed-text}", "embeddings", {"url": "http://localhost:11434/v1"}),
        ("{model: gemini/text-embedding-004}", "embeddings",
         {"url": "https://generativelanguage.googleapis.com/v1beta/openai", "api_key_env": "GEMINI_API_KEY"}),
        ("{model: voyage/voyage-3}", "embeddings", {"url": "https://api.voyageai.com/v1"}),
        ("{model: cohere/rerank-v3.5}", "targets", {"url": "https://api.cohere.com/v2", "serves": ["rerank"]}),
        ("{model: openai/whisper-1, rpm: 5}", "targets", {"serves": ["transcriptions"], "provider": "openai"}),
        ("{model: openai/tts-1}", "targets", {"serves": ["speech"]}),
        ("{model: dall-e-3}", "targets", {"serves": ["images"]}),
        ("{model: together_ai/Salesforce/Llama-Rank-V1}", "targets", {"serves": ["rerank"]}),
        ("{model: omni-moderation-latest}", "targets", {"serves": ["moderations"]}),
    ],
)  # fmt: skip
def test_models_of_other_modes_are_entries_of_their_endpoints(
    here: Path, text: str, where: str, found: dict[str, Any]
) -> None:
    written(f"{{model_name: 'the model', litellm_params: {text}}}", LOCAL, OTHER)
    table = tomllib.loads(Path("aio.toml").read_text())
    [one] = [one for one in table[where] if one["name"] == table["aliases"]["the model"]]
    assert {name: one.get(name) for name in found} == found


@pytest.mark.parametrize("mode", ["realtime", "video_generation"])
def test_a_mode_that_has_no_endpoint_is_one_line(here: Path, mode: str) -> None:
    one = f"{{model_name: a, litellm_params: {{model: openai/a, rpm: 5}}, model_info: {{mode: {mode}}}}}"
    assert report_lines(migration(f"model_list: [{one}, {LOCAL}, {OTHER}]").left) == [
        f"model_list[0]: AIO has no endpoint for models of the mode {mode}"
    ]


def test_no_model_of_a_provider_without_a_price_is_below_a_server_of_ones_own(here: Path) -> None:
    unknown = "{model_name: new, litellm_params: {model: openai/never-listed, api_base: 'https://api.example.com/v1'}}"
    assert [one.name for one in written(unknown, LOCAL).tiers] == ["local", "new"]


def test_of_more_than_eight_models_those_of_known_price_are_tiers(here: Path) -> None:
    unknown = "{model_name: new, litellm_params: {model: openai/never-listed, api_base: 'https://api.example.com/v1'}}"
    models = [
        f"{{model_name: m{n}, litellm_params: {{model: hosted_vllm/m{n}, api_base: 'http://a/v1'}}}}" for n in range(8)
    ]
    catalog = written(unknown, *models)
    assert [one.name for one in catalog.targets] == ["new"]


def test_a_name_that_a_tiers_model_has_answers_as_it_did(here: Path) -> None:
    small = [
        f"{{model_name: m{n}, litellm_params: {{model: hosted_vllm/x{n}, api_base: 'http://a/v1'}}}}" for n in range(8)
    ]
    catalog = written(*small, "{model_name: x0, litellm_params: {model: groq/other}}")
    answering = entry(catalog, "x0")
    assert answering.remote is not None
    assert (answering.name, answering.remote.model) == ("x0-2", "other")


@pytest.mark.parametrize("name", ["auto", "tier-2"])
def test_names_with_a_meaning_of_their_own_keep_it(here: Path, name: str) -> None:
    found = migration(f"model_list: [{{model_name: {name}, litellm_params: {{model: groq/a}}}}, {LOCAL}]")
    assert {one.name for one in found.candidates} == {f"{name}-model", "local"}
    assert "a meaning of its own" in found.left[f"model_list[0].model_name, {name}"]


def test_of_a_key_that_occurs_twice_the_last_value_holds_and_a_line_says_so(here: Path) -> None:
    found = migration(f"model_list: []\nmodel_list: [{LOCAL}, {OTHER}]\n")
    assert len(found.candidates) == 2
    assert [*found.left] == ["config.yaml line 1, model_list"]


def test_included_files_are_named_with_what_to_do(here: Path) -> None:
    found = migration(f"include: [more.yaml]\nmodel_list: [{LOCAL}]")
    assert found.left == {"include": "AIO reads one file: put the entries of the included ones into it"}


def test_fields_of_requests_are_the_entrys_body(here: Path) -> None:
    catalog = written(
        "{model_name: a, litellm_params: {model: openrouter/a, stop: [x], extra_body: {provider: {ignore: ['x y'], "
        "'odd key': null}}}}",
        LOCAL,
    )
    remote = entry(catalog, "a").remote
    assert remote is not None
    assert remote.body == {"stop": ["x"], "provider": {"ignore": ["x y"]}}


def test_credentials_of_google_cloud_are_files_that_variables_name(here: Path) -> None:
    params = "model: vertex_ai/gemini-2.5-pro, vertex_project: p, vertex_credentials"
    found = migration(
        f"model_list: [{{model_name: a, litellm_params: {{{params}: /keys/a.json}}}}, "
        f"{{model_name: b, litellm_params: {{{params}: os.environ/B_FILE, vertex_location: eu}}}}, {LOCAL}]"
    )
    assert {one.name: one.api_key_env for one in found.candidates} == {
        "a": "A_CREDENTIALS", "b": "B_FILE", "local": None,
    }  # fmt: skip
    assert found.variables == {"A_CREDENTIALS": "model_list[0].litellm_params.vertex_credentials"}


def test_a_region_whose_variable_is_not_set_is_one_line(here: Path) -> None:
    one = "{model_name: a, litellm_params: {model: bedrock/a, aws_region_name: os.environ/MY_REGION, timeout: 60}}"
    found = migration(f"model_list: [{one}, {LOCAL}]")
    assert [one.name for one in found.candidates] == ["local"]
    assert found.left == {
        "model_list[0]": "its region is in the variable MY_REGION, which is not set here: set it, and run this again"
    }


def test_fields_that_a_kind_of_model_cannot_have_are_named(here: Path) -> None:
    found = migration(f"""model_list:
  - {{model_name: a, litellm_params: {{model: anthropic/a, stop: [x], max_tokens: 9}}}}
  - {{model_name: b, litellm_params: {{model: openai/whisper-1, rpm: 5, temperature: 0.5, timeout: 7}}}}
  - {{model_name: c, litellm_params: {{model: groq/c, input_cost_per_token: 1.0e-6, extra_body: {{messages: []}}}}}}
  - {LOCAL}""")
    assert {path.rpartition(".")[2]: why for path, why in found.left.items()} == {
        "stop": "anthropic's API has no such field under this name: clients send it",
        "rpm": "AIO has it for models that chat",
        "temperature": "AIO has it for models that chat",
        "input_cost_per_token": "a price needs those of input and of output",
        "extra_body": "each request sets some of its fields itself",
    }
    assert {one.name: one.further.get("body") for one in found.candidates} == {"a": None, "c": None, "local": None}


async def test_every_name_answers_at_its_endpoint(here: Path, settings: Settings) -> None:
    async def answer(call: Call) -> None:
        if "messages" in call.body:
            await call.whole("ok", {"total_tokens": 2})
        elif "documents" in call.body:
            await call.reply(200, {"results": [{"index": 0, "relevance_score": 0.5}]})
        else:
            vector = {"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}
            await call.reply(
                200, {"object": "list", "data": [vector], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
            )

    async with LoopbackServer(answer) as server:
        models = [
            f"model_name: '{name}', litellm_params: {{model: openai/{name}" for name in (*"abcdefgh", "team/i", "j k")
        ]
        models += [
            "model_name: vectors, litellm_params: {model: openai/bge-m3",
            "model_name: '*', litellm_params: {model: openai/z",
        ]
        models += ["model_name: ranks, litellm_params: {model: openai/bge-reranker"]
        lines = [f"{{{one}, api_base: '{server.base_url}', api_key: none}}}}" for one in models]
        lines[-1] = lines[-1].replace("reranker", "rerank")
        await asyncio.to_thread(written, *lines, rest="router_settings: {model_group_alias: {old: a}}")
        served = msgspec.structs.replace(settings, catalog=str(here / "aio.toml"))
        async with running_gateway(served, scripted=False, protocol="httptools") as gateway:
            for name in (*"abcdefgh", "team/i", "j k", "old", "anything", "auto"):
                body: dict[str, Any] = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
                answered = await gateway.http.post("/v1/chat/completions", json=body)
                assert answered.status_code == 200, (name, answered.text)
            shown = {one["id"] for one in (await gateway.http.get("/v1/models")).json()["data"]}
            assert shown >= {*"abcdefgh", "team/i", "j k", "old", "vectors", "ranks", "auto"}
            body = {"model": "vectors", "input": "a"}
            assert (await gateway.http.post("/v1/embeddings", json=body)).status_code == 200
            body = {"model": "ranks", "query": "a", "documents": ["b"]}
            assert (await gateway.http.post("/v1/rerank", json=body)).status_code == 200
