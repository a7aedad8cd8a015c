"""A tier may name its provider: address, key variable, protocol and context follow from it."""

from typing import Any

import pytest

from tiers.build import build_tiers
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import parse_catalog
from tiers.catalog.providers import PROVIDERS
from tiers.catalog.tier_spec import ProviderName
from tiers.errors import CatalogError, MissingKeyError

VARIABLES = sorted(
    {name for provider in PROVIDERS.values() for name in (*provider.key_variables, provider.url_variable) if name}
    | {"AWS_REGION", "AWS_DEFAULT_REGION"}
)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def catalogue(*tiers: dict[str, Any]) -> Catalog:
    small = {"name": "small", "url": "http://localhost:1/v1"}
    return parse_catalog({"name": "short", "tiers": [small, *tiers]}, "catalogue 'short'")


def remote_of(**tier: Any) -> Any:
    made = catalogue({"name": "large", **tier}).tier(2)
    assert made.remote is not None
    return made.remote


@pytest.mark.parametrize(
    ("provider", "kind", "base_url", "variable"),
    [
        ("anthropic", "anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        ("gemini", "gemini", "https://generativelanguage.googleapis.com/v1beta", "GEMINI_API_KEY"),
        ("bedrock", "bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com", None),
        ("openai", "openai-provider", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("openrouter", "openai-provider", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("mistral", "openai-provider", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        ("groq", "openai-provider", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        ("deepseek", "openai-provider", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        ("together", "openai-provider", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        ("fireworks", "openai-provider", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        ("xai", "openai-provider", "https://api.x.ai/v1", "XAI_API_KEY"),
    ],
)
def test_a_provider_and_a_model_make_a_tier(provider: str, kind: str, base_url: str, variable: str | None) -> None:
    remote = remote_of(provider=provider, model="some/model-1.5")
    assert (remote.kind, remote.base_url, remote.api_key_env) == (kind, base_url, variable)
    assert remote.model == "some/model-1.5"
    assert remote.max_context >= 64_000


def test_every_provider_is_allowed_and_known() -> None:
    assert set(PROVIDERS) == set(ProviderName.__args__)  # type: ignore[attr-defined]


def test_address_key_variable_and_context_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = remote_of(
        provider="anthropic", model="c", url="http://proxy.local:8000", api_key_env="OTHER", max_context=500_000
    )
    assert (remote.base_url, remote.api_key_env) == ("http://proxy.local:8000/v1", "OTHER")
    assert remote.max_context == 500_000
    assert remote_of(provider="anthropic", model="c", url="http://proxy.local/api/v9/").base_url.endswith("/api/v9")


def test_of_several_key_variables_the_one_that_is_set_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    assert remote_of(provider="gemini", model="g").api_key_env == "GOOGLE_API_KEY"
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    assert remote_of(provider="gemini", model="g").api_key_env == "GEMINI_API_KEY"


def test_azures_address_is_the_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        CatalogError, match="give the tier a url, or set the environment variable AZURE_OPENAI_ENDPOINT"
    ):
        catalogue({"name": "a", "provider": "azure", "model": "deployed"})
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    remote = remote_of(provider="azure", model="deployed")
    assert remote.base_url == "https://mine.openai.azure.com/openai/v1"
    assert (remote.kind, remote.api_key_env) == ("azure", "AZURE_OPENAI_API_KEY")
    assert remote.max_tokens_field == "max_completion_tokens"


def test_bedrocks_address_is_the_regions_and_its_own_key_is_used_if_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert remote_of(provider="bedrock", model="m").base_url == "https://bedrock-runtime.eu-central-1.amazonaws.com"
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "k")
    assert remote_of(provider="bedrock", model="m").api_key_env == "AWS_BEARER_TOKEN_BEDROCK"


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ({"provider": "antropic", "model": "m"}, "provider = 'antropic': allowed: anthropic, azure, bedrock"),
        ({"provider": "anthropic"}, "provider = 'anthropic': give model, too"),
        ({"provider": 7, "model": "m"}, "provider = 7"),
        (
            {"remote": {"kind": "gemini", "model": "m", "base_urls": ["http://a/v1", "http://b/v1"]}},
            "a provider of kind 'gemini' has one address; give base_url",
        ),
    ],
)
def test_a_mistake_is_named(tier: dict[str, Any], said: str) -> None:
    with pytest.raises(CatalogError) as raised:
        catalogue({"name": "a", **tier})
    assert said in str(raised.value)


async def test_a_key_that_is_not_set_names_the_variable() -> None:
    built = build_tiers(catalogue({"name": "a", "provider": "anthropic", "model": "c"}), {})
    tier = next(tier for tier in built if tier.name == "a")
    with pytest.raises(MissingKeyError, match="environment variable ANTHROPIC_API_KEY, which is not set"):
        await tier.start()


KEYS = [{"env": "KEY_A", "requests_per_minute": 60}, {"env": "KEY_B", "tokens_per_minute": 100_000}]


@pytest.mark.parametrize(
    "tier", [{"provider": "openai", "model": "m"}, {"provider": "bedrock", "model": "m"}, {"url": "http://a/v1"}]
)
def test_a_tier_may_have_several_keys_with_limits_of_their_own(tier: dict[str, Any]) -> None:
    remote = remote_of(**tier, api_keys=KEYS)
    assert remote.api_key_env is None
    assert remote.is_replicated
    servers = [
        (server.base_url, server.api_key_env, server.requests_per_minute, server.tokens_per_minute)
        for server in remote.servers
    ]
    assert servers == [(remote.base_url, "KEY_A", 60, None), (remote.base_url, "KEY_B", None, 100_000)]
    alone = remote.alone(remote.servers[1])
    assert (alone.api_key_env, alone.is_replicated) == ("KEY_B", False)


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ({"url": "http://a/v1", "api_keys": [{"env": "sk-abc"}]}, "the name of an environment variable, not a key"),
        ({"url": "http://a/v1", "api_keys": KEYS, "api_key_env": "KEY_C"}, "api_key_env and api_keys are both set"),
        ({"url": "http://a/v1", "api_keys": [{"env": "KEY_A"}, {"env": "KEY_A"}]}, "occurs 2 times"),
        ({"url": "http://a/v1", "api_keys": [{"env": "KEY_A", "requests_per_minute": 0}]}, "requests_per_minute = 0"),
        ({"remote": {"base_urls": ["http://a/v1"], "api_keys": KEYS}}, "api_keys: for one base_url"),
    ],
)
def test_keys_that_cannot_be_meant_refuse_the_catalogue(tier: dict[str, Any], said: str) -> None:
    with pytest.raises(CatalogError, match="problem") as caught:
        catalogue({"name": "large", **tier})
    assert said in str(caught.value)
    assert "sk-abc" not in str(caught.value)


def test_a_target_may_name_its_provider_and_keys_and_has_the_price_of_its_tier() -> None:
    tiers = [{"name": "small", "url": "http://a/v1"}, {"name": "large", "url": "http://b/v1", "fallback": ["spare"]}]
    target = {"name": "spare", "provider": "azure", "url": "https://x.example", "model": "d", "api_keys": KEYS}
    made = parse_catalog({"name": "short", "tiers": tiers, "targets": [target]}, "here")
    spare = made.targets[0]
    assert (spare.number, spare.price) == (2, made.tier(2).price)
    assert spare.price.estimated
    assert spare.remote is not None
    assert [server.api_key_env for server in spare.remote.servers] == ["KEY_A", "KEY_B"]
    assert spare.remote.base_url == "https://x.example/openai/v1"
