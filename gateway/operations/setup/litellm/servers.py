"""Where a deployment of LiteLLM's runs: its `provider/model` and address as a server that a tier can name."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.operations.setup.litellm.config_file import variable_of
from gateway.operations.setup.provider_keys import OPENAI_HOSTS
from tiers.catalog.tier_spec import ProviderName, RemoteKind

# LiteLLM's names of providers where AIO has the same one.
PROVIDERS: Mapping[str, ProviderName] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "bedrock": "bedrock",
    "deepseek": "deepseek",
    "fireworks_ai": "fireworks",
    "gemini": "gemini",
    "groq": "groq",
    "mistral": "mistral",
    "openai": "openai",
    "openrouter": "openrouter",
    "together_ai": "together",
    "xai": "xai",
}


class _Kind(NamedTuple):
    """A server with OpenAI's API: its kind, its usual address and variable, and what its address ends in."""

    kind: RemoteKind = "openai"
    url: str = ""
    key: str | None = None
    path: str = ""


SERVERS: Mapping[str, _Kind] = {
    "hosted_vllm": _Kind("vllm"),
    "vllm": _Kind("vllm"),
    "ollama": _Kind(url="http://localhost:11434", path="/v1"),
    "ollama_chat": _Kind(url="http://localhost:11434", path="/v1"),
    "lm_studio": _Kind(url="http://localhost:1234/v1"),
    "llamafile": _Kind(url="http://localhost:8080/v1"),
    "huggingface": _Kind("tgi", path="/v1"),
    "litellm_proxy": _Kind(),
    "openai_like": _Kind(),
    "custom_openai": _Kind(),
    "cerebras": _Kind(url="https://api.cerebras.ai/v1", key="CEREBRAS_API_KEY"),
    "nvidia_nim": _Kind(url="https://integrate.api.nvidia.com/v1", key="NVIDIA_NIM_API_KEY"),
    "sambanova": _Kind(url="https://api.sambanova.ai/v1", key="SAMBANOVA_API_KEY"),
    "deepinfra": _Kind(url="https://api.deepinfra.com/v1/openai", key="DEEPINFRA_API_KEY"),
}
# Models that LiteLLM knows without a provider.
_BARE: Mapping[str, tuple[str, ...]] = {"openai": ("gpt-", "o1", "o3", "o4", "chatgpt-"), "anthropic": ("claude-",)}
_NOT_ADDRESSES = "its api_base names a variable that is not set here: set it, and run this again"


class Server(NamedTuple):
    """`provider`, or `kind` and `url`; `key`: the variable where LiteLLM looks for the key of such a server."""

    provider: ProviderName | None
    kind: RemoteKind
    url: str | None
    model: str
    key: str | None = None


def server_of(params: Mapping[str, Any], environ: Mapping[str, str]) -> Server | str:
    """Return the server of a deployment's `litellm_params`, or why AIO has none like it."""
    named = params.get("model")
    if not isinstance(named, str) or not named:
        return "it has no litellm_params.model"
    if "*" in named:
        return "AIO serves the models that its catalogue names, and this one is a pattern: list the models"
    provider, model = _split(named, params.get("custom_llm_provider"))
    url = params.get("api_base") or params.get("base_url")
    if (variable := variable_of(url)) is not None:
        url = environ.get(variable, "").strip()
        if not url:
            return _NOT_ADDRESSES
    url = url.rstrip("/") if isinstance(url, str) and url else None
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        return f"its api_base {url!r} is no URL"
    if provider in ("openai", "text-completion-openai") and url is not None and url not in OPENAI_HOSTS:
        return Server(None, "openai", url, model)
    if provider == "azure":
        url = url or environ.get("AZURE_API_BASE", "").strip().rstrip("/") or None
        if url is None:
            return "it has no api_base, and AZURE_API_BASE is not set here: set it, and run this again"
        return Server("azure", "azure", url.partition("/openai")[0], model, "AZURE_API_KEY")
    if provider == "bedrock":
        return _bedrock(params, model, url)
    if provider in PROVIDERS:
        return Server(PROVIDERS[provider], "openai", None if provider == "openai" else url, model)
    if provider in SERVERS:
        kind = SERVERS[provider]
        url = url or kind.url or None
        if url is None:
            return f"it has no api_base, and {provider} has no usual one"
        return Server(None, kind.kind, url if url.endswith(kind.path) else url + kind.path, model, kind.key)
    if provider == "auto_router":
        return "AIO routes by itself: ask for the model `auto`"
    if not provider:
        return f"no provider is known for {model!r}: write provider/model"
    return f"AIO has no provider {provider!r}; if its server has OpenAI's API, write openai/{model} with its api_base"


def _split(named: str, given: object) -> tuple[str, str]:
    if isinstance(given, str) and given:
        return given, named.removeprefix(f"{given}/")
    first, slash, rest = named.partition("/")
    if slash and (first in PROVIDERS or first in SERVERS):
        return first, rest
    if slash:
        return first, rest
    return next((provider for provider, starts in _BARE.items() if named.startswith(starts)), ""), named


def _bedrock(params: Mapping[str, Any], model: str, url: str | None) -> Server | str:
    model = model.removeprefix("converse/")
    if model.startswith(("invoke/", "agent/", "converse_like/")) or ("/" in model and not model.startswith("arn:")):
        return "of Bedrock AIO speaks the Converse API alone: write bedrock/converse/MODEL"
    region = params.get("aws_region_name")
    if url is None and isinstance(region, str) and variable_of(region) is None:
        url = f"https://bedrock-runtime.{region}.amazonaws.com"
    return Server("bedrock", "bedrock", url, model)
