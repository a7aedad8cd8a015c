"""A page as NVIDIA's exporter writes it, scraped over HTTP: rules and panels read it as they read a gateway's own
(OB-05)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest_asyncio
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.gpus import GpuCollector, Gpus
from tests.gateway.telemetry.fake_nvml import H200, FakeNvml
from tests.gateway.telemetry.promql import Series, evaluate, fires, metric_names, seconds_of
from tests.gateway.telemetry.test_alert_rules_file import FILE
from tests.gateway.telemetry.test_grafana_dashboard import DASHBOARD, DEPLOY, panels
from tests.http_server import Reply, answering

PAGE = (Path(__file__).parent / "dcgm_exporter_page.txt").read_bytes()


@pytest_asyncio.fixture
async def series() -> AsyncIterator[list[Series]]:
    """What a scrape of the exporter gives, with the label that Prometheus adds."""
    with answering(lambda asked: Reply(PAGE, 200 if asked.path == "/metrics" else 404)) as exporter:
        async with httpx.AsyncClient() as client:
            page = await client.get(f"{exporter}/metrics")
    families = text_string_to_metric_families(page.text)
    yield [
        Series(sample.name, sample.value, **sample.labels, instance="node-a:9400")
        for family in families
        for sample in family.samples
    ]


async def test_the_alert_rules_fire_for_the_gpu_of_the_page_that_is_busy_and_full(series: list[Series]) -> None:
    rules = {rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]}
    firing = {
        name: dict(evaluate(rule["expr"], series, 1e4))  # type: ignore[arg-type]
        for name, rule in rules.items()
        if name.startswith("AioGpu") and fires(rule["expr"], seconds_of(rule.get("for", "0s")), series, 1e4, 15)
    }
    assert {name: list(found) for name, found in firing.items()} == {
        "AioGpuBusy": [(("gpu", "0"),)],
        "AioGpuMemoryFull": [(("gpu", "0"),)],
    }


async def test_every_panel_of_gpus_has_a_line_for_each_gpu_of_the_page(series: list[Series]) -> None:
    shown = [target["expr"] for panel in panels() for target in panel["targets"] if "DCGM" in target["expr"]]
    assert len(shown) >= 4
    for expression in shown:
        assert set(evaluate(expression, series, 1e4)) == {(("gpu", "0"),), (("gpu", "1"),)}, expression  # type: ignore[arg-type]


async def test_the_autoscalers_utilisation_is_the_mean_of_the_page(series: list[Series]) -> None:
    """`adapter.yaml` names the query of the sources' target of 70%."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yaml").read_text())
    query = json.dumps(rules)
    assert "avg(DCGM_FI_DEV_GPU_UTIL{<<.LabelMatchers>>})" in query
    assert evaluate("avg(DCGM_FI_DEV_GPU_UTIL)", series, 1e4) == {(): 49.0}


async def test_a_gateways_own_names_and_labels_are_those_of_the_exporter(series: list[Series]) -> None:
    """What a gateway reads by NVML and the exporter has in its default set is in one metric with the same labels."""
    registry, collector = CollectorRegistry(), GpuCollector()
    registry.register(collector)
    collector.readings = Gpus(FakeNvml(H200)).read()
    ours = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name.startswith("DCGM")
    }
    exported = {one.name: {name for name, _ in one.labels} for one in series}
    assert len(ours.keys() & exported.keys()) == 7
    assert all(ours[name] <= exported[name] for name in ours.keys() & exported.keys())
    read = {name for panel in DASHBOARD["panels"] for target in panel.get("targets", ()) for name in _names(target)}
    assert {name for name in read if name.startswith("DCGM")} <= exported.keys()


def _names(target: dict[str, str]) -> set[str]:
    return metric_names(target["expr"].replace("$__rate_interval", "5m"))
