"""The providers that the `provider` of an entry may name: their protocol, address, key variable and context."""

import os
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from tiers.catalog.replica_spec import server_key
from tiers.catalog.tier_spec import ProviderName

ProviderKind = Literal[
    "openai-provider", "azure", "anthropic", "gemini", "bedrock", "vertex-gemini", "vertex-anthropic"
]


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's name stands for in a catalogue."""

    kind: ProviderKind = "openai-provider"
    """The kind of its `remote` table."""
    kinds: dict[str, ProviderKind] = {}
    """Other kinds, by how their models' names start."""
    base_url: str = ""
    """Its address. `{region}` is the AWS region; `{host}`, `{project}` and `{location}` are those of Google Cloud.
    Without an address the tier's `url` or the environment variable `url_variable` gives it.
    """
    url_variable: str = ""
    path: str
    """Appended to an address that has none."""
    key_variables: tuple[str, ...]
    """Environment variables where its users keep the key; the first that is set is used."""
    needs_key: bool = True
    """Whether there is no other way to sign in."""
    max_context: int = 128_000
    """What its current models take at least, in tokens."""
    remote: dict[str, Any] = {}
    """Further fields of the `remote` table."""


_LATER_LIMIT = {"max_tokens_field": "max_completion_tokens"}

PROVIDERS: dict[ProviderName, Provider] = {
    "anthropic": Provider(
        kind="anthropic",
        base_url="https://api.anthropic.com/v1",
        path="/v1",
        key_variables=("ANTHROPIC_API_KEY",),
        max_context=200_000,
    ),
    "azure": Provider(
        kind="azure",
        url_variable="AZURE_OPENAI_ENDPOINT",
        path="/openai/v1",
        key_variables=("AZURE_OPENAI_API_KEY",),
        remote=_LATER_LIMIT | {"responses": "needed"},
    ),
    "bedrock": Provider(
        kind="bedrock",
        base_url="https://bedrock-runtime.{region}.amazonaws.com",
        url_variable="AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
        path="",
        key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
        needs_key=False,
    ),
    "deepseek": Provider(
        base_url="https://api.deepseek.com/v1", path="/v1", key_variables=("DEEPSEEK_API_KEY",), max_context=64_000
    ),
    "fireworks": Provider(
        base_url="https://api.fireworks.ai/inference/v1", path="/inference/v1", key_variables=("FIREWORKS_API_KEY",)
    ),
    "gemini": Provider(
        kind="gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        path="/v1beta",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        max_context=1_048_576,
    ),
    "groq": Provider(base_url="https://api.groq.com/openai/v1", path="/openai/v1", key_variables=("GROQ_API_KEY",)),
    # It refuses unknown fields and ends every stream with the usage anyway.
    "mistral": Provider(
        base_url="https://api.mistral.ai/v1",
        path="/v1",
        key_variables=("MISTRAL_API_KEY",),
        remote={"stream_usage": False, "service_fields": False},
    ),
    "openai": Provider(
        base_url="https://api.openai.com/v1",
        path="/v1",
        key_variables=("OPENAI_API_KEY",),
        remote=_LATER_LIMIT | {"responses": "needed"},
    ),
    "openrouter": Provider(
        base_url="https://openrouter.ai/api/v1", path="/api/v1", key_variables=("OPENROUTER_API_KEY",)
    ),
    "together": Provider(base_url="https://api.together.xyz/v1", path="/v1", key_variables=("TOGETHER_API_KEY",)),
    "vertex": Provider(
        kind="vertex-gemini",
        kinds={"claude": "vertex-anthropic"},
        base_url="https://{host}/v1/projects/{project}/locations/{location}",
        url_variable="GOOGLE_CLOUD_PROJECT",
        path="",
        # The path of a file; without one, the credentials of `gcloud` or of the machine.
        key_variables=("GOOGLE_APPLICATION_CREDENTIALS",),
        needs_key=False,
        max_context=200_000,
    ),
    "xai": Provider(base_url="https://api.x.ai/v1", path="/v1", key_variables=("XAI_API_KEY",)),
}


EMBEDDING_TOKENS = 8192
"""Most tokens of a text that a provider's embedding models read."""
PROVIDER_KINDS = frozenset(
    kind for provider in PROVIDERS.values() for kind in (provider.kind, *provider.kinds.values())
)


def provider_remote(
    name: ProviderName, model: str, url: str | None, key_variable: str | None, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the `remote` table of a tier on a provider. `url` and `key_variable` replace the provider's own."""
    provider = PROVIDERS[name]
    kind = next((kind for start, kind in provider.kinds.items() if model.startswith(start)), provider.kind)
    remote = {"kind": kind, "model": model, "max_context": provider.max_context} | provider.remote
    remote["base_url"] = _address(provider, url, environ)
    key_variable = key_variable or _key_variable(provider, environ)
    return remote if key_variable is None else remote | {"api_key_env": key_variable}


def names_provider(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has a known provider and the fields that go with it."""
    fields = [entry.get("provider"), entry.get("model"), entry.get("url", ""), entry.get("api_key_env", "")]
    return all(isinstance(field, str) for field in fields) and fields[0] in PROVIDERS and "remote" not in entry


def embedding_of_a_server(embedding: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give an embedding model of a server elsewhere its address, the variable of its key and a usual length."""
    if names_provider(embedding):
        url, key = embedding.get("url"), embedding.get("api_key_env")
        remote = provider_remote(embedding["provider"], embedding["model"], url, key, os.environ)
        server_fields = {"url": remote["base_url"], "api_key_env": remote.get("api_key_env")}
    elif "url" in embedding:
        server_fields = {}
    else:
        return embedding
    return {"max_tokens": EMBEDDING_TOKENS} | dict(embedding) | server_fields


def given_variable(provider: Provider, environ: Mapping[str, str]) -> str | None:
    """Return the first of the provider's variables that has its key, itself or by its `_FILE` form; None if none."""
    return next((name for name in provider.key_variables if server_key(environ, name)), None)


def _key_variable(provider: Provider, environ: Mapping[str, str]) -> str | None:
    variable = given_variable(provider, environ)
    return variable or (provider.key_variables[0] if provider.needs_key else None)


def _address(provider: Provider, url: str | None, environ: Mapping[str, str]) -> str:
    """Return the base URL; "" if nothing gives it."""
    if "{project}" in provider.base_url:
        project = environ.get("GOOGLE_CLOUD_PROJECT", "").strip()
        location = environ.get("GOOGLE_CLOUD_LOCATION", "").strip() or "global"
        return url.rstrip("/") if url else google_cloud_url(project, location) if project else ""
    address = url or environ.get(provider.url_variable, "").strip()
    if not address:
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return provider.base_url.format(region=region)
    address = address.rstrip("/")
    return address if urlsplit(address).path else address + provider.path


def google_cloud_url(project: str, location: str) -> str:
    """Return the address of a project's models on Vertex AI; `global`, `us` and `eu` have hosts of their own
    (https://cloud.google.com/vertex-ai/generative-ai/docs/learn/locations)."""
    host = f"{location}-aiplatform.googleapis.com"
    if location == "global":
        host = "aiplatform.googleapis.com"
    elif location in ("us", "eu"):
        host = f"aiplatform.{location}.rep.googleapis.com"
    return PROVIDERS["vertex"].base_url.format(host=host, project=project, location=location)
