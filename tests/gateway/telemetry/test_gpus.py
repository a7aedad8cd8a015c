"""GPUs under the names of NVIDIA's exporter, and the alerts on their faults (OB-05, OB-10)."""

from typing import Any

import pynvml
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.alert_rules import alert_figures
from gateway.telemetry.gpus import GpuCollector, Gpus
from tests.gateway.telemetry.fake_nvml import H200, FakeNvml
from tests.gateway.telemetry.promql import Series, fires, seconds_of
from tests.gateway.telemetry.test_alert_rules_file import FILE

ALERTS = {rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]}


def shown(*gpus: dict[str, Any]) -> list[Any]:
    """The samples of a scrape of a machine with these GPUs."""
    registry, collector = CollectorRegistry(), GpuCollector()
    registry.register(collector)
    collector.readings = Gpus(FakeNvml(*gpus)).read()
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [sample for family in families for sample in family.samples]


def firing(*gpus: dict[str, Any]) -> set[str]:
    """The GPU alerts of the file that fire if a scrape always has these readings."""
    series = [Series(sample.name, sample.value, **sample.labels) for sample in shown(*gpus)]
    about = {name: rule for name, rule in ALERTS.items() if name.startswith("AioGpu")}
    return {n for n, rule in about.items() if fires(rule["expr"], seconds_of(rule.get("for", "0s")), series, 1e4, 15)}


def test_a_reading_has_dcgms_names_units_and_labels() -> None:
    found = {sample.name: sample for sample in shown(H200)}
    values = {name: sample.value for name, sample in found.items() if name.startswith("DCGM")}
    assert values == {
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 41,
        "DCGM_FI_DEV_FB_USED": pytest.approx(145_000_000_000 / 2**20),
        "DCGM_FI_DEV_FB_FREE": pytest.approx(5_754_820_096 / 2**20),
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 642.35,
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 3,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    }
    labels = found["DCGM_FI_DEV_GPU_UTIL"].labels
    assert labels == {"gpu": "0", "UUID": H200["uuid"], "modelName": "NVIDIA H200"}


def test_readings_raise_the_alerts_that_they_should() -> None:
    idle = H200 | {"utilization": H200["utilization"].__class__(gpu=10, memory=1)}
    full = H200["memory"].__class__(total=100, used=99, free=1)
    assert firing(idle) == set()
    assert firing(H200) == {"AioGpuBusy"}
    assert firing(idle | {"memory": full}) == {"AioGpuMemoryFull"}
    assert firing(idle, idle | {"reasons": 0x40}) == {"AioGpuThrottled"}
    # Idle clocks (0x1) and clocks set by a user (0x2) are not faults.
    assert firing(idle | {"reasons": 0x3}) == set()


def test_the_gateways_own_alerts_see_the_worst_gpu() -> None:
    hot = H200 | {"uuid": "b", "reasons": 0x20 | 0x4}
    figures = alert_figures({}, {}, [], Gpus(FakeNvml(H200, hot)).read())
    assert (figures["gpu_busy"], figures["gpu_throttled"]) == (0.97, 2.0)
    assert figures["gpu_memory"] == pytest.approx(145_000_000_000 / 150_754_820_096)
    assert alert_figures({}, {}, [], [])["gpu_busy"] is None


def test_a_gpu_that_does_not_know_a_question_still_answers_the_others() -> None:
    [reading] = Gpus(FakeNvml({"uuid": "x", "name": "old", "utilization": H200["utilization"]})).read()
    assert (reading.utilisation, reading.memory_used, reading.ecc_corrected, reading.throttled_by) == (
        97,
        None,
        None,
        [],
    )
    assert reading.memory_share is None


def test_without_driver_or_gpus_nothing_is_shown_and_nothing_breaks() -> None:
    assert Gpus(FakeNvml(H200, broken=True)).read() == []
    assert shown() == []


def test_the_fake_offers_what_pynvml_does() -> None:
    for name in vars(FakeNvml):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(pynvml, name), name
    for name in ("NVML_TEMPERATURE_GPU", "NVML_CLOCK_SM", "NVML_VOLATILE_ECC"):
        assert getattr(pynvml, name) == getattr(FakeNvml, name)
