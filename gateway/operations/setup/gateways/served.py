"""Gateways that users run: Bifrost's config.json and TensorZero's tensorzero.toml.

References: https://docs.getbifrost.ai/quickstart/gateway/provider-configuration,
https://www.tensorzero.com/docs/gateway/configuration-reference, read in November 2026.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.operations.setup.gateways.translation import Field, Translation, variable
from gateway.operations.setup.litellm.config_file import mapping

_BIFROST_NAMES = {
    "vertex": "vertex_ai", "fireworks": "fireworks_ai", "sgl": "openai", "nebius": "nebius", "together": "together_ai",
}  # fmt: skip
_OF_OPENAI = ("openai", "hosted_vllm", "mistral", "groq", "xai", "cerebras", "openrouter", "perplexity", "deepseek")
_OF_DATABASE = "keys, teams and budgets are declared in a file for `aio keys apply` (keys.md)"
_OF_BIFROST = {
    "governance": _OF_DATABASE,
    "auth_config": _OF_DATABASE,
    "mcp": "AIO runs no MCP servers; clients and providers do",
    "plugins": "AIO loads no plug-ins: see [[guardrails]] (privacy.md) and traces (observability.md)",
    "config_store": "AIO has a database of its own: AIO_DATABASE_URL",
    "logs_store": "AIO has a database of its own: AIO_DATABASE_URL",
    "vector_store": "AIO finds similar prompts in memory or Redis: AIO_REDIS_URL (answers.md)",
    "$schema": "it describes the file",
}
_OF_KEYS = {"name": "AIO names keys by their variables", "id": "AIO names keys by their variables"}
_OF_NETWORK = {
    "retry_backoff_initial": "AIO asks another replica or stand-in at once",
    "retry_backoff_max": "AIO asks another replica or stand-in at once",
    "retry_backoff_initial_ms": "AIO asks another replica or stand-in at once",
    "retry_backoff_max_ms": "AIO asks another replica or stand-in at once",
}


def read_bifrost(document: Mapping[str, Any]) -> Translation:
    """Return a config.json in LiteLLM's form: each model of each key is an entry `provider/model`."""
    found = Translation("Bifrost", document)
    client = mapping(document.get("client"))
    if client.get("disable_content_logging") is True:
        found.set("litellm_settings", "turn_off_message_logging", Field(True, "client.disable_content_logging"))
    most = Field(client.get("max_request_body_size_mb"), "client.max_request_body_size_mb")
    found.set("general_settings", "max_request_size_mb", most)
    found.leave(document, "", _OF_BIFROST)
    for name, provider in mapping(document.get("providers")).items():
        path, values = f"providers.{name}", mapping(provider)
        found.leave(mapping(values.get("network_config")), f"{path}.network_config", _OF_NETWORK)
        listed = values.get("keys")
        for place, key in enumerate(listed if isinstance(listed, list) else []):
            _key(found, str(name), values, mapping(key), f"{path}.keys[{place}]")
    return found


def _key(found: Translation, name: str, provider: Mapping[str, Any], key: Mapping[str, Any], path: str) -> None:
    if key.get("enabled") is False:
        found.left[path] = "it is disabled"
        return
    found.leave(key, path, _OF_KEYS)
    kind = str(mapping(provider.get("custom_provider_config")).get("base_provider_type") or name)
    kind = _BIFROST_NAMES.get(kind, "hosted_vllm" if kind == "vllm" else kind)
    section = next((one for one in key if one.endswith("_key_config")), "")
    own, names = mapping(key.get(section)), {**mapping(mapping(key.get(section)).get("deployments"))}
    names |= {alias: one for alias, one in mapping(key.get("aliases")).items() if isinstance(one, str)}
    models = _texts(key.get("models")) or ["*"]
    if "*" in models:
        models = [*names] or ["*"]
    params = _params(provider, key, own, f"providers.{name}", path, section)
    if (url := params.get("api_base")) and kind in _OF_OPENAI and isinstance(url.value, str) and "://" in url.value:
        base = url.value.rstrip("/")
        params["api_base"] = url._replace(value=base if urlsplit(base).path else f"{base}/v1")
    where = f"{path}.models" if key.get("models") else path
    for model in models:
        asked = str(names.get(model, model)).removeprefix("google/" if kind == "vertex_ai" else "")
        found.add(path, Field(f"{name}/{model}", where), Field(f"{kind}/{asked}", where), params)
    for table, values in (
        (f"{path}.{section}.deployments", own.get("deployments")),
        (f"{path}.aliases", key.get("aliases")),
    ):
        if values:
            found.carried[table] = "the models that the server is asked for"


def _params(
    provider: Mapping[str, Any], key: Mapping[str, Any], own: Mapping[str, Any], of_all: str, path: str, section: str
) -> dict[str, Field]:
    """Return what the entries of a key have in common."""
    network, at = mapping(provider.get("network_config")), f"{path}.{section}"
    url = next((name for name in ("endpoint", "url") if own.get(name)), None)
    base = Field(network.get("base_url"), f"{of_all}.network_config.base_url")
    return {
        "api_key": Field(_text(key.get("value")) or None, f"{path}.value"),
        "weight": Field(key.get("weight"), f"{path}.weight"),
        "api_base": base if url is None else Field(_text(own[url]), f"{at}.{url}"),
        "timeout": Field(
            network.get("default_request_timeout_in_seconds"),
            f"{of_all}.network_config.default_request_timeout_in_seconds",
        ),
        "max_retries": Field(network.get("max_retries"), f"{of_all}.network_config.max_retries"),
        "api_version": Field(own.get("api_version"), f"{at}.api_version"),
        "aws_region_name": Field(_text(own.get("region")) if "bedrock" in section else None, f"{at}.region"),
        "aws_access_key_id": Field(own.get("access_key"), f"{at}.access_key"),
        "aws_secret_access_key": Field(own.get("secret_key"), f"{at}.secret_key"),
        "vertex_project": Field(_text(own.get("project_id")), f"{at}.project_id"),
        "vertex_location": Field(_text(own.get("region")) if "vertex" in section else None, f"{at}.region"),
        "vertex_credentials": Field(_text(own.get("auth_credentials")), f"{at}.auth_credentials"),
    }


def _texts(value: object) -> list[str]:
    """Return the texts of a list; empty for anything else."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _text(value: Any) -> Any:
    """Return a value of Bifrost's, which may be `env.NAME` or an object with it."""
    given = mapping(value)
    return variable(given.get("env_var") or given.get("value") if given else value, ("env.",))


_TYPES = {
    "aws_bedrock": "bedrock", "gcp_vertex_gemini": "vertex_ai", "gcp_vertex_anthropic": "vertex_ai",
    "fireworks": "fireworks_ai", "google_ai_studio_gemini": "gemini", "sglang": "openai", "vllm": "hosted_vllm",
    "tgi": "huggingface", "together": "together_ai",
}  # fmt: skip
_TEMPLATES = "AIO has no prompt templates: clients send whole prompts"
_OF_TENSORZERO = {
    "metrics": "labels come from POST /v1/feedback and from verification (quality-loop.md)",
    "tools": "AIO adds no tools: clients send them",
    "evaluations": "AIO verifies answers while it serves (quality-loop.md)",
    "gateway": "AIO has settings of its own (`aio settings`)",
    "clickhouse": "AIO has a database of its own: AIO_DATABASE_URL",
    "postgres": "AIO has a database of its own: AIO_DATABASE_URL",
    "rate_limiting": "limits are those of keys (`aio keys limit`)",
    "optimizers": "AIO retrains its own router (quality-loop.md)",
    "object_storage": "AIO keeps files itself (batches.md)",
}
_OF_VARIANTS = {
    "system_template": _TEMPLATES,
    "user_template": _TEMPLATES,
    "assistant_template": _TEMPLATES,
    "templates": _TEMPLATES,
    "system_instructions": _TEMPLATES,
    "json_mode": "clients ask for it with `response_format`",
    "retries": "AIO asks a stand-in, not the same server again",
}
_ONE_VARIANT = "one variant answers; `aio quality experiments` compares two"
_OF_FUNCTIONS = {
    "system_schema": _TEMPLATES,
    "user_schema": _TEMPLATES,
    "assistant_schema": _TEMPLATES,
    "schemas": _TEMPLATES,
    "output_schema": "clients ask for it with `response_format`",
    "experimentation": _ONE_VARIANT,
    "tools": "AIO adds no tools: clients send them",
    "type": "a function is a name of a model here",
}
_DYNAMIC = 'clients give it with each request: `credentials = "caller"` of an entry does so (remote-tiers.md)'


def read_tensorzero(document: Mapping[str, Any]) -> Translation:
    """Return a tensorzero.toml in LiteLLM's form: each provider of a model is an entry of its name, in the order of
    `routing`; models answer to TensorZero's names too, and a function to that of its heaviest variant."""
    found = Translation("TensorZero", document)
    found.leave(document, "", _OF_TENSORZERO)
    for section in ("models", "embedding_models"):
        for name, model in mapping(document.get(section)).items():
            _model(found, str(name), mapping(model), f"{section}.{name}")
            if section == "models":
                found.alias(f"tensorzero::model_name::{name}", str(name), f"{section}.{name}.routing")
    for name, function in mapping(document.get("functions")).items():
        _function(found, str(name), mapping(function), f"functions.{name}")
    return found


def _model(found: Translation, name: str, model: Mapping[str, Any], path: str) -> None:
    providers = mapping(model.get("providers"))
    routing = _texts(model.get("routing")) or [*providers]
    for order, one in enumerate(routing, start=1):
        values, at = mapping(providers.get(one)), f"{path}.providers.{one}"
        kind = str(values.get("type", ""))
        key = next((key for key in ("model_name", "model_id", "deployment_id") if values.get(key)), "model_name")
        url = next((url for url in ("api_base", "endpoint") if values.get(url)), "api_base")
        region = values.get("region", values.get("location"))
        params = {
            "api_key": _location(found, values, at),
            "api_base": Field(variable(values.get(url), ("env::",)), f"{at}.{url}"),
            "order": Field(order if len(routing) > 1 else None, f"{path}.routing"),
            "aws_region_name": Field(region if kind == "aws_bedrock" else None, f"{at}.region"),
            "vertex_project": Field(values.get("project_id"), f"{at}.project_id"),
            "vertex_location": Field(values.get("location"), f"{at}.location"),
            **_timeouts({**mapping(model.get("timeouts")), **mapping(values.get("timeouts"))}, f"{at}.timeouts"),
        }
        found.add(
            at,
            Field(name, f"{path}.routing"),
            Field(f"{_TYPES.get(kind, kind)}/{values.get(key)}", f"{at}.{key}"),
            params,
        )
        found.carried[f"{at}.type"] = "its server"
    for at in [f"{path}.providers.{one}" for one in providers if one not in routing]:
        found.left[at] = "`routing` does not name it"


def _location(found: Translation, values: Mapping[str, Any], at: str) -> Field:
    """Return the key of a provider."""
    given, path = values.get("api_key_location"), f"{at}.api_key_location"
    if isinstance(given, dict):
        given, path = given.get("default"), f"{path}.default"
    if isinstance(given, str) and given.startswith(("dynamic::", "path::", "sdk")):
        found.left[path] = _DYNAMIC if given.startswith("dynamic") else "put the key into a variable (`api_key_env`)"
        given = None
    return Field(variable(given, ("env::",)), path)


def _timeouts(values: Mapping[str, Any], path: str) -> dict[str, Field]:
    whole, first = mapping(values.get("non_streaming")).get("total_ms"), mapping(values.get("streaming")).get("ttft_ms")
    found = {"timeout": (whole, "non_streaming.total_ms"), "stream_timeout": (first, "streaming.ttft_ms")}
    return {name: Field(one / 1e3, f"{path}.{at}") for name, (one, at) in found.items() if isinstance(one, int | float)}


def _function(found: Translation, name: str, function: Mapping[str, Any], path: str) -> None:
    variants: list[tuple[float, str]] = []
    known = {entry["model_name"] for entry in found.config["model_list"]}
    for variant, value in mapping(function.get("variants")).items():
        values, at = mapping(value), f"{path}.variants.{variant}"
        found.leave(values, at, _OF_VARIANTS)
        model = values.get("model")
        if not isinstance(model, str):
            continue
        kind, colons, asked = model.partition("::")
        if model not in known and colons:
            where = f"{at}.model"
            found.add(where, Field(model, where), Field(f"{_TYPES.get(kind, kind)}/{asked.split('::')[-1]}", where), {})
            known.add(model)
        weight = values.get("weight", 0)
        variants.append((float(weight) if isinstance(weight, int | float) else 0.0, model))
        if weight:
            found.left[f"{at}.weight"] = _ONE_VARIANT
        found.carried[f"{at}.model"] = "the model that the name of the function stands for, of the heaviest variant"
    if variants:
        found.alias(f"tensorzero::function_name::{name}", max(variants, key=lambda one: one[0])[1], f"{path}.variants")
    found.leave(function, path, _OF_FUNCTIONS)
