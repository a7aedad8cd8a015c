"""Gateways that hold their users' keys: Portkey's configs and OpenRouter's presets.

References: https://portkey.ai/docs/api-reference/inference-api/config-object,
https://openrouter.ai/docs/guides/features/presets, read in November 2026.
"""

import re
from collections.abc import Mapping
from typing import Any

from gateway.operations.setup.gateways.translation import Field, Translation, variable
from gateway.operations.setup.litellm.config_file import ENVIRONMENT, mapping
from gateway.operations.setup.litellm.servers import PROVIDERS, SERVERS

_OTHER_NAMES = {
    "azure-openai": "azure", "azure-ai": "azure_ai", "google": "gemini", "mistral-ai": "mistral", "x-ai": "xai",
    "zhipu": "zai", "fireworks-ai": "fireworks_ai", "together-ai": "together_ai", "workers-ai": "cloudflare",
    "aws-bedrock": "bedrock", "perplexity-ai": "perplexity", "grok": "xai", "claude": "anthropic",
}  # fmt: skip
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}|\$\{?(\w+)\}?|([A-Z][A-Z0-9_]*_(?:KEY|TOKEN))")
_AT_PORTKEY = "the key itself is at Portkey: set the variable of the provider's key instead"
_GUARDRAILS = "declare AIO's own as [[guardrails]] of the catalogue (privacy.md#guardrails)"
_REASONS = {
    "virtual_key": _AT_PORTKEY,
    "virtualKey": _AT_PORTKEY,
    "input_guardrails": _GUARDRAILS,
    "output_guardrails": _GUARDRAILS,
    "before_request_hooks": _GUARDRAILS,
    "after_request_hooks": _GUARDRAILS,
    "api_version": "AIO uses Azure's v1 API, which has no versions",
    "forward_headers": 'AIO passes no headers of clients on; `credentials = "caller"` passes on a caller\'s credential',
    "drop_params": "AIO leaves out what a server was found to refuse",
}
_CONDITIONS = "AIO's [[rules]] say who may use which tiers (routing.md); every target answers by its name"
_STATUS = "a chain is tried whatever the failure, and each target once (remote-tiers.md#fallback-chains)"
_OF_STRATEGY = {"conditions": _CONDITIONS, "default": _CONDITIONS, "on_status_codes": _STATUS}
_PLACES = {
    "custom_host": "api_base", "customHost": "api_base", "base_url": "api_base", "aws_region": "aws_region_name",
    "vertex_project_id": "vertex_project", "vertex_region": "vertex_location",
}  # fmt: skip


def is_portkey(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a config of Portkey's."""
    own = {"targets", "options", "strategy", "virtual_key", "virtualKey", "api_key", "override_params"}
    return bool(document.keys() & own)


def read_portkey(document: Mapping[str, Any]) -> Translation:
    """Return a config in LiteLLM's form: each target with a model is an entry; balanced ones share a name."""
    found = Translation("Portkey", document)
    _target(found, document, "", {}, None)
    return found


def _target(
    found: Translation, node: Mapping[str, Any], path: str, above: Mapping[str, Field], shared: str | None
) -> list[str]:
    """Add a target and those in it; return its names, first the one to ask first. `above`: what it inherits; `shared`:
    the name of those that it is balanced with."""
    at = f"{path}." if path else ""
    inherited = {**above, **_of_all(found, node, at)}
    key = next((one for one in ("targets", "options") if isinstance(node.get(one), list)), None)
    if key is None:
        return _leaf(found, node, path, inherited, shared)
    strategy = mapping(node.get("strategy"))
    mode = strategy.get("mode", node.get("mode"))
    found.leave(strategy, f"{at}strategy", _OF_STRATEGY)
    names: list[str] = []
    for place, one in enumerate(node[key]):
        balanced = names[0] if mode == "loadbalance" and names else shared
        names += _target(found, mapping(one), f"{at}{key}[{place}]", inherited, balanced)
    where = f"{at}strategy.mode" if strategy else f"{at}mode"
    if mode == "fallback" and names:
        found.chain(names[0], names[1:], where)
    elif mode == "loadbalance":
        found.left[where] = "requests to one model are balanced over its keys and servers; different models stand in"
    elif mode is not None:
        found.left[where] = _CONDITIONS if mode == "conditional" else "there is nothing to choose"
    return names


def _of_all(found: Translation, node: Mapping[str, Any], at: str) -> dict[str, Field]:
    """Note what holds for a node and all below it."""
    retry, cache = mapping(node.get("retry")), mapping(node.get("cache"))
    for name in ("attempts", "count"):
        found.set("router_settings", "num_retries", Field(retry.get(name), f"{at}retry.{name}"))
    if isinstance(cache.get("max_age"), int | float):
        found.set("litellm_settings", "cache_params", Field({"ttl": cache["max_age"]}, f"{at}cache.max_age"))
    if cache.get("mode") == "simple":
        found.set("litellm_settings", "cache", Field(True, f"{at}cache.mode"))
    found.leave(node, at.rstrip("."), _REASONS)
    milliseconds = node.get("request_timeout")
    seconds = milliseconds / 1e3 if isinstance(milliseconds, int | float) else None
    return {} if seconds is None else {"timeout": Field(seconds, f"{at}request_timeout")}


def _leaf(
    found: Translation, node: Mapping[str, Any], path: str, inherited: Mapping[str, Field], shared: str | None
) -> list[str]:
    at = f"{path}." if path else ""
    usual, own = mapping(node.get("default_params")), mapping(node.get("override_params"))
    section = "override_params" if "model" in own else "default_params"
    named = {**usual, **own}.get("model")
    slug, provider = node.get("provider"), ""
    if isinstance(named, str) and named.startswith("@"):
        slug, _, named = named.partition("/")
    for text in (slug, node.get("virtual_key"), node.get("virtualKey")):
        provider = provider or _provider(text)
    if not provider:
        found.left[path or "provider"] = (
            f"its provider is not known by {slug or node.get('virtual_key') or 'its fields'}"
        )
        return []
    azure = {one: node.get(one) or node.get(f"azure_{one}") for one in ("resource_name", "deployment_id")}
    model = azure["deployment_id"] if provider == "azure" and azure["deployment_id"] else named
    where = f"{at}{section}.model" if named else f"{at}provider"
    params = {**inherited, **found.params(usual, f"{at}default_params"), **found.params(own, f"{at}override_params")}
    params |= {
        other: Field(variable_of(node.get(name)), f"{at}{name}") for name, other in _PLACES.items() if name in node
    }
    if provider == "azure" and azure["resource_name"]:
        url = f"https://{azure['resource_name']}.openai.azure.com"
        params["api_base"] = Field(url, f"{at}resource_name" if "resource_name" in node else f"{at}azure_resource_name")
    params["api_key"] = Field(variable_of(node.get("api_key", node.get("apiKey"))), f"{at}api_key")
    params["weight"] = Field(node.get("weight"), f"{at}weight")
    if "provider" in node and named:
        found.carried[f"{at}provider"] = "its server"
    name = shared or node.get("name") or (str(named) if named else f"{provider}/*")
    found.add(path or where, Field(name, where), Field(f"{provider}/{model or '*'}", where), params)
    return [name] if named else []


def _provider(text: object) -> str:
    """Return LiteLLM's name of a provider that Portkey names, or whose key a slug such as `@openai-prod` is."""
    if not isinstance(text, str):
        return ""
    slug = text.removeprefix("@").lower()
    known = {name.replace("_", "-"): name for name in (*PROVIDERS, *SERVERS)} | _OTHER_NAMES
    fitting = [name for name in known if slug == name or re.match(rf"{re.escape(name)}(?![a-z])", slug)]
    return known[max(fitting, key=len)] if fitting else ""


def variable_of(value: Any) -> Any:
    """Return a key as LiteLLM writes it: `{{NAME}}`, `$NAME` and `NAME_KEY` are variables."""
    found = _PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    name = None if found is None else next(filter(None, found.groups()))
    return variable(value, ("env.", "env::")) if name is None else ENVIRONMENT + name


_BOOKS = (
    "id", "creator_id", "creator_user_id", "workspace_id", "preset_id", "version", "created_at", "updated_at", "name",
    "status", "status_updated_at", "designated_version_id", "description", "slug",
)  # fmt: skip
_OF_PRESETS = {
    "system_prompt": "AIO adds no system prompt: clients send it",
    "tools": "AIO adds no tools: clients send them",
    "plugins": "AIO runs no plug-ins of OpenRouter's",
}


def presets_of(found: Any) -> list[dict[str, Any]]:
    """Return the presets of an answer of OpenRouter's API, of a list, or of one; empty for anything else."""
    listed = mapping(found).get("data", mapping(found).get("presets", found))
    presets = [mapping(one) for one in (listed if isinstance(listed, list) else [listed])]
    return presets if all(_config(one) for one in presets) else []


def _config(preset: Mapping[str, Any]) -> dict[str, Any]:
    version = mapping(preset.get("designated_version")) or preset
    config = mapping(version.get("config")) or version
    return dict(config) if config.keys() & {"model", "models"} else {}


def read_presets(found: Any) -> Translation:
    """Return presets in LiteLLM's form: `@preset/SLUG` is its first model, for which the others stand in."""
    presets = presets_of(found)
    kept = [_without_books(one) for one in presets]
    translation = Translation("OpenRouter", {"presets": kept})
    for place, preset in enumerate(presets):
        _preset(translation, preset, f"presets[{place}]")
    return translation


def _preset(found: Translation, preset: Mapping[str, Any], path: str) -> None:
    version = mapping(preset.get("designated_version"))
    at = f"{path}.designated_version" if version else path
    found.leave(version or preset, at, _OF_PRESETS)
    config = _config(preset)
    at = f"{at}.config" if "config" in (version or preset) else at
    found.leave(config, at, _OF_PRESETS)
    models = [Field(config["model"], f"{at}.model")] if isinstance(config.get("model"), str) else []
    further = config.get("models")
    models += [Field(one, f"{at}.models") for one in (further if isinstance(further, list) else []) if one]
    params = found.params(config, at)
    if mapping(config.get("provider")):
        params["extra_body"] = Field({"provider": config["provider"]}, f"{at}.provider")
    names = [f"@preset/{preset.get('slug') or preset.get('name') or 'preset'}", *(str(one.value) for one in models[1:])]
    for name, model in zip(names, models, strict=False):
        found.add(model.path, Field(name, model.path), Field(f"openrouter/{model.value}", model.path), params)
    found.chain(names[0], names[1:], f"{at}.models")


def _without_books(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_books(each) for key, each in value.items() if key not in _BOOKS}
