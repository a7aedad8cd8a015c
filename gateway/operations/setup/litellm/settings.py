"""LiteLLM's router_settings, litellm_settings and general_settings as AIO's settings, and why others become none."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.base.settings import SettingsError
from gateway.operations.setup.litellm.config_file import Account, mapping, number, variable_of
from gateway.tenancy.keys.key_secrets import given_secret

_NO_LISTS = "a chain is tried whatever the failure, and each target once (remote-tiers.md#fallback-chains)"
_CALLBACKS = "AIO's own are /metrics, traces by OpenTelemetry, alerts and the ledger (observability.md)"
_OF_DATABASE = "keys, teams and budgets are declared in a file for `aio keys apply` (keys.md)"
_OWN_DATABASE = (
    "LiteLLM's migrations own that database: give AIO one of its own in AIO_DATABASE_URL. LiteLLM's keys, teams and "
    "budgets are not in this file; declare them for `aio keys apply` (keys.md)"
)
WHY = {
    "router_settings.content_policy_fallbacks": _NO_LISTS,
    "router_settings.routing_strategy": "between replicas AIO takes the one with the prompt's beginning in its cache, "
    "else the better of two; between models it routes by quality and cost",
    "router_settings.enable_pre_call_checks": "of itself `auto` rules out tiers whose context is too short",
    "router_settings.max_fallbacks": _NO_LISTS,
    "litellm_settings.content_policy_fallbacks": _NO_LISTS,
    "litellm_settings.max_budget": f"AIO bounds keys and teams, not the whole gateway: {_OF_DATABASE}",
    "litellm_settings.budget_duration": f"AIO bounds keys and teams, not the whole gateway: {_OF_DATABASE}",
    "litellm_settings.default_internal_user_params": _OF_DATABASE,
    "litellm_settings.default_team_settings": _OF_DATABASE,
    "litellm_settings.guardrails": "declare AIO's own as [[guardrails]] of the catalogue (privacy.md#guardrails)",
    "guardrails": "declare AIO's own as [[guardrails]] of the catalogue (privacy.md#guardrails)",
    "mcp_servers": "AIO runs no MCP servers; clients and providers do",
    "general_settings.database_url": _OWN_DATABASE,
    "general_settings.store_model_in_db": "AIO's models are in its catalogue; `aio reload` reads it again",
    "general_settings.max_parallel_requests": "AIO bounds requests in flight per key (`concurrency`) and in all",
    "general_settings.alerting": "AIO has Slack, Teams, e-mail and PagerDuty: AIO_ALERT_… (observability.md#alerts)",
    "general_settings.background_health_checks": "AIO asks the servers of its tiers of itself",
    "general_settings.health_check_interval": "AIO asks the servers of its tiers of itself",
    "general_settings.custom_auth": "AIO's keys are its own or those of a file (keys.md)",
    "environment_variables": "set them in AIO's own environment",
    "files_settings": "AIO keeps files and batches itself (batches.md)",
    "finetune_settings": "AIO trains adapters itself, and passes no fine-tuning on",
}
_TELEMETRY = {
    "prometheus": "/metrics is always there",
    "otel": "AIO_TRACE_EXPORTER=otlp; OTEL_EXPORTER_OTLP_… say where",
}
_NOT_WRITTEN = "a password in the file is not written: set AIO_REDIS_URL to redis://:PASSWORD@HOST:PORT"


class Carried(msgspec.Struct):
    """Lines of a shell's file, commands for a gateway, and all entries' time limits (seconds) and balancing."""

    environment: dict[str, str] = msgspec.field(default_factory=dict)
    commands: list[str] = msgspec.field(default_factory=list)
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    balancing: dict[str, Any] = msgspec.field(default_factory=dict)
    aliases: dict[str, str] = msgspec.field(default_factory=dict)


def settings_of(config: Mapping[str, Any], environ: Mapping[str, str], account: Account) -> Carried:
    """Return what can be carried over of all sections but the model_list."""
    found = Carried()
    router, module, general = (
        mapping(config.get(name)) for name in ("router_settings", "litellm_settings", "general_settings")
    )
    _timeouts(router, module, found, account)
    _retries(router, module, found, account)
    _aliases(router, module, found, account)
    _cache(module, found, account)
    _redis(config, found, account)
    _logs(module, general, found, account)
    _master_key(general, environ, found, account)
    _bounds(general, found, account)
    if isinstance(drop := module.get("drop_params"), bool):
        found.environment["AIO_STRICT_FIELDS"] = "false" if drop else "true"
        account.carry("litellm_settings.drop_params", f"AIO_STRICT_FIELDS={'false' if drop else 'true'}")
    for path, why in WHY.items():
        section, _, name = path.partition(".")
        value = mapping(config.get(section)).get(name) if name else config.get(section)
        if value is not None and path not in account.carried:
            account.leave(path, why)
    return found


def _timeouts(router: dict[str, Any], module: dict[str, Any], found: Carried, account: Account) -> None:
    for values, path, field in (
        (module, "litellm_settings.request_timeout", "total_timeout_seconds"),
        (router, "router_settings.timeout", "total_timeout_seconds"),
        (router, "router_settings.stream_timeout", "read_timeout_seconds"),
    ):
        if (seconds := number(values.get(path.partition(".")[2]))) is not None:
            found.limits[field] = seconds
            account.carry(path, f"{field} of entries without their own")


def _retries(router: dict[str, Any], module: dict[str, Any], found: Carried, account: Account) -> None:
    """Note what concerns replicas; `without_replicas` takes it back where no tier has any."""
    for values, section in ((module, "litellm_settings"), (router, "router_settings")):
        if (retries := number(values.get("num_retries"))) is not None:
            found.balancing["max_attempts"] = min(16, int(retries) + 1)
            account.carry(f"{section}.num_retries", "balancing.max_attempts of tiers with replicas: one more")
    if (fails := number(router.get("allowed_fails"))) is not None:
        found.balancing["consecutive_failures"] = min(1000, int(fails) + 1)
        account.carry("router_settings.allowed_fails", "balancing.consecutive_failures of replicas: one more")
    if (seconds := number(router.get("cooldown_time"))) is not None:
        found.balancing |= {"ejection_seconds": min(seconds, 3600.0), "max_ejection_seconds": max(seconds, 300.0)}
        account.carry("router_settings.cooldown_time", "balancing.ejection_seconds of replicas")


def without_replicas(account: Account) -> None:
    """Say that settings of replicas became nothing, as no tier has any."""
    for path in (
        "litellm_settings.num_retries", "router_settings.num_retries", "router_settings.allowed_fails",
        "router_settings.cooldown_time",
    ):  # fmt: skip
        if account.carried.pop(path, None) is not None:
            account.leave(path, "it concerns replicas, and no model has several servers")


def _aliases(router: dict[str, Any], module: dict[str, Any], found: Carried, account: Account) -> None:
    for values, section, name in (
        (router, "router_settings", "model_group_alias"),
        (module, "litellm_settings", "model_alias_map"),
    ):
        for alias, target in mapping(values.get(name)).items():
            model = target.get("model") if isinstance(target, dict) else target
            if isinstance(model, str):
                found.aliases[str(alias)] = model
                account.carry(f"{section}.{name}.{alias}", f"alias of {model}")


def _cache(module: dict[str, Any], found: Carried, account: Account) -> None:
    params = mapping(module.get("cache_params"))
    if module.get("cache") is False:
        found.commands.append("aio knobs cache enabled=false")
        account.carry("litellm_settings.cache", "the knob enabled of the cache")
    elif module.get("cache") is True:
        text = "on by default, for requests of temperature 0 or with a seed (answers.md)"
        account.carry("litellm_settings.cache", text)
    if params.get("type") in ("local", "redis"):
        account.carry("litellm_settings.cache_params.type", "in Redis if AIO_REDIS_URL is set, else in memory")
    elif "type" in params:
        account.leave("litellm_settings.cache_params.type", "AIO caches in memory or in Redis")
    if (seconds := number(params.get("ttl"))) is not None:
        found.commands.append(f"aio knobs cache ttl_seconds={min(seconds, 86_400):g}")
        account.carry("litellm_settings.cache_params.ttl", "the knob ttl_seconds of the cache")
    if params.get("mode") == "default_off":
        account.leave("litellm_settings.cache_params.mode", "`x-aio-cache: off` of a request does without the cache")


def _redis(config: Mapping[str, Any], found: Carried, account: Account) -> None:
    """Take the first Redis that the file names."""
    router, module = mapping(config.get("router_settings")), mapping(config.get("litellm_settings"))
    params = mapping(module.get("cache_params"))
    for values, section, start in (
        (router, "router_settings", "redis_"),
        (params if params.get("type", "redis") == "redis" else {}, "litellm_settings.cache_params", ""),
    ):
        names = [name for name in ("url", "host", "port", "username", "password") if f"{start}{name}" in values]
        if not {"url", "host"} & {*names}:
            continue
        paths = {name: f"{section}.{start}{name}" for name in names}
        parts = {name: str(values[f"{start}{name}"]) for name in names}
        literal = {name for name, text in parts.items() if variable_of(text) is None}
        if "password" in literal or ("url" in literal and "@" in parts["url"]):
            for path in paths.values():
                account.leave(path, _NOT_WRITTEN)
            continue
        shell = {name: _shell(text) for name, text in parts.items()}
        user = shell.get("username", "") + (f":{shell['password']}" if "password" in shell else "")
        address = f"{user and user + '@'}{shell.get('host', '')}:{shell.get('port', '6379')}"
        found.environment.setdefault("AIO_REDIS_URL", shell.get("url") or f"redis://{address}")
        for path in paths.values():
            account.carry(path, "AIO_REDIS_URL")


def _logs(module: dict[str, Any], general: dict[str, Any], found: Carried, account: Account) -> None:
    if module.get("json_logs") is True:
        found.environment["AIO_LOG_FORMAT"] = "json"
        account.carry("litellm_settings.json_logs", "AIO_LOG_FORMAT=json")
    if module.get("set_verbose") is True:
        found.environment["AIO_LOG_LEVEL"] = "debug"
        account.carry("litellm_settings.set_verbose", "AIO_LOG_LEVEL=debug")
    if module.get("turn_off_message_logging") is True:
        found.environment["AIO_STORE_TEXTS"] = "false"
        account.carry("litellm_settings.turn_off_message_logging", "AIO_STORE_TEXTS=false")
    if isinstance(store := general.get("store_prompts_in_spend_logs"), bool):
        found.environment.setdefault("AIO_STORE_TEXTS", "true" if store else "false")
        account.carry("general_settings.store_prompts_in_spend_logs", "AIO_STORE_TEXTS")
    for field in ("success_callback", "failure_callback", "callbacks", "service_callbacks"):
        names = [str(name) for name in names] if isinstance(names := module.get(field), list) else []
        path = f"litellm_settings.{field}"
        if others := [name for name in names if name not in _TELEMETRY]:
            account.leave(path, f"{', '.join(others)}: {_CALLBACKS}")
        for name in names:
            if name in _TELEMETRY:
                account.carry(f"{path} ({name})" if others else path, _TELEMETRY[name])
        if "otel" in names:
            found.environment["AIO_TRACE_EXPORTER"] = "otlp"


def _master_key(general: dict[str, Any], environ: Mapping[str, str], found: Carried, account: Account) -> None:
    key, path = general.get("master_key"), "general_settings.master_key"
    if not isinstance(key, str):
        return
    variable = variable_of(key)
    secret = key if variable is None else environ.get(variable, "").strip()
    entry = f"${{{variable}}}"
    if secret:
        try:
            made = given_secret("master", secret, "it")
        except SettingsError as error:
            account.leave(path, str(error))
            return
        entry = f"sha256:{made.digest.hex()}" if variable is None else entry
    for name in ("AIO_API_KEYS", "AIO_ADMIN_KEYS"):
        found.environment[name] = f"master={entry}"
    account.carry(path, "AIO_API_KEYS and AIO_ADMIN_KEYS, by its SHA-256" if variable is None else
                  f"AIO_API_KEYS and AIO_ADMIN_KEYS, from {variable}, which needs 128 bits of entropy")  # fmt: skip


def _bounds(general: dict[str, Any], found: Carried, account: Account) -> None:
    if (most := number(general.get("global_max_parallel_requests"))) is not None:
        found.environment["AIO_MAX_IN_FLIGHT"] = str(max(1, int(most)))
        account.carry("general_settings.global_max_parallel_requests", "AIO_MAX_IN_FLIGHT")
    if (megabytes := number(general.get("max_request_size_mb"))) is not None:
        found.environment["AIO_BODY_LIMIT"] = str(int(megabytes * 2**20))
        account.carry("general_settings.max_request_size_mb", "AIO_BODY_LIMIT")
    if general.get("allow_requests_on_db_unavailable") is True:
        found.environment["AIO_BUDGETS_WITHOUT_DATABASE"] = "open"
        account.carry("general_settings.allow_requests_on_db_unavailable", "AIO_BUDGETS_WITHOUT_DATABASE=open")
    period = re.fullmatch(r"(\d+)d", str(general.get("maximum_spend_logs_retention_period")))
    if period is not None and int(period[1]) > 0:
        found.environment["AIO_RETAIN_DAYS"] = period[1]
        account.carry("general_settings.maximum_spend_logs_retention_period", "AIO_RETAIN_DAYS")


def _shell(text: str) -> str:
    variable = variable_of(text)
    return text if variable is None else f"${{{variable}}}"
