"""Where a model of another gateway's runs: its `provider/model` and address as a server that an entry can name."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.operations.setup.candidate import OPENAI_HOSTS
from gateway.operations.setup.other_gateways.account import Fields, tables, variable_of
from tiers.catalog.providers import google_cloud_url
from tiers.catalog.tier_spec import ProviderName, RemoteKind

_SET_IT = "set it, and run this again"
_OPENAI_COMPATIBLE_GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai"
"""For embeddings and images: https://ai.google.dev/gemini-api/docs/openai."""
_AWS_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_SERIES = re.compile(r"(responses|o_series|gpt5_series)/")
_COMPLETES = re.compile(r"gpt-3\.5-turbo-instruct|davinci-002|babbage-002")


class Server(NamedTuple):
    """A server by its `provider`, or by `kind` and `url`."""

    provider: ProviderName | None
    kind: RemoteKind
    url: str | None
    model: str
    key: str | None = None
    """The variable where the other gateway looks for the key."""


class ServerRequest(NamedTuple):
    """What a file says of a server, with the values of its variables."""

    name: str
    """LiteLLM's name of the provider."""
    model: str
    url: str
    region: str
    project: str
    location: str


def server_of(fields: Fields, environ: Mapping[str, str], mode: str) -> Server | str:
    """Return the server of a model, or why AIO has none like it. `mode`: `chat`, `embedding` or an endpoint that is
    passed through."""
    texts: dict[str, str] = {}
    for part in ("model", "provider", "url", "resource", "region", "project", "location"):
        text = str(fields.get(f"server.{part}") or "").strip()
        variable = variable_of(text)
        texts[part] = text if variable is None else environ.get(variable, "").strip()
        if variable is not None and not texts[part]:
            return f"its {part} is in the variable {variable}, which is not set here: {_SET_IT}"
    if not texts["model"]:
        return "it has no model"
    name, model = split_model(texts["model"], texts["provider"])
    url = texts["url"] or (f"https://{texts['resource']}.openai.azure.com" if texts["resource"] else "")
    url = (url or _address_of(name, environ)).rstrip("/")
    if url and urlsplit(url).scheme not in ("http", "https"):
        return f"its address {url!r} is not a URL"
    if not name:
        return f"no provider is known for {model!r}: write provider/model"
    if not model:
        return f"its model {texts['model']!r} names a provider alone"
    request = ServerRequest(name, model, url, texts["region"], texts["project"], texts["location"])
    return _placed(request, environ, mode)


def _placed(request: ServerRequest, environ: Mapping[str, str], mode: str) -> Server | str:
    name, model, url = request[:3]
    row = tables()["servers"].get(name)
    if name == "auto_router":
        return "AIO routes by itself: the name is one of `auto`"
    if row is None:
        return f"AIO has no provider {name!r}; if its server has OpenAI's API, write openai/{model} with its address"
    provider = row.get("provider")
    if name == "azure_ai":
        return _foundry(model, url, mode)
    if provider == "openai":
        # A key of the environment belongs to the address of the environment.
        key = "OPENAI_API_KEY" if url and url == _address_of("openai", environ).rstrip("/") else None
        return _openai(_SERIES.sub("", model), url, key)
    if provider == "azure":
        return Server("azure", "azure", _before(url, "/openai"), _SERIES.sub("", model), "AZURE_API_KEY") if url else (
            f"it has no address, and AZURE_API_BASE is not set here: {_SET_IT}"
        )  # fmt: skip
    if mode in ("embedding", "images") and provider == "gemini" and not url:
        return Server(None, "openai", _OPENAI_COMPATIBLE_GEMINI, model, "GEMINI_API_KEY")
    if provider in ("bedrock", "vertex", "gemini", "anthropic") and mode != "chat":
        return f"AIO speaks {name}'s API for chats, and this is a model of the mode {mode}"
    if provider == "bedrock":
        return _bedrock(request)
    if provider == "vertex":
        return _vertex(request, environ)
    if provider is not None:
        url = _before(url, "/models/") if provider == "gemini" and url else url
        url = url.removesuffix("/messages").removesuffix("/v1") + "/v1" if provider == "anthropic" and url else url
        return Server(provider, "openai", url or None, model)
    return _compatible(name, row, model, url, mode)


def _address_of(name: str, environ: Mapping[str, str]) -> str:
    """Return the address that the environment has for a provider's servers; empty if it has none."""
    if name in ("openai", "text-completion-openai"):
        return (environ.get("OPENAI_BASE_URL") or environ.get("OPENAI_API_BASE") or "").strip()
    address = environ.get(_address_variable(name), "").strip()
    is_account = name == "cloudflare" and address != ""
    return f"https://api.cloudflare.com/client/v4/accounts/{address}/ai/v1" if is_account else address


def _address_variable(name: str) -> str:
    if name == "cloudflare":
        return "CLOUDFLARE_ACCOUNT_ID"
    prefix: str = tables()["servers"].get(name, {}).get("variable", name)
    return f"{prefix.upper().replace('-', '_')}_API_BASE"


def _openai(model: str, url: str, key: str | None) -> Server | str:
    if url and url not in OPENAI_HOSTS:
        return Server(None, "openai", url, model, key)
    if _COMPLETES.match(model):
        return "AIO asks for chats, and this model of OpenAI's only completes texts"
    return Server("openai", "openai", None, model)


def _foundry(model: str, url: str, mode: str) -> Server | str:
    """Models of Azure's Foundry: those of a resource have the v1 API of Azure OpenAI, Claude its own, and serverless
    deployments one each (https://learn.microsoft.com/azure/ai-foundry/foundry-models/concepts/endpoints)."""
    key, host = "AZURE_AI_API_KEY", urlsplit(url).hostname or ""
    if not url:
        return f"it has no address, and AZURE_AI_API_BASE is not set here: {_SET_IT}"
    if mode == "chat" and model.startswith("claude"):
        return Server("anthropic", "anthropic", f"{_before(url, '/anthropic')}/anthropic/v1", model, key)
    if mode != "rerank" and host.endswith((".services.ai.azure.com", ".openai.azure.com")):
        return Server("azure", "azure", f"https://{host}", model, key)
    return Server(None, "openai", url if url.endswith("/v1") else f"{url}/v1", model, key)


def _compatible(name: str, row: Mapping[str, str], model: str, url: str, mode: str) -> Server | str:
    if name == "huggingface" and not url:
        # LiteLLM's names have the one who serves the model in front, the router's behind.
        server, _, rest = model.partition("/")
        routed = f"{rest}:{server}" if "/" in rest else model
        return Server(None, "openai", "https://router.huggingface.co/v1", routed, "HF_TOKEN")
    usual, path = row.get("url", ""), row.get("path", "")
    key = row.get("key") or (f"{name.upper()}_API_KEY" if usual.startswith("https") else None)
    url = url or (row.get("rerank", usual) if mode == "rerank" else usual)
    if not url:
        return f"it has no address, and {_address_variable(name)} is not set here: {_SET_IT}"
    url = url.removesuffix("/rerank") if mode == "rerank" else url
    kind: RemoteKind = row.get("kind", "openai")  # type: ignore[assignment]
    return Server(None, kind, url if url.endswith(path) else url + path, model, key)


def _bedrock(request: ServerRequest) -> Server | str:
    # The Converse API answers for the models of the older one, too.
    model, region = request.model.removeprefix("converse/").removeprefix("invoke/"), request.region
    first, slash, rest = model.partition("/")
    if slash and _AWS_REGION.fullmatch(first):
        region, model = region or first, rest
    if "/" in model and not model.startswith("arn:"):
        return "of Bedrock AIO speaks the Converse API alone: write bedrock/converse/MODEL"
    url = request.url or (f"https://bedrock-runtime.{region}.amazonaws.com" if region else None)
    return Server("bedrock", "bedrock", url, model)


def _vertex(request: ServerRequest, environ: Mapping[str, str]) -> Server | str:
    model = request.model.removeprefix("gemini/").removeprefix("google/")
    if not model.startswith(("gemini-", "claude-")):
        return f"of Vertex AI AIO asks Gemini and Claude, and this is {model}"
    if request.url:
        return Server("vertex", "openai", _before(request.url, "/publishers/"), model)
    project, location = (
        stated or environ.get(f"VERTEXAI_{part}", "").strip() or environ.get(f"GOOGLE_CLOUD_{part}", "").strip()
        for stated, part in ((request.project, "PROJECT"), (request.location, "LOCATION"))
    )
    if not project:
        return f"it has no project, and GOOGLE_CLOUD_PROJECT is not set here: {_SET_IT}"
    # LiteLLM's location where a file has none.
    return Server("vertex", "openai", google_cloud_url(project, location or "us-central1"), model)


def split_model(named: str, provider: str) -> tuple[str, str]:
    """Return LiteLLM's name of the provider and the model of `provider/model`; the provider is "" if none is known."""
    if provider:
        return provider, named.removeprefix(f"{provider}/")
    first, slash, rest = named.partition("/")
    if slash:
        return first, rest
    bare = tables()["bare_names"].items()
    return next((name for name, starts in bare if named.startswith(tuple(starts))), ""), named


def _before(url: str, part: str) -> str:
    """Return an address up to a part of its path."""
    host = url.partition("://")[2].partition("/")[0]
    head, _, path = url.partition(f"://{host}")
    return f"{head}://{host}{path.partition(part)[0]}"
