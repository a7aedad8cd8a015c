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


async def test_aio_itself_and_what_lists_no_models_are_passed_over() -> None:
    pages = [openai_pages("auto", "tier-1", owner="aio"), {"/v1/models": models_page(owner="x")}]
    with ExitStack() as stack:
        servers = [stack.enter_context(model_server(each)) for each in pages]
        assert await find_servers([server.port for server in servers]) == []
        assert (await ask_server(servers[0].url)).label == "AIO"


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
