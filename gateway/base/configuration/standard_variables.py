"""OpenTelemetry's own environment variables, as the settings that mean the same.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/. An empty variable is an unset one.
The rest of `OTEL_EXPORTER_OTLP_…` (headers, certificates, timeout, compression), `OTEL_SERVICE_NAME` and
`OTEL_RESOURCE_ATTRIBUTES` are read by OpenTelemetry's library where traces are made.
"""

from collections.abc import Mapping, Set

from gateway.base.settings import SettingsError

_EXPORTERS = ("otlp", "console", "none")
_PARENT_BASED = "parentbased_"
_SAMPLERS = ("always_on", "always_off", "traceidratio")


def standard_settings(environment: Mapping[str, str], own: Set[str]) -> dict[str, str]:
    """Settings by field, as text. `own`: fields that have a variable of AIO's, which wins.

    Raises `SettingsError`.
    """
    given = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_")}
    found = {} if "trace_ratio" in own else _sampling(given)
    base, traces = (given.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT", "") for kind in ("", "TRACES_"))
    if "otlp_endpoint" not in own:
        found |= {"otlp_endpoint": base} if base else {}
        found |= {"otlp_traces_endpoint": traces} if traces else {}
    if "trace_exporter" not in own:
        found |= _exporter(given, is_known="otlp_endpoint" in own or bool(base or traces))
        if found.get("trace_exporter") == "otlp" and "otlp_endpoint" not in own:
            _refuse_grpc(given)
    return {name: value for name, value in found.items() if name not in own}


def _exporter(given: Mapping[str, str], *, is_known: bool) -> dict[str, str]:
    """Where spans go: to a collector once its address `is_known`."""
    if given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return {"trace_exporter": "none"}
    wanted = given.get("OTEL_TRACES_EXPORTER", "").lower()
    if not wanted:
        return {"trace_exporter": "otlp"} if is_known else {}
    if wanted not in _EXPORTERS:
        raise SettingsError(
            f"OTEL_TRACES_EXPORTER is {wanted!r}; allowed are {', '.join(_EXPORTERS)}. AIO_TRACE_EXPORTER overrides it"
        )
    return {"trace_exporter": wanted}


def _sampling(given: Mapping[str, str]) -> dict[str, str]:
    wanted = given.get("OTEL_TRACES_SAMPLER", "").lower()
    if not wanted:
        return {}
    sampler = wanted.removeprefix(_PARENT_BASED)
    if sampler not in _SAMPLERS:
        allowed = ", ".join([*_SAMPLERS, *(_PARENT_BASED + name for name in _SAMPLERS)])
        raise SettingsError(f"OTEL_TRACES_SAMPLER is {wanted!r}; allowed are {allowed}. AIO_TRACE_RATIO overrides it")
    ratio = {"always_on": "1", "always_off": "0"}.get(sampler) or _ratio(
        given.get("OTEL_TRACES_SAMPLER_ARG", "") or "1"
    )
    return {"trace_ratio": ratio, "trace_parent_based": "true" if wanted != sampler else "false"}


def _ratio(given: str) -> str:
    try:
        known = 0 <= float(given) <= 1
    except ValueError:
        known = False
    if not known:
        raise SettingsError(f"OTEL_TRACES_SAMPLER_ARG is {given!r}; it must be a number from 0 to 1")
    return given


def _refuse_grpc(given: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = given.get(name, "").lower()
        if protocol == "grpc":
            raise SettingsError(
                f"{name} is 'grpc'; traces are sent as http/protobuf, which collectors take on port 4318. Set "
                "AIO_OTLP_ENDPOINT to that address, or AIO_TRACE_EXPORTER=none"
            )
        if protocol:
            return
