"""How a process gets its `Settings`: from defaults, overridden by the environment (`AIO_*`), then by options, and from
the catalogue that is there; and their list for readers.

OpenTelemetry's own variables count as the settings that mean the same
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). An empty variable is an unset
one. The rest of `OTEL_EXPORTER_OTLP_…` (headers, certificates, timeout, compression), `OTEL_SERVICE_NAME` and
`OTEL_RESOURCE_ATTRIBUTES` are read by OpenTelemetry's library where traces are made.
"""

import difflib
import os
import re
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.base.gone import GONE_VARIABLES
from gateway.base.settings import Settings, SettingsError
from inference_core.io.files import FILE_FORM, SecretError, secret_of

SERVED_CATALOG = "served.toml"  # in a data folder: a link to the file that its latest server was started with
CATALOG_FILE = "aio.toml"
"""Name of the catalogue that `aio init` writes and `aio serve` takes by default."""


class DefaultCatalog(NamedTuple):
    """The catalogue that is used where none is named, and why."""

    catalog: str
    reason: str


def default_catalog(environment: Mapping[str, str], served_from: Path | None = None) -> DefaultCatalog:
    """Return `aio.toml` in the current folder, else in `$XDG_CONFIG_HOME/aio` (`~/.config/aio`), else what the data
    folder `served_from` was served with, else `laptop`."""
    if Path(CATALOG_FILE).is_file():
        return DefaultCatalog(CATALOG_FILE, "found in this folder")
    configured = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "aio" / CATALOG_FILE
    if configured.is_file():
        return DefaultCatalog(str(configured), f"no {CATALOG_FILE} in this folder")
    if served_from is not None and (served := served_from / SERVED_CATALOG).is_file():
        return DefaultCatalog(str(served.resolve()), f"that of the gateway on {served_from}")
    return DefaultCatalog("laptop", f"the demonstration model: there is no {CATALOG_FILE}; `aio init` writes one")


def catalog_reason(settings: Settings, served_from: Path | None = None) -> str:
    """Return why the catalogue of `settings` is used. `served_from` as for `default_catalog`; a server has none."""
    default = default_catalog(os.environ, served_from)
    return default.reason if default.catalog == settings.catalog else "as named by --catalog or AIO_CATALOG"


_EXPORTERS = ("otlp", "console", "none")
_PARENT_BASED = "parentbased_"
_SAMPLERS = ("always_on", "always_off", "traceidratio")


def standard_settings(environment: Mapping[str, str], own: Set[str]) -> dict[str, str]:
    """Settings by field, as text. `own`: fields that have a variable of AIO's, which wins.

    Raises `SettingsError`.
    """
    variables = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_")}
    fields = {} if "trace_ratio" in own else _sampling(variables)
    base, traces = (variables.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT", "") for kind in ("", "TRACES_"))
    if "otlp_endpoint" not in own:
        fields |= {"otlp_endpoint": base} if base else {}
        fields |= {"otlp_traces_endpoint": traces} if traces else {}
    if "trace_exporter" not in own:
        fields |= _exporter(variables, is_known="otlp_endpoint" in own or bool(base or traces))
        if fields.get("trace_exporter") == "otlp" and "otlp_endpoint" not in own:
            _refuse_grpc(variables)
    return {name: value for name, value in fields.items() if name not in own}


def _exporter(variables: Mapping[str, str], *, is_known: bool) -> dict[str, str]:
    """Where spans go: to a collector once its address `is_known`."""
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return {"trace_exporter": "none"}
    wanted = variables.get("OTEL_TRACES_EXPORTER", "").lower()
    if not wanted:
        return {"trace_exporter": "otlp"} if is_known else {}
    if wanted not in _EXPORTERS:
        raise SettingsError(
            f"OTEL_TRACES_EXPORTER is {wanted!r}; allowed are {', '.join(_EXPORTERS)}. AIO_TRACE_EXPORTER overrides it"
        )
    return {"trace_exporter": wanted}


def _sampling(variables: Mapping[str, str]) -> dict[str, str]:
    wanted = variables.get("OTEL_TRACES_SAMPLER", "").lower()
    if not wanted:
        return {}
    sampler = wanted.removeprefix(_PARENT_BASED)
    if sampler not in _SAMPLERS:
        allowed = ", ".join([*_SAMPLERS, *(_PARENT_BASED + name for name in _SAMPLERS)])
        raise SettingsError(f"OTEL_TRACES_SAMPLER is {wanted!r}; allowed are {allowed}. AIO_TRACE_RATIO overrides it")
    ratio = {"always_on": "1", "always_off": "0"}.get(sampler) or _ratio(
        variables.get("OTEL_TRACES_SAMPLER_ARG", "") or "1"
    )
    return {"trace_ratio": ratio, "trace_parent_based": "true" if wanted != sampler else "false"}


def _ratio(ratio: str) -> str:
    try:
        is_share = 0 <= float(ratio) <= 1
    except ValueError:
        is_share = False
    if not is_share:
        raise SettingsError(f"OTEL_TRACES_SAMPLER_ARG is {ratio!r}; it must be a number from 0 to 1")
    return ratio


def _refuse_grpc(variables: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = variables.get(name, "").lower()
        if protocol == "grpc":
            raise SettingsError(
                f"{name} is 'grpc'; traces are sent as http/protobuf, which collectors take on port 4318. Set "
                "AIO_OTLP_ENDPOINT to that address, or AIO_TRACE_EXPORTER=none"
            )
        if protocol:
            return


# Their values never appear in messages.
SECRETS = (
    "api_keys", "admin_keys", "viewer_keys",
    "alert_urls",
    "oidc_client_secret",
)  # fmt: skip


IN_FILES = (*SECRETS, "database_url", "redis_url")
"""Settings whose value may be that of a file, which `AIO_X_FILE` names."""


class Setting(NamedTuple):
    """What a reader needs to know of a field of `Settings`."""

    variable: str
    """Its environment variable."""
    default: str
    """Its default as text; "" where the description says what an unset value means."""
    description: str


def variable_of(field: str) -> str:
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


def load_settings(
    environment: Mapping[str, str] | None = None, *, of_data_folder: bool = False, **overrides: Any
) -> Settings:
    """Settings from `environment` (default: the process's), read as `_environment_texts` says, then `overrides` that
    are not None. OpenTelemetry's variables count where AIO has none set (`standard_settings`). `of_data_folder`: the
    catalogue may be the one that the data folder was served with (`default_catalog`).

    Raises `SettingsError` naming the variable. Keys never appear in a message.
    """
    environment = os.environ if environment is None else environment
    fields: dict[str, Any] = _environment_texts(environment)
    fields = (
        standard_settings(environment, fields.keys())
        | fields
        | {name: value for name, value in overrides.items() if value is not None}
    )
    settings = Settings()
    for name, value in fields.items():
        settings = _with_field(settings, name, value)
    served_from = settings.data_path if of_data_folder else None
    catalog = fields.get("catalog") or default_catalog(environment, served_from).catalog
    return _with_field(settings, "catalog", catalog)


# An empty variable is an unset one, except where it has always meant something.
_EMPTY_MEANS = ("retrain_cron",)
_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_OTHER_WORDS = {"log_level": {"warn": "warning"}, "retrain_cron": {"never": ""}}


def _environment_texts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the environment has, as texts: without blanks around them, words in small letters where
    only some are allowed, secrets also from the files that their `_FILE` forms name. An empty variable counts as unset.

    Raises `SettingsError`.
    """
    texts = {}
    for name, schema in _schemas().items():
        variable = variable_of(name)
        try:
            text = secret_of(environment, variable) if name in IN_FILES else environment.get(variable, "").strip()
        except SecretError as error:
            raise SettingsError(str(error)) from None
        is_plain = schema.get("type") == "boolean" or "enum" in schema
        word = text.lower()
        if schema.get("type") == "boolean":
            word = _WORDS.get(word, word)
        word = _OTHER_WORDS.get(name, {}).get(word, word if is_plain else text)
        if word or (name in _EMPTY_MEANS and variable in environment):
            texts[name] = word
    return texts


# Read by other parts than the settings.
_OTHER_VARIABLES = {
    "AIO_GROUP", "AIO_NATIVE", "AIO_INSTRUCTION_SET", "AIO_DATA", "AIO_CHECK", "AIO_URL", "AIO_API_KEY",
    "AIO_ADMIN_KEY", "AIO_KERNELS", "AIO_OBJECTS", "AIO_SANITIZE", "AIO_WEIGHTS",
}  # fmt: skip


def unknown_variables(environment: Mapping[str, str], settings: Settings) -> list[str]:
    """Return in a line each which `AIO_` variables change nothing, by their names alone: neither a setting, nor one
    that the catalogue or the file of keys names. `gateway.base.gone` names those that were settings."""
    own = {variable_of(name) for name in Settings.__struct_fields__}
    forms = {variable_of(name) + FILE_FORM for name in IN_FILES}
    other = own | forms | _OTHER_VARIABLES | GONE_VARIABLES.keys()
    unknown = {name for name in environment if name.startswith("AIO_")} - other
    if not unknown:
        return []
    named = "".join(_text_of(Path(file).expanduser()) for file in (settings.catalog, settings.keys_file) if file)
    lines = []
    for name in sorted(unknown):
        if re.search(rf"\b{re.escape(name.removesuffix(FILE_FORM))}\b", named):
            continue
        near = difflib.get_close_matches(name, own | forms, n=1, cutoff=0.8)
        meant = f"; is {near[0]} meant?" if near else "; `aio settings` lists those that there are"
        lines.append(f"{name[:64]!a} is no setting and changes nothing{meant}")
    return lines


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace") if path.is_file() else ""
    except OSError:
        return ""


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables, for processes of other roles: all but the role itself. Files of
    secrets are read by this process alone."""
    values = msgspec.to_builtins(settings)
    files = {variable_of(name) + FILE_FORM: "" for name in IN_FILES}
    return {name: value for name, value in files.items() if name in os.environ} | {
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
        allowed = _schemas()[name].get("enum")
        why = f"it is one of {', '.join(map(str, allowed))}" if allowed else error
        raise SettingsError(f"{variable_of(name)} (or the option of that name): value{shown} refused: {why}") from None


def own_command(*arguments: str) -> list[str]:
    """Return what runs `aio ARGUMENTS` with this interpreter, wherever its scripts are installed."""
    return [sys.executable, "-c", "from gateway.cli import main; main()", *arguments]
