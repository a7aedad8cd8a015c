"""Settings from defaults, overridden by the environment (`AIO_*`), then by options; and their list for readers."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.base.configuration.default_catalog import default_catalog
from gateway.base.configuration.standard_variables import standard_settings
from gateway.base.settings import Settings, SettingsError

# Their values never appear in messages.
SECRETS = (
    "api_keys", "admin_keys", "viewer_keys",
    "alert_routing_key", "alert_webhook", "error_report_dsn", "oidc_client_secret",
)  # fmt: skip


class Setting(NamedTuple):
    """What a reader needs to know of a field of `Settings`."""

    variable: str
    """Its environment variable."""
    default: str
    """Its default as text; "" where the description says what an unset value means."""
    description: str


def variable_of(field: str) -> str:
    """Return the environment variable of a settings field."""
    return f"AIO_{field.upper()}"


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"]
    return schemas


def _settings_described() -> dict[str, Setting]:
    return {
        field: Setting(variable_of(field), _text(schema["default"]), schema["description"])
        for field, schema in _schemas().items()
    }


def _text(default: object) -> str:
    return default if isinstance(default, str) else "" if default is None else msgspec.json.encode(default).decode()


SETTINGS = _settings_described()
"""All settings by field, in the order of `Settings`."""


def load_settings(environment: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings from `environment` (default: the process's), then `overrides` that are not None. OpenTelemetry's
    variables count where AIO has none set (`standard_variables`).

    Raises `SettingsError` naming the variable. Keys never appear in a message.
    """
    environment = os.environ if environment is None else environment
    given = {
        name: environment[variable_of(name)] for name in Settings.__struct_fields__ if variable_of(name) in environment
    }
    given = (
        standard_settings(environment, given.keys())
        | given
        | {name: value for name, value in overrides.items() if value is not None}
    )
    given["catalog"] = given.get("catalog") or default_catalog(environment).catalog
    settings = Settings()
    for name, value in given.items():
        settings = _with_field(settings, name, value)
    return settings


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables, for processes of other roles: all but the role itself."""
    values = msgspec.to_builtins(settings)
    return {
        variable_of(name): value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in values.items()
        if name != "role"
    }


def _with_field(settings: Settings, name: str, value: object) -> Settings:
    fields = msgspec.to_builtins(settings) | {name: value}
    try:
        return msgspec.convert(fields, Settings, strict=False)
    except msgspec.ValidationError as error:
        shown = "" if name in SECRETS else f" {value!r}"
        known = _schemas()[name].get("enum")
        why = f"it is one of {', '.join(map(str, known))}" if known else error
        raise SettingsError(f"{variable_of(name)} (or the option of that name): value{shown} refused: {why}") from None
