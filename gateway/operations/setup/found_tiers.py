"""Tiers that are found or given by hand. Model servers are asked what they are: Ollama, vLLM, SGLang, llama.cpp, LM
Studio, or another with OpenAI's API. Given are `NAME=URL`, `NAME=URL,MODEL`, `NAME=PATH`, `NAME=provider:model`, or a
model that was found.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.operations.setup.candidate import Candidate, key_variable, provider_candidate, provider_named, tier_name
from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS
from tiers.catalog.price_list import listed_model
from tiers.catalog.replica_spec import server_key
from tiers.catalog.tier_spec import Capabilities
from tiers.dialects.server_models import ServerModel, parse_models
from tiers.remote.http_exchange import bounded_answer
from tiers.remote.http_transport import ProxyingTransport
from tiers.server_words import context_of, is_name

USUAL_PORTS = {11434: "Ollama", 8000: "vLLM", 30000: "SGLang", 8080: "llama.cpp", 1234: "LM Studio"}
LOOK_SECONDS, DETAIL_SECONDS = 0.4, 0.6
"""For a server of this machine: to list its models, and then to describe them."""
FAR_SECONDS = 10.0
OLLAMA_CONTEXT = 4096
"""Tokens that Ollama gives a model unless it is configured otherwise or has 24 GB of video memory, which it does not
report; it cuts longer prompts off silently."""
LM_STUDIO_CONTEXT = 4096
"""Tokens that LM Studio gives a model that it loads on demand."""
MOST_DESCRIBED = 50
MOST_PAGE_BYTES = 4 * 2**20
_WHOLE = re.compile(r"[0-9]{1,12}")
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,9})?)([BMK])")
_NOT_CHAT = ("embed", "rerank", "whisper", "bge-", "tts")


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What answers at a URL: its models, or why it cannot be used."""

    url: str
    label: str = "a server with OpenAI's API"
    models: tuple[Candidate, ...] = ()
    others: tuple[str, ...] = ()
    """Names of its models that take no chats."""
    problem: str = ""
    status: int = 200

    @property
    def left_out(self) -> str:
        """A sentence that says why it gives no tier; "" if it does."""
        if self.models or not self.problem:
            return ""
        if self.status in (401, 403):
            return f"{self.url} wants a key: add --tier NAME={self.url}, with the key in NAME_API_KEY"
        return f"{self.label} at {_host(self.url)} is left out: it {self.problem}"


async def find_servers(ports: Iterable[int]) -> list[Server]:
    """Return what answers HTTP on `ports` of this machine, asked all at once for about a second; what is no server of
    models that chat, AIO itself among it, says why in `problem`."""
    async with httpx.AsyncClient(trust_env=False) as client:
        urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
        servers = await asyncio.gather(*(_server(client, url, LOOK_SECONDS, DETAIL_SECONDS) for url in urls))
    return [server for server in servers if server.status]


async def ask_server(url: str, key: str = "") -> Server:
    """Return the server at `url`, here or elsewhere; one that cannot be used says why in `problem`."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, transport=ProxyingTransport(), follow_redirects=False) as client:
        return await _server(client, url.rstrip("/"), FAR_SECONDS, FAR_SECONDS)


async def _server(client: httpx.AsyncClient, url: str, look_seconds: float, detail_seconds: float) -> Server:
    try:
        answer, body = await bounded_answer(
            client, client.build_request("GET", f"{url}/models"), MOST_PAGE_BYTES, look_seconds
        )
    except httpx.HTTPError as error:
        return Server(url=url, problem=f"does not answer ({type(error).__name__})", status=0)
    status, listed = answer.status_code, parse_models(answer.status_code, body)
    if status != 200:
        return Server(url=url, label="what answers", problem=f"answers GET {url}/models with {status}", status=status)
    ask = _Questions(client, url.removesuffix("/v1"), detail_seconds)
    if not listed:
        # An Ollama without models lists null.
        if isinstance(_table(await ask.get("/api/tags")).get("models"), list):
            return Server(url=url, label="Ollama", problem="has no models: `ollama pull llama3.2` gets one")
        if listed is None:
            return Server(url=url, label="what answers", problem=f"answers GET {url}/models with no list of models")
        return Server(url=url, problem="lists no models")
    owners = {str(entry.get("owned_by")) for entry in msgspec.json.decode(body)["data"] if isinstance(entry, dict)}
    if owners == {"aio"}:
        return Server(url=url, label="AIO", problem="is AIO itself")
    server = await _described(ask, url, owners, listed)
    if server.models:
        return server
    others = tuple(model.name for model in listed)
    problem = f"has no model that chats, only {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}"
    return msgspec.structs.replace(server, others=others, problem=problem)


async def _described(ask: "_Questions", url: str, owners: set[str], listed: Sequence[ServerModel]) -> Server:
    """Recognise the kind of server by the owner that it gives its models, or by an endpoint of its own."""
    if "vllm" in owners:
        return _server_of(url, "vLLM", [_plain(model, "vllm") for model in listed])
    if "sglang" in owners:
        return _server_of(url, "SGLang", await _sglang_models(ask, listed))
    if "llamacpp" in owners:
        return _server_of(url, "llama.cpp", await _llama_models(ask, listed))
    tags, described = await asyncio.gather(ask.get("/api/tags"), ask.get("/api/v0/models"))
    if entries := _tables(tags, "models"):
        return _server_of(url, "Ollama", await _ollama_models(ask, entries))
    if entries := _tables(described, "data"):
        return _server_of(url, "LM Studio", _lm_studio_models(entries))
    return _server_of(url, "a server with OpenAI's API", [_plain(model) for model in listed])


def _server_of(url: str, label: str, models: Iterable[Candidate]) -> Server:
    source = f"{label} at {_host(url)}"
    chat = [model for model in models if not any(mark in model.model.lower() for mark in _NOT_CHAT)]
    placed = []
    for model in chat:
        listed = listed_model(model.model, base_url=url)
        price = None if listed is None else listed.price
        context = model.max_context or (None if listed is None else listed.max_context)
        placed.append(msgspec.structs.replace(model, source=source, url=url, price=price, max_context=context))
    return Server(url=url, label=label, models=tuple(placed))


def _host(url: str) -> str:
    return url.removesuffix("/v1").partition("://")[2]


def _plain(model: ServerModel, kind: Any = "openai") -> Candidate:
    return Candidate(source="", model=model.name, kind=kind, max_context=model.max_context)


async def _sglang_models(ask: "_Questions", listed: Sequence[ServerModel]) -> list[Candidate]:
    info, model = await asyncio.gather(ask.get("/get_server_info"), ask.get("/get_model_info"))
    vision = True if _table(model).get("has_image_understanding") is True else None
    context = _count(_table(info).get("context_length"))
    candidates = [_plain(served, "sglang") for served in listed]
    return [
        msgspec.structs.replace(
            candidate, max_context=candidate.max_context or context, capabilities=Capabilities(vision=vision)
        )
        for candidate in candidates
    ]


async def _llama_models(ask: "_Questions", listed: Sequence[ServerModel]) -> list[Candidate]:
    props = _table(await ask.get("/props"))
    # A slot's context, which is what one request can use; the list has the one that the model was trained for.
    context = _count(_table(props.get("default_generation_settings")).get("n_ctx"))
    modalities = _table(props.get("modalities"))
    able = Capabilities(vision=modalities.get("vision") or None, audio=modalities.get("audio") or None)
    return [
        msgspec.structs.replace(
            _plain(served, "llama-server"), max_context=context or served.max_context, capabilities=able
        )
        for served in listed
    ]


async def _ollama_models(ask: "_Questions", entries: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    names = [str(name) for entry in entries if is_name(name := entry.get("name"))][:MOST_DESCRIBED]
    loaded, *shown = await asyncio.gather(
        ask.get("/api/ps"), *(ask.post("/api/show", {"model": name}) for name in names)
    )
    running = {str(entry.get("name")): _count(entry.get("context_length")) for entry in _tables(loaded, "models")}
    candidates = []
    for name, show in zip(names, map(_table, shown), strict=True):
        abilities = show.get("capabilities")
        if isinstance(abilities, list) and "completion" not in abilities:
            continue  # it embeds
        details, info = _table(show.get("details")), _table(show.get("model_info"))
        most = next((_count(value) for key, value in info.items() if key.endswith(".context_length")), None)
        set_to = _count(_parameters(show.get("parameters")).get("num_ctx")) or running.get(name)
        context = set_to or min(most or OLLAMA_CONTEXT, OLLAMA_CONTEXT)
        is_cloud = bool(show.get("remote_host"))
        able = abilities if isinstance(abilities, list) else []
        candidates.append(
            Candidate(
                source="",
                model=name,
                max_context=most if is_cloud else context,
                context_note="" if is_cloud or set_to else "the least default; see `ollama ps`, OLLAMA_CONTEXT_LENGTH",
                capabilities=Capabilities(vision="vision" in able or None, tools="tools" in able or None),
                billions=_billions(details.get("parameter_size")),
            )
        )
    return candidates


def _lm_studio_models(entries: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    chat = [entry for entry in entries if entry.get("type") in ("llm", "vlm") and is_name(entry.get("id"))]
    is_any_loaded = any(entry.get("state") == "loaded" for entry in chat)
    candidates = []
    for entry in chat:
        loaded = _count(entry.get("loaded_context_length"))
        most = _count(entry.get("max_context_length"))
        able = entry.get("capabilities")
        candidates.append(
            Candidate(
                source="",
                model=entry["id"],
                max_context=loaded or min(most or LM_STUDIO_CONTEXT, LM_STUDIO_CONTEXT),
                context_note="" if loaded else "LM Studio's default; load the model with more to raise it",
                capabilities=Capabilities(
                    vision=entry["type"] == "vlm" or None,
                    tools=(isinstance(able, list) and "tool_use" in able) or None,
                ),
                is_default=entry.get("state") == "loaded" or not is_any_loaded,
            )
        )
    return candidates


class _Questions:
    """Asks a server's own endpoints; an answer that is late or no JSON is None."""

    def __init__(self, client: httpx.AsyncClient, root: str, seconds: float) -> None:
        self._client, self._root, self._seconds = client, root, seconds

    async def get(self, path: str) -> Any:
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: object) -> Any:
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: object) -> Any:
        try:
            request = self._client.build_request(method, self._root + path, json=body)
            answer, page = await bounded_answer(self._client, request, MOST_PAGE_BYTES, self._seconds)
            return msgspec.json.decode(page) if answer.status_code == 200 else None
        except (httpx.HTTPError, *JSON_ERRORS):
            return None


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: Any, key: str) -> list[Mapping[str, Any]]:
    entries = _table(value).get(key)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _count(value: Any) -> int | None:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    return context_of(value)


def _parameters(text: Any) -> dict[str, str]:
    """Return the parameters of Ollama's model file, as it writes them: a name and a value per line."""
    lines = text.splitlines() if isinstance(text, str) else []
    return {parts[0]: parts[1] for line in lines if len(parts := line.split()) == 2}


def _billions(size: Any) -> float | None:
    """Return 3.2 of "3.2B", 0.135 of "134.5M"."""
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    return None if match is None else float(match[1]) / {"B": 1, "M": 1e3, "K": 1e6}[match[2]]


_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)


class SetupError(ValueError):
    """What was asked for cannot be set up; the message says what to do."""


async def given_tier(text: str, candidates: Sequence[Candidate], environ: Mapping[str, str]) -> Candidate:
    """Return the candidate that `text` means; `candidates` are the models that were found here. Raises `SetupError`."""
    named = _NAME.fullmatch(text)
    name, what = (named[1], named[2]) if named else ("", text)
    if "://" in what:
        candidate = await _at_url(name, what, environ)
    elif (parts := what.split(":", 1))[1:] and (provider := provider_named(parts[0])) is not None:
        candidate = provider_candidate(provider, parts[1], key_variable(provider, environ))
    elif (match := next((offered for offered in candidates if offered.model == what), None)) is not None:
        candidate = match
    elif _is_path(what):
        candidate = _at_path(what)
    else:
        here = ", ".join(offered.model for offered in candidates) or "none"
        raise SetupError(
            f"--tier {text}: {what!r} is no URL, no file or folder, no provider:model, and no model found here ({here})"
        )
    return msgspec.structs.replace(candidate, name=name or candidate.name)


async def _at_url(name: str, what: str, environ: Mapping[str, str]) -> Candidate:
    url, _, model = what.partition(",")
    variable = f"{re.sub('[^A-Za-z0-9]', '_', name).upper()}_API_KEY" if name else ""
    key = server_key(environ, variable)
    server = await ask_server(url, key)
    api_key_env = variable if key else None
    if server.label == "AIO":
        raise SetupError(f"--tier {name}={what}: this is AIO itself; give the server behind it")
    if not server.status:
        raise SetupError(
            f"--tier {name}={what}: {server.url} {server.problem}: start the server or correct the address, and run "
            "this again"
        )
    if server.status in (401, 403):
        wanted = variable or "NAME_API_KEY, with --tier NAME=URL,"
        raise SetupError(
            f"--tier {name}={what}: the server {'refuses the' if key else 'wants a'} key; set the environment variable "
            f"{wanted} to it and run this again"
        )
    chosen = next((offered for offered in server.models if offered.model == model), None)
    if chosen is None and not model and len(server.models) == 1:
        chosen = server.models[0]
    if chosen is None and server.models:
        names = ", ".join(offered.model for offered in server.models)
        raise SetupError(
            f"--tier {name}={what}: name one of its models as URL,MODEL: {names}"
            if not model
            else f"--tier {name}={what}: the server has no model {model!r}; it has {names}"
        )
    if chosen is None and server.others and not model:
        raise SetupError(
            f"--tier {name}={what}: the server {server.problem}; one that chats, which it does not list, is URL,MODEL"
        )
    if chosen is None:
        # It does not list its models: the tier is written as given.
        host = url.partition("://")[2].rstrip("/").removesuffix("/v1")
        chosen = Candidate(source=f"{host}, which {server.problem}", model=model, url=url.rstrip("/"))
        chosen = msgspec.structs.replace(chosen, name=name or tier_name(model or host))
    return msgspec.structs.replace(chosen, api_key_env=api_key_env)


def chat_notes(candidates: Sequence[Candidate]) -> list[str]:
    """Return a sentence for each model of a file or folder that can take no chats."""
    return [
        f"{candidate.path} has no chat template: its tier continues prompts of /v1/completions, and `auto` "
        "sends it no chats"
        for candidate in candidates
        if candidate.path and not _has_template(Path(candidate.path))
    ]


def _has_template(path: Path) -> bool:
    from inference_core.tokenization.load_tokenizer import load_tokenizer

    try:
        return load_tokenizer(path).chat_template is not None
    except ModelFileError:
        return True  # `aio serve` says what is wrong with it.


def _is_path(what: str) -> bool:
    return what.endswith(".gguf") or what.startswith(("/", "./", "../", "~")) or Path(what).is_dir()


def _at_path(what: str) -> Candidate:
    path = Path(what).expanduser()
    if not path.exists():
        raise SetupError(f"--tier …={what}: there is no such file or folder")
    try:
        # Imported here: a gateway without models of its own need not have the readers of model files.
        from inference_core.loaders.open_checkpoint import open_checkpoint

        config = open_checkpoint(path).config
    except ImportError as error:
        raise SetupError(f"--tier …={what}: to run models, AIO needs: pip install 'aio-gateway[local]'") from error
    except ModelFileError as error:
        raise SetupError(f"--tier …={what}: AIO cannot run this model itself: {error}") from error
    # The memory of a long context is reserved at start; 8192 tokens fit nearly every machine.
    return Candidate(
        source="runs in AIO itself",
        model=path.name,
        path=str(path.absolute()),
        max_context=min(config.max_position, 8192),
        context_note=f"of at most {config.max_position}" if config.max_position > 8192 else "",
    )
