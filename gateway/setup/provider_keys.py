"""Providers whose keys are in the environment, and which of their models make sensible tiers."""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.setup.candidate import Candidate
from tiers.catalog.price_list import listed_model


class ProviderKey(NamedTuple):
    """A provider as `provider = "…"` names it; the first of `variables` that is set is its key.

    `models`: a cheap and a strong one, proposed unless others are asked for; the tests check them against the price
    list.
    """

    provider: str
    label: str
    variables: tuple[str, ...]
    models: tuple[str, ...] = ()


PROVIDERS = (
    ProviderKey("openai", "OpenAI", ("OPENAI_API_KEY",), ("gpt-6-luna", "gpt-6.1-sol")),
    ProviderKey("anthropic", "Anthropic", ("ANTHROPIC_API_KEY",), ("claude-haiku-5-5", "claude-opus-5-5")),
    ProviderKey("gemini", "Gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("gemini-3.5-flash-lite", "gemini-4-argon")),
    ProviderKey("azure", "Azure OpenAI", ("AZURE_OPENAI_API_KEY",)),
    ProviderKey(
        "openrouter", "OpenRouter", ("OPENROUTER_API_KEY",), ("openai/gpt-6-luna", "anthropic/claude-opus-5.5")
    ),
    # Named by --tier only: their keys alone do not say which of many models is meant.
    ProviderKey("bedrock", "Bedrock", ("AWS_BEARER_TOKEN_BEDROCK",)),
    ProviderKey("deepseek", "DeepSeek", ("DEEPSEEK_API_KEY",)),
    ProviderKey("fireworks", "Fireworks", ("FIREWORKS_API_KEY",)),
    ProviderKey("groq", "Groq", ("GROQ_API_KEY",)),
    ProviderKey("mistral", "Mistral", ("MISTRAL_API_KEY",)),
    ProviderKey("together", "Together", ("TOGETHER_API_KEY",)),
    ProviderKey("xai", "xAI", ("XAI_API_KEY",)),
)
AZURE_DEPLOYMENTS = ("AZURE_OPENAI_DEPLOYMENT", "AZURE_OPENAI_DEPLOYMENT_NAME", "AZURE_OPENAI_CHAT_DEPLOYMENT_NAME")
OPENAI_HOSTS = ("https://api.openai.com/v1", "https://api.openai.com")


def provider_named(name: str) -> ProviderKey | None:
    """Return the provider called `name` in a catalogue."""
    return next((one for one in PROVIDERS if one.provider == name), None)


def key_variable(one: ProviderKey, environ: Mapping[str, str]) -> str | None:
    """Return the variable that holds the provider's key; None if none is set."""
    return next((name for name in one.variables if environ.get(name, "").strip()), None)


def other_openai_server(environ: Mapping[str, str]) -> str | None:
    """Return `OPENAI_BASE_URL` if it is not OpenAI's own: the key then belongs to that server."""
    url = environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")
    return url if url and url not in OPENAI_HOSTS else None


def find_providers(environ: Mapping[str, str]) -> tuple[list[Candidate], list[str]]:
    """Return the proposed models of providers with a key, and notes on keys that need more than the key."""
    found: list[Candidate] = []
    notes: list[str] = []
    for one in PROVIDERS:
        if (variable := key_variable(one, environ)) is None:
            continue
        if one.provider == "openai" and other_openai_server(environ):
            continue
        models = one.models
        if one.provider == "azure":
            if not environ.get("AZURE_OPENAI_ENDPOINT", "").strip():
                notes.append(f"{variable} is set, but not AZURE_OPENAI_ENDPOINT: set it to use Azure OpenAI")
                continue
            models = tuple(name for var in AZURE_DEPLOYMENTS if (name := environ.get(var, "").strip()))[:1]
            if not models:
                notes.append(f"{variable} is set: name a deployment of yours with --tier NAME=azure:DEPLOYMENT")
        found += [provider_candidate(one, model, variable) for model in models]
    return found, notes


def provider_candidate(one: ProviderKey, model: str, variable: str | None) -> Candidate:
    """Return a provider's model with what the price list knows of it; `variable`: of its key, None if none is set."""
    listed = listed_model(model, provider=one.provider)
    return Candidate(
        source=f"{one.label}, key {f'in {variable}' if variable else f'expected in {one.variables[0]}'}",
        model=model,
        provider=one.provider,
        price=None if listed is None else listed.price,
        max_context=None if listed is None else listed.max_context,
    )
