"""GPUs of other machines are read from the pages of NVIDIA's exporter (OB-10)."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.settings import Settings, SettingsError
from gateway.telemetry.alert_rules import RULES
from gateway.telemetry.alerts import keep_looking
from gateway.telemetry.gpu_exporters import GpuExporters, readings_of
from gateway.telemetry.gpus import Gpus
from gateway.telemetry.metrics import Metrics
from tests.gateway.telemetry.alert_desk import alert_url
from tests.gateway.telemetry.fake_nvml import H200, FakeNvml
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer

# In the form of dcgm-exporter 3.3, with names and numbers of no real machine.
PAGE = (Path(__file__).parent / "dcgm_page.txt").read_text()


def exporter(page: str = PAGE, status: int = 200) -> LoopbackServer:
    async def told(call: Call) -> None:
        await call.begin(status, "text/plain; version=0.0.4")
        await call.send(page.encode())

    async def nothing(call: Call) -> None:
        await call.reply(404, {})

    server = LoopbackServer(nothing)
    server.looked_at = told
    return server


def page_url(server: LoopbackServer) -> str:
    return f"{server.base_url.removesuffix('/v1')}/metrics"


def test_a_page_gives_each_gpu_its_figures_in_our_units() -> None:
    calm, hot = readings_of(PAGE)
    assert (calm.gpu, calm.uuid, calm.name) == (0, "GPU-6d0a", "NVIDIA A100-SXM4-80GB")
    assert (calm.utilisation, calm.power_watts, calm.sm_clock) == (71, 311.274, 1410)
    assert (calm.memory_used, calm.memory_free) == (39843 * 2**20, 41211 * 2**20)
    assert (calm.throttled_by, calm.ecc_corrected) == ([], None)
    assert (hot.gpu, hot.temperature, hot.power_watts) == (1, 88, None)
    assert hot.throttled_by == ["sw_thermal", "hw_thermal"]


def test_parts_of_a_gpu_are_apart_and_a_value_that_is_none_is_unknown() -> None:
    parts = readings_of(
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_ID="1"} 10\n'
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_ID="2"} 20\n'
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",GPU_I_ID="2"} NaN\n'
    )
    assert [(part.uuid, part.memory_used, part.temperature) for part in parts] == [
        ("GPU-a/1", 10 * 2**20, None),
        ("GPU-a/2", 20 * 2**20, None),
    ]


async def test_a_scrape_of_the_gateway_shows_the_gpus_of_all_exporters_that_answer(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    refused = PAGE.replace("GPU-", "BAD-")
    async with exporter() as one, exporter("no page {", 200) as odd, exporter(refused, 500) as broken:
        urls = ", ".join(page_url(server) for server in (one, odd, broken))
        async with running_gateway(msgspec.structs.replace(settings, gpu_exporters=urls)) as gateway:
            await gateway.operations.metrics.read_gpus()
            text = (await gateway.http.get("/metrics")).text
    assert 'DCGM_FI_DEV_FB_USED{UUID="GPU-91fe",gpu="1",modelName="NVIDIA A100-SXM4-80GB"} 80243.0' in text
    assert (
        'aio_gpu_throttled{UUID="GPU-91fe",gpu="1",modelName="NVIDIA A100-SXM4-80GB",reason="hw_thermal"} 1.0' in text
    )
    assert "BAD-" not in text
    assert caplog.text.count("could not be read") >= 2


async def test_a_gpu_that_the_driver_and_an_exporter_know_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    monkeypatch.setattr(metrics, "_gpus", Gpus(FakeNvml(H200 | {"uuid": "GPU-91fe"})))
    async with exporter() as server:
        metrics.exporters = GpuExporters(page_url(server))
        await metrics.read_gpus()
        await metrics.exporters.aclose()
    assert [(reading.uuid, reading.name) for reading in metrics.gpus.readings] == [
        ("GPU-91fe", H200["name"]),
        ("GPU-6d0a", "NVIDIA A100-SXM4-80GB"),
    ]


@pytest.mark.usefixtures("ready_alert_sender")
async def test_a_hot_full_gpu_of_an_exporter_raises_the_gateways_alerts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = [rule for rule in RULES if rule.figure in ("gpu_memory", "gpu_throttled", "gpu_busy")]
    rules = [msgspec.structs.replace(rule, for_seconds=0.0) for rule in about]
    monkeypatch.setattr("gateway.telemetry.alerts.keep_looking", partial(keep_looking, rules=rules))
    heard = asyncio.Queue[dict[str, Any]]()

    async def hear(call: Call) -> None:
        await call.reply(202, {"status": "success"})
        heard.put_nowait(call.body)

    async with exporter() as gpus, LoopbackServer(hear) as desk:
        telling = msgspec.structs.replace(
            settings,
            gpu_exporters=page_url(gpus),
            alert_urls=alert_url(desk),
            alert_poll_seconds=0.02,
        )
        async with running_gateway(telling):
            events = [await asyncio.wait_for(heard.get(), 120) for _ in rules]
    names = {event["title"].split()[1] for event in events}
    assert names == {"AioGpuBusy", "AioGpuMemoryFull", "AioGpuThrottled"}


@pytest.mark.parametrize("urls", ["ftp://node/metrics", " , ", "http://169.254.169.254/latest", "http://a/m,nonsense"])
def test_what_is_no_web_address_is_refused_at_the_start(urls: str) -> None:
    with pytest.raises(SettingsError, match="AIO_GPU_EXPORTERS"):
        GpuExporters(urls)
