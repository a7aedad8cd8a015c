"""Where a deployment of LiteLLM's runs: its `provider/model` and address as a server that an entry can name; and its
names of providers: where AIO has the same one, and the addresses of those with OpenAI's API.

Addresses and variables are those of LiteLLM's own code, read in November 2026:
https://github.com/BerriAI/litellm/blob/main/litellm/litellm_core_utils/get_llm_provider_logic.py, the files
`litellm/llms/*/chat/transformation.py`, and https://github.com/BerriAI/litellm/blob/main/litellm/llms/openai_like/providers.json.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.operations.setup.candidate import OPENAI_HOSTS
from gateway.operations.setup.litellm.config_file import variable_of
from tiers.catalog.providers import google_cloud_url
from tiers.catalog.tier_spec import ProviderName, RemoteKind

PROVIDERS: Mapping[str, ProviderName] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "azure_text": "azure",
    "bedrock": "bedrock",
    "bedrock_converse": "bedrock",
    "deepseek": "deepseek",
    "fireworks_ai": "fireworks",
    "gemini": "gemini",
    "groq": "groq",
    "mistral": "mistral",
    "openai": "openai",
    "openrouter": "openrouter",
    "together_ai": "together",
    "vertex_ai": "vertex",
    "vertex_ai_beta": "vertex",
    "xai": "xai",
}


class OpenAiServer(NamedTuple):
    """A server with OpenAI's API: its kind, its usual address and variable, and what its address ends in."""

    kind: RemoteKind = "openai"
    url: str = ""
    key: str | None = None
    path: str = ""


SERVERS: Mapping[str, OpenAiServer] = {
    "hosted_vllm": OpenAiServer("vllm"),
    "vllm": OpenAiServer("vllm"),
    "ollama": OpenAiServer(url="http://localhost:11434", path="/v1"),
    "ollama_chat": OpenAiServer(url="http://localhost:11434", path="/v1"),
    "lm_studio": OpenAiServer(url="http://localhost:1234/v1"),
    "llamafile": OpenAiServer(url="http://localhost:8080/v1"),
    "docker_model_runner": OpenAiServer(url="http://localhost:22088/engines/llama.cpp/v1"),
    "huggingface": OpenAiServer("tgi", path="/v1"),
    "xinference": OpenAiServer(url="http://127.0.0.1:9997/v1"),
    "infinity": OpenAiServer(),
    "oobabooga": OpenAiServer(path="/v1"),
    "litellm_proxy": OpenAiServer(),
    "openai_like": OpenAiServer(),
    "custom_openai": OpenAiServer(),
    "custom": OpenAiServer(),
    "aiohttp_openai": OpenAiServer(),
    "databricks": OpenAiServer(key="DATABRICKS_API_KEY"),
    "ai21": OpenAiServer(url="https://api.ai21.com/studio/v1", key="AI21_API_KEY"),
    "ai21_chat": OpenAiServer(url="https://api.ai21.com/studio/v1", key="AI21_API_KEY"),
    "aihubmix": OpenAiServer(url="https://aihubmix.com/v1", key="AIHUBMIX_API_KEY"),
    "cerebras": OpenAiServer(url="https://api.cerebras.ai/v1", key="CEREBRAS_API_KEY"),
    "chutes": OpenAiServer(url="https://llm.chutes.ai/v1", key="CHUTES_API_KEY"),
    "codestral": OpenAiServer(url="https://codestral.mistral.ai/v1", key="CODESTRAL_API_KEY"),
    # Of Cohere LiteLLM speaks its own API; this is the one with OpenAI's form, for the same models and key.
    "cohere": OpenAiServer(url="https://api.cohere.ai/compatibility/v1", key="COHERE_API_KEY"),
    "cohere_chat": OpenAiServer(url="https://api.cohere.ai/compatibility/v1", key="COHERE_API_KEY"),
    "dashscope": OpenAiServer(url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1", key="DASHSCOPE_API_KEY"),
    "deepinfra": OpenAiServer(url="https://api.deepinfra.com/v1/openai", key="DEEPINFRA_API_KEY"),
    "featherless_ai": OpenAiServer(url="https://api.featherless.ai/v1", key="FEATHERLESS_API_KEY"),
    "friendliai": OpenAiServer(url="https://api.friendli.ai/serverless/v1", key="FRIENDLIAI_API_KEY"),
    "github": OpenAiServer(url="https://models.inference.ai.azure.com", key="GITHUB_API_KEY"),
    "gmi": OpenAiServer(url="https://api.gmi-serving.com/v1", key="GMI_API_KEY"),
    "hyperbolic": OpenAiServer(url="https://api.hyperbolic.xyz/v1", key="HYPERBOLIC_API_KEY"),
    "jina_ai": OpenAiServer(url="https://api.jina.ai/v1", key="JINA_AI_API_KEY"),
    "meta_llama": OpenAiServer(url="https://api.llama.com/compat/v1", key="LLAMA_API_KEY"),
    "minimax": OpenAiServer(url="https://api.minimax.io/v1", key="MINIMAX_API_KEY"),
    "moonshot": OpenAiServer(url="https://api.moonshot.ai/v1", key="MOONSHOT_API_KEY"),
    "nano-gpt": OpenAiServer(url="https://nano-gpt.com/api/v1", key="NANOGPT_API_KEY"),
    "nebius": OpenAiServer(url="https://api.studio.nebius.ai/v1", key="NEBIUS_API_KEY"),
    "nvidia_nim": OpenAiServer(url="https://integrate.api.nvidia.com/v1", key="NVIDIA_NIM_API_KEY"),
    "perplexity": OpenAiServer(url="https://api.perplexity.ai", key="PERPLEXITYAI_API_KEY"),
    "poe": OpenAiServer(url="https://api.poe.com/v1", key="POE_API_KEY"),
    "publicai": OpenAiServer(url="https://api.publicai.co/v1", key="PUBLICAI_API_KEY"),
    "sambanova": OpenAiServer(url="https://api.sambanova.ai/v1", key="SAMBANOVA_API_KEY"),
    "scaleway": OpenAiServer(url="https://api.scaleway.ai/v1", key="SCW_SECRET_KEY"),
    "synthetic": OpenAiServer(url="https://api.synthetic.new/openai/v1", key="SYNTHETIC_API_KEY"),
    "veniceai": OpenAiServer(url="https://api.venice.ai/api/v1", key="VENICE_AI_API_KEY"),
    "vercel_ai_gateway": OpenAiServer(url="https://ai-gateway.vercel.sh/v1", key="VERCEL_AI_GATEWAY_API_KEY"),
    "volcengine": OpenAiServer(url="https://ark.cn-beijing.volces.com/api/v3", key="VOLCENGINE_API_KEY"),
    "voyage": OpenAiServer(url="https://api.voyageai.com/v1", key="VOYAGE_API_KEY"),
    "xiaomi_mimo": OpenAiServer(url="https://api.xiaomimimo.com/v1", key="XIAOMI_MIMO_API_KEY"),
    "zai": OpenAiServer(url="https://api.z.ai/api/paas/v4", key="ZAI_API_KEY"),
    "lambda_ai": OpenAiServer(url="https://api.lambda.ai/v1", key="LAMBDA_API_KEY"),
    # The address has the account in it.
    "cloudflare": OpenAiServer(key="CLOUDFLARE_API_KEY"),
    "lemonade": OpenAiServer(url="http://localhost:8000/api/v1"),
} | {
    name: OpenAiServer(url=url, key=f"{name.upper()}_API_KEY")
    for name, url in (
        ("aiml", "https://api.aimlapi.com/v1"),
        ("amazon_nova", "https://api.nova.amazon.com/v1"),
        ("baseten", "https://inference.baseten.co/v1"),
        ("clarifai", "https://api.clarifai.com/v2/ext/openai/v1"),
        ("cometapi", "https://api.cometapi.com/v1"),
        ("compactifai", "https://api.compactif.ai/v1"),
        ("galadriel", "https://api.galadriel.com/v1"),
        ("gradient_ai", "https://inference.do-ai.run/v1"),
        ("inception", "https://api.inceptionlabs.ai/v1"),
        ("llamagate", "https://api.llamagate.dev/v1"),
        ("modelscope", "https://api-inference.modelscope.cn/v1"),
        ("morph", "https://api.morphllm.com/v1"),
        ("novita", "https://api.novita.ai/v3/openai"),
        ("nscale", "https://inference.api.nscale.com/v1"),
        ("ovhcloud", "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1"),
        ("parasail", "https://api.parasail.io/v1"),
        ("v0", "https://api.v0.dev/v1"),
        ("wandb", "https://api.inference.wandb.ai/v1"),
    )
}

RERANKERS: Mapping[str, str] = {"cohere": "https://api.cohere.com/v2", "cohere_chat": "https://api.cohere.com/v2"}
"""Addresses before `/rerank` where they are others."""

BARE: Mapping[str, tuple[str, ...]] = {
    "openai": (
        "gpt-", "o1", "o3", "o4", "chatgpt-", "text-embedding-", "dall-e", "whisper-", "tts-", "omni-moderation",
        "text-moderation",
    ),
    "anthropic": ("claude-",),
    "vertex_ai": ("gemini-",),
    "cohere": ("command-", "embed-", "rerank-"),
    "bedrock": ("anthropic.", "amazon.", "meta.", "mistral.", "cohere.", "ai21.", "us.", "eu.", "apac.", "global."),
}  # fmt: skip
"""Models that LiteLLM knows without a provider."""


OPENAI_COMPATIBLE_GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai"
"""For embeddings and images: https://ai.google.dev/gemini-api/docs/openai."""
# LiteLLM's, without a location of a project.
_VERTEX_LOCATION = "us-central1"
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
    """The variable where LiteLLM looks for the key of such a server."""
    unset: tuple[str, ...] = ()
    """The parameters whose variables are not set here, and without which the environment's values hold."""


def server_of(params: Mapping[str, Any], environ: Mapping[str, str], mode: str) -> Server | str:
    """Return the server of a deployment's `litellm_params`, or why AIO has none like it. `mode`: `chat`, `embedding` or
    an endpoint that is passed through."""
    named = params.get("model")
    if not isinstance(named, str) or not named:
        return "it has no litellm_params.model"
    if (variable := variable_of(named)) is not None:
        named = environ.get(variable, "").strip()
        if not named:
            return f"its model is in the variable {variable}, which is not set here: set it, and run this again"
    provider, model = split_model(named, params.get("custom_llm_provider"))
    url = params.get("api_base") or params.get("base_url")
    if (variable := variable_of(url)) is not None:
        url = environ.get(variable, "").strip()
        if not url:
            return f"its api_base is in {variable}, a variable that is not set here: set it, and run this again"
    url = url if isinstance(url, str) and url else _elsewhere(provider, environ)
    url = url.rstrip("/") or None
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        return f"its api_base {url!r} is no URL"
    if not model and provider:
        return f"its model {named!r} names a provider alone"
    return _placed(params, environ, mode, provider, model, url)


# LiteLLM's variables that begin otherwise than with the name of the provider.
_PREFIXES = {"ollama_chat": "ollama", "lambda_ai": "lambda", "meta_llama": "llama", "friendliai": "friendli"}


def _address_variable(provider: str) -> str:
    """Return the variable where LiteLLM looks for the address of a provider's servers, or for what completes it."""
    if provider == "cloudflare":
        return "CLOUDFLARE_ACCOUNT_ID"
    return f"{_PREFIXES.get(provider, provider).upper().replace('-', '_')}_API_BASE"


def _elsewhere(provider: str, environ: Mapping[str, str]) -> str:
    """Return the address that the environment has for a provider; empty if it has none."""
    found = "" if provider == "openai" else environ.get(_address_variable(provider), "").strip()
    is_account = provider == "cloudflare" and found != ""
    return f"https://api.cloudflare.com/client/v4/accounts/{found}/ai/v1" if is_account else found


def _placed(
    params: Mapping[str, Any], environ: Mapping[str, str], mode: str, provider: str, model: str, url: str | None
) -> Server | str:
    if provider in ("openai", "text-completion-openai"):
        return _openai(environ, _SERIES.sub("", model), url)
    if provider == "azure_ai":
        return _foundry(model, url or "", mode)
    if provider in ("azure", "azure_text"):
        url = url or environ.get("AZURE_API_BASE", "").strip().rstrip("/")
        if not url:
            return "it has no api_base, and AZURE_API_BASE is not set here: set it, and run this again"
        return Server("azure", "azure", _before(url, "/openai"), _SERIES.sub("", model), "AZURE_API_KEY")
    if mode in ("embedding", "images") and provider == "gemini" and url is None:
        return Server(None, "openai", OPENAI_COMPATIBLE_GEMINI, model, "GEMINI_API_KEY")
    if PROVIDERS.get(provider) in ("bedrock", "vertex", "gemini", "anthropic"):
        if mode != "chat":
            return f"AIO speaks {provider}'s API for chats, and this is a model of the mode {mode}"
        return _native(params, environ, PROVIDERS[provider], model, url)
    if provider in PROVIDERS:
        return Server(PROVIDERS[provider], "openai", url, model)
    if provider in SERVERS:
        return _compatible(provider, model, url, mode)
    if provider == "auto_router":
        return "AIO routes by itself: the name is one of `auto`"
    if not provider:
        return f"no provider is known for {model!r}: write provider/model"
    return f"AIO has no provider {provider!r}; if its server has OpenAI's API, write openai/{model} with its api_base"


def _openai(environ: Mapping[str, str], model: str, url: str | None) -> Server | str:
    if url is None:
        elsewhere = environ.get("OPENAI_BASE_URL", "").strip() or environ.get("OPENAI_API_BASE", "").strip()
        url = elsewhere.rstrip("/") or None
        if url is not None and url not in OPENAI_HOSTS:
            return Server(None, "openai", url, model, "OPENAI_API_KEY")
    if url is not None and url not in OPENAI_HOSTS:
        return Server(None, "openai", url, model)
    if _COMPLETES.match(model):
        return "AIO asks for chats, and this model of OpenAI's only completes texts"
    return Server("openai", "openai", None, model)


def _foundry(model: str, url: str, mode: str) -> Server | str:
    """Models of Azure's Foundry: those of a resource have the v1 API of Azure OpenAI, Claude its own, and serverless
    deployments one each (https://learn.microsoft.com/azure/ai-foundry/foundry-models/concepts/endpoints)."""
    if not url:
        return "it has no api_base, and AZURE_AI_API_BASE is not set here: set it, and run this again"
    host = urlsplit(url).hostname or ""
    if mode == "chat" and model.startswith("claude"):
        root = _before(url, "/anthropic")
        return Server("anthropic", "anthropic", f"{root}/anthropic/v1", model, "AZURE_AI_API_KEY")
    if mode != "rerank" and host.endswith((".services.ai.azure.com", ".openai.azure.com")):
        root = f"https://{host}"
        return Server("azure", "azure", root, model, "AZURE_AI_API_KEY")
    url = url if url.endswith("/v1") else f"{url}/v1"
    return Server(None, "openai", url, model, "AZURE_AI_API_KEY")


def _native(
    params: Mapping[str, Any], environ: Mapping[str, str], provider: ProviderName, model: str, url: str | None
) -> Server | str:
    """Return the server of a provider whose API is no one else's."""
    if provider == "bedrock":
        return _bedrock(params, environ, model, url)
    if provider == "vertex":
        return _vertex(params, environ, model, url)
    if provider == "gemini" and url is not None:
        url = _before(url, "/models/")
    if provider == "anthropic" and url is not None:
        url = url.removesuffix("/messages").removesuffix("/v1") + "/v1"
    return Server(provider, "openai", url, model)


def _compatible(provider: str, model: str, url: str | None, mode: str) -> Server | str:
    kind = SERVERS[provider]
    if provider == "huggingface" and url is None:
        # LiteLLM's names have the one who serves the model in front, the router's behind.
        by, _, rest = model.partition("/")
        routed = f"{rest}:{by}" if "/" in rest else model
        return Server(None, "openai", "https://router.huggingface.co/v1", routed, "HF_TOKEN")
    usual = RERANKERS.get(provider, kind.url) if mode == "rerank" else kind.url
    url = url or usual or None
    if url is None:
        return f"it has no api_base, and {_address_variable(provider)} is not set here: set it, and run this again"
    if mode == "rerank":
        url = url.removesuffix("/rerank")
    return Server(None, kind.kind, url if url.endswith(kind.path) else url + kind.path, model, kind.key)


def split_model(named: str, given: object) -> tuple[str, str]:
    """Return LiteLLM's name of the provider and the model of `provider/model`; the provider is "" if none is known."""
    if isinstance(given, str) and given:
        return given, named.removeprefix(f"{given}/")
    first, slash, rest = named.partition("/")
    if slash:
        return first, rest
    return next((provider for provider, starts in BARE.items() if named.startswith(starts)), ""), named


def _before(url: str, part: str) -> str:
    """Return an address up to a part of its path."""
    host = url.partition("://")[2].partition("/")[0]
    head, _, path = url.partition(f"://{host}")
    return f"{head}://{host}{path.partition(part)[0]}"


def _value(params: Mapping[str, Any], environ: Mapping[str, str], *names: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of the first of `names` that is given, and the names whose variables are not set here."""
    unset: list[str] = []
    for name in names:
        text = params.get(name)
        if not isinstance(text, str) or not text:
            continue
        if (variable := variable_of(text)) is None:
            return text, ()
        if found := environ.get(variable, "").strip():
            return found, ()
        unset.append(name)
    return "", tuple(unset)


def _bedrock(params: Mapping[str, Any], environ: Mapping[str, str], model: str, url: str | None) -> Server | str:
    # The Converse API answers for the models of the older one, too.
    model = model.removeprefix("converse/").removeprefix("invoke/")
    region, unset = _value(params, environ, "aws_region_name")
    first, slash, rest = model.partition("/")
    if slash and _AWS_REGION.fullmatch(first):
        region, model = region or first, rest
    if "/" in model and not model.startswith("arn:"):
        return "of Bedrock AIO speaks the Converse API alone: write bedrock/converse/MODEL"
    if url is None and region:
        url = f"https://bedrock-runtime.{region}.amazonaws.com"
    return Server("bedrock", "bedrock", url, model, None, unset)


def _vertex(params: Mapping[str, Any], environ: Mapping[str, str], model: str, url: str | None) -> Server | str:
    model = model.removeprefix("gemini/")
    if not model.startswith(("gemini-", "claude-")):
        return f"of Vertex AI AIO asks Gemini and Claude, and this is {model}"
    if url is not None:
        return Server("vertex", "openai", _before(url, "/publishers/"), model)
    project, unset = _value(params, environ, "vertex_project", "vertex_ai_project")
    location, _ = _value(params, environ, "vertex_location", "vertex_ai_location")
    project = project or environ.get("VERTEXAI_PROJECT", "").strip() or environ.get("GOOGLE_CLOUD_PROJECT", "").strip()
    location = location or environ.get("VERTEXAI_LOCATION", "").strip()
    location = location or environ.get("GOOGLE_CLOUD_LOCATION", "").strip() or _VERTEX_LOCATION
    if not project:
        which = f"its {unset[0]} is in a variable that is not set here" if unset else "it has no vertex_project"
        return f"{which}, and neither is GOOGLE_CLOUD_PROJECT: set it, and run this again"
    return Server("vertex", "openai", google_cloud_url(project, location), model)
