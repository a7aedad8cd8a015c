"""Loopback servers shaped like Ollama, vLLM, SGLang, llama.cpp and LM Studio, served from a thread."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.loop_thread import on_a_thread
from tests.support.upstream import Call, LoopbackServer

Pages = Mapping[str, Any]
"""What a GET of a path, or a POST to one that is no chat, answers: a JSON value, or a function of the body."""


class ModelServer:
    """A serving one: `url` ends in /v1, `asked` are the paths of all requests so far."""

    def __init__(self, server: LoopbackServer) -> None:
        self._server = server
        self.url = server.base_url
        self.port = int(self.url.removesuffix("/v1").rpartition(":")[2])

    @property
    def asked(self) -> list[str]:
        return [*self._server.looks, *(call.path for call in self._server.calls)]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [call.body for call in self._server.calls if call.path.endswith("/chat/completions")]


Say = Callable[[dict[str, Any]], str]
"""What a chat answers to a body."""


async def _chat(call: Call, models: list[str], say: Say) -> None:
    if call.body["model"] not in models:
        message = f"model '{call.body['model']}' not found"
        await call.reply(404, {"error": {"message": message, "type": "not_found_error", "code": None}})
        return
    first, *words = say(call.body).split(" ")
    usage = {"prompt_tokens": 20, "completion_tokens": 1 + len(words)}
    await call.say(first, *(f" {word}" for word in words), usage=usage)


@contextmanager
def model_server(
    pages: Pages, key: str = "", slow: tuple[str, ...] = (), say: Say = lambda body: "Tokyo is it ."
) -> Iterator[ModelServer]:
    """Serve `pages` and chats with the models of `/v1/models`; `key`: refuse others with 401; `slow` paths hang."""
    listed = pages.get("/v1/models", {"data": []})
    models = [] if callable(listed) else [entry["id"] for entry in listed["data"]]

    async def answer(call: Call) -> None:
        if key and call.headers.get("authorization") != f"Bearer {key}":
            await call.reply(401, {"error": {"message": "Incorrect API key provided"}})
        elif call.path in slow:
            await asyncio.Event().wait()
        elif call.path == "/v1/chat/completions":
            await _chat(call, models, say)
        elif call.path in pages:
            page = pages[call.path]
            await call.reply(200, page(call.body) if callable(page) else page)
        else:
            await call.reply(404, {"error": "404 page not found"})

    server = LoopbackServer(answer)
    server.looked_at = answer
    with on_a_thread(server):
        yield ModelServer(server)


def models_page(*entries: Any, owner: str) -> dict[str, Any]:
    listed = [entry if isinstance(entry, dict) else {"id": entry} for entry in entries]
    return {"object": "list", "data": [{"object": "model", "owned_by": owner} | entry for entry in listed]}


def openai_pages(*models: Any, owner: str = "someone") -> Pages:
    return {"/v1/models": models_page(*models, owner=owner)}


def vllm_pages(model: str = "Qwen/Qwen3-8B", context: int = 40960) -> Pages:
    base = {"id": model, "max_model_len": context, "root": model, "parent": None}
    adapter = {"id": "my-adapter", "root": "/adapters/my", "parent": model}
    return {"/v1/models": models_page(base, adapter, owner="vllm"), "/health": {}}


def sglang_pages(model: str = "zai-org/GLM-4.5V", context: int = 65536) -> Pages:
    return {
        "/v1/models": models_page({"id": model, "root": model}, owner="sglang"),
        "/get_server_info": {"context_length": context, "model_path": model, "max_total_num_tokens": 900000},
        "/get_model_info": {"model_path": model, "is_generation": True, "has_image_understanding": True},
    }


def llama_pages(model: str = "gemma-3-4b-it-Q4_K_M.gguf") -> Pages:
    meta = {"n_ctx_train": 131072, "n_params": 3880099328}
    return {
        "/v1/models": models_page({"id": model, "meta": meta}, owner="llamacpp"),
        "/props": {
            "default_generation_settings": {"n_ctx": 8192, "params": {}},
            "total_slots": 1,
            "model_path": f"/models/{model}",
            "modalities": {"vision": True, "audio": False},
        },
    }


def _ollama_show(model: str, size: str, able: list[str], context: int, parameters: str = "") -> dict[str, Any]:
    return {
        "parameters": parameters,
        "template": "{{ .Prompt }}",
        "details": {"parent_model": "", "format": "gguf", "family": "llama", "parameter_size": size},
        "model_info": {"general.architecture": "llama", "llama.context_length": context},
        "capabilities": able,
    }


OLLAMA_SHOWN = {
    "llama3.2:latest": _ollama_show("llama3.2", "3.2B", ["completion", "tools"], 131072),
    "qwen2.5vl:32b": _ollama_show(
        "qwen2.5vl", "33.5B", ["completion", "vision"], 128000, "num_ctx        16384\nstop   a"
    ),
    "gemma3:12b": _ollama_show("gemma3", "12.2B", ["completion", "vision"], 131072),
    "nomic-embed-text:latest": _ollama_show("nomic", "137M", ["embedding"], 2048),
}


def ollama_pages(*models: str) -> Pages:
    names = list(models or OLLAMA_SHOWN)
    tags = [{"name": name, "model": name, "details": OLLAMA_SHOWN[name]["details"]} for name in names]
    return {
        "/v1/models": models_page(*names, owner="library"),
        "/api/tags": {"models": tags},
        "/api/show": lambda body: OLLAMA_SHOWN[body["model"]],
        "/api/ps": {"models": [{"name": "gemma3:12b", "context_length": 32768}]},
    }


def lm_studio_pages() -> Pages:
    loaded = {
        "id": "qwen2-vl-7b-instruct",
        "type": "vlm",
        "state": "loaded",
        "max_context_length": 32768,
        "loaded_context_length": 20000,
        "capabilities": ["tool_use"],
    }
    waiting = {"id": "meta-llama-3.1-70b-instruct", "type": "llm", "state": "not-loaded", "max_context_length": 131072}
    embedding = {"id": "text-embedding-nomic-embed-text-v1.5", "type": "embeddings", "state": "not-loaded"}
    entries = [loaded, waiting, embedding]
    return {
        "/v1/models": models_page(*({"id": entry["id"]} for entry in entries), owner="organization_owner"),
        "/api/v0/models": {"object": "list", "data": entries},
    }
