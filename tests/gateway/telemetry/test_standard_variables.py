"""OpenTelemetry's own variables mean here what they mean elsewhere; AIO's win where both are set."""

from pathlib import Path
from typing import Any

import pytest

from gateway.base.configuration import load_settings
from gateway.base.identity import trace_context
from gateway.base.settings import SettingsError
from tests.gateway.telemetry.otlp_collector import running_collector
from tests.support.app import running_gateway

HELLO = [{"role": "user", "content": "Say hello."}]
ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.mark.parametrize(
    ("environment", "fields"),
    [
        ({}, {"trace_exporter": "none", "trace_ratio": 1.0, "trace_parent_based": True}),
        ({ENDPOINT: "http://c:4318"}, {"trace_exporter": "otlp", "otlp_endpoint": "http://c:4318"}),
        ({TRACES_ENDPOINT: "http://c/in"}, {"trace_exporter": "otlp", "otlp_traces_endpoint": "http://c/in"}),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, {"trace_exporter": "otlp", "otlp_endpoint": "http://127.0.0.1:4318"}),
        ({"OTEL_TRACES_EXPORTER": "console"}, {"trace_exporter": "console"}),
        ({ENDPOINT: "http://c", "OTEL_TRACES_EXPORTER": "none"}, {"trace_exporter": "none"}),
        ({ENDPOINT: "http://c", "OTEL_SDK_DISABLED": "True"}, {"trace_exporter": "none"}),
        ({ENDPOINT: " ", "OTEL_TRACES_SAMPLER": ""}, {"trace_exporter": "none", "trace_ratio": 1.0}),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, {"trace_ratio": 0.0, "trace_parent_based": False}),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, {"trace_ratio": 1.0, "trace_parent_based": True}),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            {"trace_ratio": 0.25, "trace_parent_based": False},
        ),
        # AIO's own.
        ({ENDPOINT: "http://c", "AIO_TRACE_EXPORTER": "none"}, {"trace_exporter": "none"}),
        ({TRACES_ENDPOINT: "http://c", "AIO_OTLP_ENDPOINT": "http://d"}, {"otlp_endpoint": "http://d"}),
        ({TRACES_ENDPOINT: "http://c", "AIO_OTLP_ENDPOINT": "http://d"}, {"otlp_traces_endpoint": ""}),
        ({"OTEL_SDK_DISABLED": "true", "AIO_TRACE_EXPORTER": "otlp"}, {"trace_exporter": "otlp"}),
        (
            {"OTEL_TRACES_SAMPLER": "always_off", "AIO_TRACE_RATIO": "0.5"},
            {"trace_ratio": 0.5, "trace_parent_based": True},
        ),
    ],
)
def test_a_variable_is_the_setting_that_means_the_same(environment: dict[str, str], fields: dict[str, Any]) -> None:
    settings = load_settings(environment)
    assert {name: getattr(settings, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "OTEL_TRACES_EXPORTER is 'jaeger'.*AIO_TRACE_EXPORTER"),
        ({"OTEL_TRACES_SAMPLER": "xray"}, "OTEL_TRACES_SAMPLER is 'xray'.*AIO_TRACE_RATIO"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "OTEL_TRACES_SAMPLER_ARG is '2'"),
        ({ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL.*4318"),
    ],
)
def test_a_value_that_cannot_be_followed_is_refused_with_what_to_set(environment: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(environment)


def test_a_sampler_that_asks_no_parent_decides_about_callers_traces() -> None:
    kept = trace_context({"traceparent": UNSAMPLED}, 1.0)
    assert kept is not None
    assert not kept.sampled
    decided = trace_context({"traceparent": UNSAMPLED}, 1.0, parent_based=False)
    assert decided is not None
    assert decided.sampled
    dropped = trace_context({"traceparent": UNSAMPLED[:-1] + "1"}, 0.0, parent_based=False)
    assert dropped is not None
    assert not dropped.sampled


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({}, "aio-gateway"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=by-attributes,deployment.environment=test"}, "by-attributes"),
        ({"OTEL_SERVICE_NAME": "by-name", "OTEL_RESOURCE_ATTRIBUTES": "service.name=by-attributes"}, "by-name"),
    ],
)
async def test_spans_reach_the_endpoint_of_the_environment_under_the_environments_name_and_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], service: str
) -> None:
    with running_collector() as collector:
        monkeypatch.setenv(TRACES_ENDPOINT, f"{collector.url}/custom/path")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings = load_settings(data_dir=str(tmp_path), monitor=False)
        async with running_gateway(settings) as gateway:
            answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO})
            assert answer.status_code == 200
    assert (collector.services, collector.paths) == ({service}, {"/custom/path"})
    assert collector.tokens == {"secret"}
