"""Providers whose keys are in the environment, and which of their models make sensible tiers."""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.operations.setup.candidate import Candidate
from tiers.catalog.price_list import listed_model
from tiers.catalog.providers import PROVIDERS
from tiers.catalog.tier_spec import ProviderName


class Proposal(NamedTuple):
    """A provider and the models to propose where its key is set: a cheap and a strong one, in the price list."""

    provider: ProviderName
    label: str
    models: tuple[str, ...]


PROPOSALS = (
    Proposal("openai", "OpenAI", ("gpt-6-luna", "gpt-6.1-sol")),
    Proposal("anthropic", "Anthropic", ("claude-haiku-5-5", "claude-opus-5-5")),
    Proposal("gemini", "Gemini", ("gemini-3.5-flash-lite", "gemini-4-argon")),
    Proposal("azure", "Azure OpenAI", ()),
    Proposal("openrouter", "OpenRouter", ("openai/gpt-6-luna", "anthropic/claude-opus-5.5")),
)
AZURE_DEPLOYMENTS = ("AZURE_OPENAI_DEPLOYMENT", "AZURE_OPENAI_DEPLOYMENT_NAME", "AZURE_OPENAI_CHAT_DEPLOYMENT_NAME")
OPENAI_HOSTS = ("https://api.openai.com/v1", "https://api.openai.com")


def provider_named(name: str) -> ProviderName | None:
    """Return the provider that a catalogue calls `name`."""
    return next((provider for provider in PROVIDERS if provider == name), None)


def key_variable(provider: ProviderName, environ: Mapping[str, str]) -> str | None:
    """Return the variable that holds the provider's key; None if none is set."""
    return next((name for name in PROVIDERS[provider].key_variables if environ.get(name, "").strip()), None)


def other_openai_server(environ: Mapping[str, str]) -> str | None:
    """Return `OPENAI_BASE_URL` if it is not OpenAI's own: the key then belongs to that server."""
    url = environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")
    return url if url and url not in OPENAI_HOSTS else None


def find_providers(environ: Mapping[str, str]) -> tuple[list[Candidate], list[str]]:
    """Return the proposed models of providers with a key, and notes on keys that need more than the key."""
    found: list[Candidate] = []
    notes: list[str] = []
    for one in PROPOSALS:
        if (variable := key_variable(one.provider, environ)) is None:
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
        found += [provider_candidate(one.provider, model, variable) for model in models]
    return found, notes


def provider_candidate(provider: ProviderName, model: str, variable: str | None) -> Candidate:
    """Return a provider's model with what the price list knows of it; `variable`: of its key, None if none is set."""
    listed = listed_model(model, provider=provider)
    label = next((one.label for one in PROPOSALS if one.provider == provider), provider)
    place = f"in {variable}" if variable else f"expected in {PROVIDERS[provider].key_variables[0]}"
    return Candidate(
        source=f"{label}, key {place}",
        model=model,
        provider=provider,
        price=None if listed is None else listed.price,
        max_context=None if listed is None else listed.max_context,
    )
