"""Portkey's configs and Bifrost's config.json; and the file of another gateway, whichever it is."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.operations.setup.found_tiers import SetupError
from gateway.operations.setup.other_gateways.account import Account, Fields, below, listed, mapping, tables
from gateway.operations.setup.other_gateways.litellm import read_litellm
from gateway.operations.setup.other_gateways.migrate import Fallback, Migration, Source, migrated
from gateway.operations.setup.other_gateways.models import Entry
from inference_core.io.files import read_text_file
from tiers.catalog.tier_spec import MAX_TIERS

_PORTKEY = {"targets", "options", "strategy", "virtual_key", "virtualKey", "api_key", "override_params"}
_BARE_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*_(KEY|TOKEN)")
_CONDITIONS = "AIO's [[rules]] say who may use which tiers (routing.md); every target answers by its name"
_INSTEAD = "write each model as --tier NAME=PROVIDER:MODEL, or as an entry of a LiteLLM config.yaml"


def migrated_file(path: Path, environ: Mapping[str, str], max_tiers: int = MAX_TIERS) -> Migration:
    """Return the migration of LiteLLM's config.yaml, or of Portkey's or Bifrost's JSON, as the content tells. Raises
    `SetupError`, also for files of gateways that AIO does not read."""
    account = Account()
    if path.suffix == ".toml":
        raise SetupError(f"{path}: AIO does not read tensorzero.toml or any other gateway's TOML: {_INSTEAD}")
    if path.suffix != ".json":
        return migrated(read_litellm(path, account), account, environ, max_tiers)
    try:
        text = read_text_file(path)
        document = mapping(json.loads(text))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if isinstance(document.get("providers"), dict):
        source = read_bifrost(document, account)
    elif document.keys() & _PORTKEY:
        source = read_portkey(document, account)
    elif '"designated_version"' in text or "presets" in document:
        raise SetupError(f"{path}: AIO does not read OpenRouter's presets: {_INSTEAD}")
    else:
        raise SetupError(f"{path} is no config of Portkey or Bifrost")
    return migrated(source, account, environ, max_tiers)


def read_portkey(document: Mapping[str, Any], account: Account) -> Source:
    """Return what a config says: each target with a model is an entry; balanced ones share a name."""
    source = Source(gateway="Portkey", document=document)
    _add_target(source, account, document, "", {}, None)
    return source


def _add_target(
    source: Source, account: Account, node: Mapping[str, Any], path: str, above: Mapping[str, Any], shared: str | None
) -> list[str]:
    """Add a target and those in it; return its names, first the one to ask first. `above`: what it inherits; `shared`:
    the name of those that it is balanced with."""
    rows = tables()["portkey"]
    source.settings.read(node, path, rows["settings"], account)
    account.leave_rows(node, path, rows["not_carried"])
    field = next((name for name in ("targets", "options") if isinstance(node.get(name), list)), None)
    if field is None:
        return _add_leaf(source, account, node, path, above, shared)
    timeout = Fields()
    timeout.read(node, path, {"request_timeout": rows["target"]["request_timeout"]}, account)
    mode = mapping(node.get("strategy")).get("mode", node.get("mode"))
    names: list[str] = []
    for index, target in enumerate(node[field]):
        balanced = names[0] if mode == "loadbalance" and names else shared
        at = below(path, f"{field}[{index}]")
        names += _add_target(source, account, mapping(target), at, {**above, **timeout}, balanced)
    where = below(path, "strategy.mode" if "strategy" in node else "mode")
    others = [name for name in dict.fromkeys(names) if name != names[0]]
    if mode == "fallback" and others:
        source.fallbacks.append(Fallback(names[0], others, where))
    elif mode == "loadbalance":
        account.carry(where, "requests to one model are balanced over its keys and servers; different models stand in")
    elif mode is not None:
        account.leave(where, _CONDITIONS if mode == "conditional" else "there is nothing to choose")
    return names


def _add_leaf(
    source: Source, account: Account, node: Mapping[str, Any], path: str, above: Mapping[str, Any], shared: str | None
) -> list[str]:
    fields, model, where = Fields(), "", path
    fields.update(above)
    rows = tables()["params"] | {"model": "server.model"}
    for section in ("default_params", "override_params"):
        fields.read(mapping(node.get(section)), below(path, section), rows, account)
        where = below(path, f"{section}.model") if "model" in mapping(node.get(section)) else where
    slug, model = node.get("provider"), str(fields.get("server.model") or "")
    if model.startswith("@"):
        slug, _, model = model.partition("/")
    fields.read(node, path, tables()["portkey"]["target"], account)
    if _BARE_VARIABLE.fullmatch(fields.get("key", "")):
        fields["key"] = f"${fields['key']}"
    slugs = (slug, node.get("virtual_key"), node.get("virtualKey"))
    provider = next((name for text in slugs if (name := _provider(text))), "")
    if not provider:
        named = next((text for text in slugs if text), "its fields")
        account.leave(path or "provider", f"its provider is not known by {named}")
        return []
    deployment = node.get("deployment_id") or node.get("azure_deployment_id")
    if provider == "azure" and isinstance(deployment, str):
        account.carry(below(path, "deployment_id" if "deployment_id" in node else "azure_deployment_id"), "its model")
        fields["server.model"] = deployment
    else:
        fields["server.model"] = model or f"{provider}/*"
    fields["server.provider"] = provider
    name = shared or node.get("name") or model or f"{provider}/*"
    source.entries.append(Entry(str(name), fields, path or "provider", where or "provider"))
    return [str(name)] if model else []


def _provider(text: object) -> str:
    """Return LiteLLM's name of a provider that Portkey names, or whose key a slug such as `@openai-prod` is."""
    if not isinstance(text, str):
        return ""
    slug = text.removeprefix("@").lower()
    names_by_slug = {name.replace("_", "-"): name for name in tables()["servers"]} | tables()["portkey"]["providers"]
    fitting = [name for name in names_by_slug if re.match(rf"{re.escape(name)}(?![a-z])", slug)]
    return str(names_by_slug[max(fitting, key=len)]) if fitting else ""


def read_bifrost(document: Mapping[str, Any], account: Account) -> Source:
    """Return what a config.json says: each model of each key is an entry `provider/model`."""
    source, rows = Source(gateway="Bifrost", document=document), tables()["bifrost"]
    source.settings.read(document, "", rows["settings"], account)
    account.leave_rows(document, "", rows["not_carried"])
    for name, provider in mapping(document.get("providers")).items():
        path, values = f"providers.{name}", _plain(mapping(provider))
        account.leave_rows(values, path, rows["not_carried"])
        for index, key in enumerate(map(mapping, listed(values.get("keys")))):
            _add_key(source, account, str(name), values, key, f"{path}.keys[{index}]")
    return source


def _add_key(
    source: Source, account: Account, name: str, provider: Mapping[str, Any], key: Mapping[str, Any], path: str
) -> None:
    if key.get("enabled") is False:
        account.leave(path, "it is disabled")
        return
    rows, common = tables()["bifrost"], Fields()
    common.read(provider, f"providers.{name}", rows["provider"], account)
    common.read(key, path, rows["key"], account)
    account.leave_rows(key, path, rows["not_carried"])
    kind = str(mapping(provider.get("custom_provider_config")).get("base_provider_type") or name)
    kind = rows["providers"].get(kind, kind)
    url = str(common.get("server.url", "")).rstrip("/")
    if urlsplit(url).netloc and not urlsplit(url).path and kind not in ("anthropic", "azure", "bedrock", "gemini"):
        common["server.url"] = f"{url}/v1"
    section = next((field for field in key if str(field).endswith("_key_config")), "")
    deployments = {**mapping(mapping(key.get(section)).get("deployments")), **mapping(key.get("aliases"))}
    models = [model for model in listed(key.get("models")) if isinstance(model, str)] or ["*"]
    for model in ([*deployments] or ["*"]) if "*" in models else models:
        fields = Fields()
        fields.update({**common, "server.provider": kind})
        fields.paths = common.paths
        fields["server.model"] = f"{kind}/*" if model == "*" else str(deployments.get(model, model))
        source.entries.append(Entry(f"{name}/{model}", fields, path, f"{path}.models" if "models" in key else path))
    for table in (f"{section}.deployments", "aliases"):
        if deployments:
            account.carry(f"{path}.{table}", "the models that the server is asked for")


def _plain(value: Any) -> Any:
    """Return values without Bifrost's objects of a text or of a variable's name."""
    if isinstance(value, dict):
        if value and value.keys() <= {"value", "env_var", "from_env"}:
            return value.get("env_var") or value.get("value")
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
