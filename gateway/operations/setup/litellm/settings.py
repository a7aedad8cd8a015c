"""LiteLLM's router_settings, litellm_settings and general_settings as AIO's settings, and why others become none."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.base.settings import SettingsError
from gateway.operations.setup.litellm.config_file import Account, Section, mapping, variable_of
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
    "general_settings.alerting": "AIO has Slack, Teams, e-mail and others: AIO_ALERT_URLS (observability.md#alerts)",
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
# Switches that become settings, by their value; of two the first holds.
_SWITCHES: tuple[tuple[str, str, str, dict[bool, str]], ...] = (
    ("litellm_settings", "json_logs", "AIO_LOG_FORMAT", {True: "json"}),
    ("litellm_settings", "set_verbose", "AIO_LOG_LEVEL", {True: "debug"}),
    ("litellm_settings", "turn_off_message_logging", "AIO_STORE_TEXTS", {True: "false"}),
    ("general_settings", "store_prompts_in_spend_logs", "AIO_STORE_TEXTS", {True: "true", False: "false"}),
    ("general_settings", "allow_requests_on_db_unavailable", "AIO_BUDGETS_WITHOUT_DATABASE", {True: "open"}),
    ("litellm_settings", "drop_params", "AIO_STRICT_FIELDS", {True: "false", False: "true"}),
)
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
    found, whole = Carried(), Section("", config, account)
    router, module, general = map(whole.section, ("router_settings", "litellm_settings", "general_settings"))
    _timeouts(router, module, found)
    _retries(router, module, found)
    _aliases(router, module, found)
    _cache(module, found)
    _redis(router, module, found)
    _callbacks(module, found)
    _master_key(general, environ, found)
    _bounds(general, found)
    for name, field, variable, values in _SWITCHES:
        section = whole.section(name)
        if isinstance(value := section.get(field), bool) and value in values:
            found.environment.setdefault(variable, values[value])
            section.carry(field, f"{variable}={found.environment[variable]}")
    for path, why in WHY.items():
        top, _, name = path.partition(".")
        value = mapping(config.get(top)).get(name) if name else config.get(top)
        if value is not None and path not in account.carried:
            account.leave(path, why)
    return found


def _timeouts(router: Section, module: Section, found: Carried) -> None:
    for section, name, field in (
        (module, "request_timeout", "total_timeout_seconds"),
        (router, "timeout", "total_timeout_seconds"),
        (router, "stream_timeout", "read_timeout_seconds"),
    ):
        if (seconds := section.number(name, f"{field} of entries without their own")) is not None:
            found.limits[field] = seconds


def _retries(router: Section, module: Section, found: Carried) -> None:
    """Note what concerns replicas; `without_replicas` takes it back where no tier has any."""
    said = "balancing.{} of {}replicas: one more"
    for section in (module, router):
        if (retries := section.number("num_retries", said.format("max_attempts", "tiers with "))) is not None:
            found.balancing["max_attempts"] = min(16, int(retries) + 1)
    if (fails := router.number("allowed_fails", said.format("consecutive_failures", ""))) is not None:
        found.balancing["consecutive_failures"] = min(1000, int(fails) + 1)
    if (seconds := router.number("cooldown_time", "balancing.ejection_seconds of replicas")) is not None:
        found.balancing |= {"ejection_seconds": min(seconds, 3600.0), "max_ejection_seconds": max(seconds, 300.0)}


def without_replicas(account: Account) -> None:
    """Say that settings of replicas became nothing, as no tier has any."""
    for path in (
        "litellm_settings.num_retries", "router_settings.num_retries", "router_settings.allowed_fails",
        "router_settings.cooldown_time",
    ):  # fmt: skip
        if account.carried.pop(path, None) is not None:
            account.leave(path, "it concerns replicas, and no model has several servers")


def _aliases(router: Section, module: Section, found: Carried) -> None:
    for section in (router.section("model_group_alias"), module.section("model_alias_map")):
        for alias, target in section.values.items():
            model = target.get("model") if isinstance(target, dict) else target
            if isinstance(model, str):
                found.aliases[str(alias)] = model
                section.carry(str(alias), f"alias of {model}")


def _cache(module: Section, found: Carried) -> None:
    params = module.section("cache_params")
    if module.get("cache") is False:
        found.commands.append("aio knobs cache enabled=false")
        module.carry("cache", "the knob enabled of the cache")
    elif module.get("cache") is True:
        module.carry("cache", "on by default, for requests of temperature 0 or with a seed (answers.md)")
    if params.get("type") in ("local", "redis"):
        params.carry("type", "in Redis if AIO_REDIS_URL is set, else in memory")
    elif "type" in params.values:
        params.leave("type", "AIO caches in memory or in Redis")
    if (seconds := params.number("ttl", "the knob ttl_seconds of the cache")) is not None:
        found.commands.append(f"aio knobs cache ttl_seconds={min(seconds, 86_400):g}")
    if params.get("mode") == "default_off":
        params.leave("mode", "`x-aio-cache: off` of a request does without the cache")


def _redis(router: Section, module: Section, found: Carried) -> None:
    """Take the first Redis that the file names."""
    cache = module.section("cache_params")
    for section, start in ((router, "redis_"), (cache, "")):
        fields = {one: f"{start}{one}" for one in ("url", "host", "port", "username", "password")}
        parts = {one: str(section.get(field)) for one, field in fields.items() if field in section.values}
        if not {"url", "host"} & parts.keys() or (section is cache and cache.get("type") not in (None, "redis")):
            continue
        literal = {one for one, text in parts.items() if variable_of(text) is None}
        if "password" in literal or ("url" in literal and "@" in parts["url"]):
            for one in parts:
                section.leave(fields[one], _NOT_WRITTEN)
            continue
        shell = {one: _shell(text) for one, text in parts.items()}
        user = shell.get("username", "") + (f":{shell['password']}" if "password" in shell else "")
        address = f"{user and user + '@'}{shell.get('host', '')}:{shell.get('port', '6379')}"
        found.environment.setdefault("AIO_REDIS_URL", shell.get("url") or f"redis://{address}")
        for one in parts:
            section.carry(fields[one], "AIO_REDIS_URL")


def _callbacks(module: Section, found: Carried) -> None:
    for field in ("success_callback", "failure_callback", "callbacks", "service_callbacks"):
        names = [str(name) for name in names] if isinstance(names := module.get(field), list) else []
        if others := [name for name in names if name not in _TELEMETRY]:
            module.leave(field, f"{', '.join(others)}: {_CALLBACKS}")
        for name in names:
            if name in _TELEMETRY:
                module.carry(f"{field} ({name})" if others else field, _TELEMETRY[name])
        if "otel" in names:
            found.environment["AIO_TRACE_EXPORTER"] = "otlp"


def _master_key(general: Section, environ: Mapping[str, str], found: Carried) -> None:
    key = general.get("master_key")
    if not isinstance(key, str):
        return
    variable = variable_of(key)
    secret = key if variable is None else environ.get(variable, "").strip()
    entry = f"${{{variable}}}"
    if secret:
        try:
            made = given_secret("master", secret, "it")
        except SettingsError as error:
            general.leave("master_key", str(error))
            return
        entry = f"sha256:{made.digest.hex()}" if variable is None else entry
    for name in ("AIO_API_KEYS", "AIO_ADMIN_KEYS"):
        found.environment[name] = f"master={entry}"
    how = "by its SHA-256" if variable is None else f"from {variable}, which needs 128 bits of entropy"
    general.carry("master_key", f"AIO_API_KEYS and AIO_ADMIN_KEYS, {how}")


def _bounds(general: Section, found: Carried) -> None:
    if (most := general.number("global_max_parallel_requests", "AIO_MAX_IN_FLIGHT")) is not None:
        found.environment["AIO_MAX_IN_FLIGHT"] = str(max(1, int(most)))
    if (megabytes := general.number("max_request_size_mb", "AIO_BODY_LIMIT")) is not None:
        found.environment["AIO_BODY_LIMIT"] = str(int(megabytes * 2**20))
    period = re.fullmatch(r"(\d+)d", str(general.get("maximum_spend_logs_retention_period")))
    if period is not None and int(period[1]) > 0:
        found.environment["AIO_RETAIN_DAYS"] = period[1]
        general.carry("maximum_spend_logs_retention_period", "AIO_RETAIN_DAYS")


def _shell(text: str) -> str:
    variable = variable_of(text)
    return text if variable is None else f"${{{variable}}}"
