"""Servers of this machine are recognised, and say what their models can do."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.operations.setup import found_tiers
from gateway.operations.setup.candidate import Candidate
from gateway.operations.setup.found_tiers import ask_server, find_servers
from tests.gateway.operations.setup.model_servers import (
    Pages,
    llama_pages,
    lm_studio_pages,
    model_server,
    models_page,
    ollama_pages,
    openai_pages,
    sglang_pages,
    vllm_pages,
)
from tests.polling import eventually
from tiers.catalog.tier_spec import Capabilities


async def found(pages: Pages, **more: Any) -> tuple[str, dict[str, Candidate]]:
    with model_server(pages, **more) as server:
        (only,) = await find_servers([server.port])
        assert only.url == server.url
        assert all(model.url == server.url for model in only.models)
        return only.label, {model.model: model for model in only.models}


async def test_vllm_tells_its_context_and_its_adapters_are_no_models() -> None:
    label, models = await found(vllm_pages("Qwen/Qwen3-8B", 40960))
    assert (label, list(models)) == ("vLLM", ["Qwen/Qwen3-8B"])
    model = models["Qwen/Qwen3-8B"]
    assert (model.kind, model.max_context, model.price) == ("vllm", 40960, None)
    assert model.estimate is not None
    assert model.estimate.estimated == "size"


async def test_sglang_tells_its_context_and_whether_it_sees() -> None:
    label, models = await found(sglang_pages("zai-org/GLM-4.5V", 65536))
    (model,) = models.values()
    assert (label, model.kind, model.max_context) == ("SGLang", "sglang", 65536)
    assert model.capabilities == Capabilities(vision=True)


async def test_llama_cpp_tells_the_context_of_a_slot_not_the_trained_one() -> None:
    label, models = await found(llama_pages())
    (model,) = models.values()
    assert (label, model.max_context, model.capabilities) == ("llama.cpp", 8192, Capabilities(vision=True))


async def test_ollamas_context_is_what_it_loads_and_models_that_embed_are_left_out() -> None:
    label, models = await found(ollama_pages())
    assert (label, list(models)) == ("Ollama", ["llama3.2:latest", "qwen2.5vl:32b", "gemma3:12b"])
    assert [model.max_context for model in models.values()] == [4096, 16384, 32768]  # default, set, running
    assert "OLLAMA_CONTEXT_LENGTH" in models["llama3.2:latest"].context_note
    assert models["llama3.2:latest"].capabilities == Capabilities(tools=True)
    assert models["llama3.2:latest"].billions == 3.2
    assert models["qwen2.5vl:32b"].capabilities == Capabilities(vision=True)


async def test_lm_studio_tells_what_is_loaded() -> None:
    label, models = await found(lm_studio_pages())
    assert (label, list(models)) == ("LM Studio", ["qwen2-vl-7b-instruct", "meta-llama-3.1-70b-instruct"])
    loaded, waiting = models.values()
    assert (loaded.max_context, loaded.is_default) == (20000, True)
    assert loaded.capabilities == Capabilities(vision=True, tools=True)
    assert (waiting.max_context, waiting.is_default) == (4096, False)


async def test_another_server_is_used_by_its_list_alone() -> None:
    label, models = await found(openai_pages("some-model", {"id": "text-embed-1"}))
    assert (label, list(models)) == ("a server with OpenAI's API", ["some-model"])


async def test_a_model_whose_maker_lists_its_price_has_that_price_behind_a_proxy_too() -> None:
    _, models = await found(openai_pages("claude-haiku-4-5"))
    model = models["claude-haiku-4-5"]
    assert model.price is not None
    assert (model.price.input_usd_per_million, model.max_context) == (1.0, 200_000)


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        (openai_pages("auto", "tier-1", owner="aio"), "AIO at HOST is left out: it is AIO itself"),
        ({"/v1/models": models_page(owner="x")}, "a server with OpenAI's API at HOST is left out: it lists no models"),
        (
            {"/v1/models": {"data": []}, "/api/tags": {"models": []}},
            "Ollama at HOST is left out: it has no models: `ollama pull llama3.2` gets one",
        ),
        (
            ollama_pages("nomic-embed-text:latest"),
            "Ollama at HOST is left out: it has no model that chats, only nomic-embed-text:latest",
        ),
        (
            openai_pages("bge-m3", "text-embed-1", "whisper-1", "tts-1"),
            "a server with OpenAI's API at HOST is left out: it has no model that chats, only bge-m3, text-embed-1, "
            "whisper-1 and others",
        ),
        ({}, "what answers at HOST is left out: it answers GET http://HOST/v1/models with 404"),
    ],
)
async def test_a_server_without_a_model_that_chats_says_why_it_is_left_out(pages: Pages, said: str) -> None:
    with model_server(pages) as server:
        (found,) = await find_servers([server.port])
        assert found.models == ()
        assert found.left_out.replace(f"127.0.0.1:{server.port}", "HOST") == said


async def test_what_is_no_list_of_models_is_named_so_and_an_ollama_without_models_lists_null() -> None:
    for pages, said in (({}, "no list of models"), ({"/api/tags": {"models": []}}, "has no models")):
        with model_server({**pages, "/v1/models": lambda body: {"data": None}}) as server:
            assert said in (await ask_server(server.url)).left_out
    assert await find_servers([1]) == []


async def test_all_ports_are_asked_at_once_and_a_silent_one_costs_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(model_server(vllm_pages(), slow=("/v1/models",))) for _ in range(6)]
        dumb = stack.enter_context(model_server(ollama_pages("gemma3:12b"), slow=("/api/show", "/api/ps")))
        ports = [*(one.port for one in silent), dumb.port]
        # Asked in turn, the second would wait for the first one's time to end.
        monkeypatch.setattr(found_tiers, "LOOK_SECONDS", 1000.0)
        looking = asyncio.create_task(find_servers(ports))
        await eventually(lambda: all(one.asked for one in silent))
        looking.cancel()
        monkeypatch.setattr(found_tiers, "LOOK_SECONDS", 2.0)
        monkeypatch.setattr(found_tiers, "DETAIL_SECONDS", 1.0)
        # On a busy machine none may have answered in time.
        (server,) = await eventually(lambda: find_servers(ports))
    assert [model.model for model in server.models] == ["gemma3:12b"]


@pytest.mark.parametrize(
    "broken", [{"/api/tags": {"models": "none"}}, {"/api/show": [1]}, {"/api/ps": {"models": [None]}}]
)
async def test_odd_answers_of_a_servers_own_endpoints_are_survived(broken: dict[str, Any]) -> None:
    _, models = await found({**ollama_pages("gemma3:12b"), **broken})
    assert list(models) == ["gemma3:12b"]
