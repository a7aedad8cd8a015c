"""Every metric that the dashboard and the alert rules read is in a real scrape: no panel is empty for a wrong name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from gateway.telemetry.gpus import Gpus
from tests.gateway.telemetry.fake_nvml import H200, FakeNvml
from tests.gateway.telemetry.promql import metric_names
from tests.support.app import StartApp
from tests.support.core import laptop_hash_core

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "aio.json").read_text())
GROUPS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


def panels() -> Iterator[dict[str, Any]]:
    """The panels with data."""
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    shown = [target["expr"].replace("$__rate_interval", "5m") for panel in panels() for target in panel["targets"]]
    return [*shown, *(rule["expr"] for group in GROUPS for rule in group["rules"])]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scrape(module_app: StartApp) -> str:
    """A Prometheus scrape of a gateway with a core, GPUs and some traffic."""
    gateway = await module_app(core=laptop_hash_core, scripted=False)
    gateway.operations.metrics._gpus = Gpus(FakeNvml(H200))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    for model in ("tier-1", "tier-2", "auto"):
        answer = await gateway.http.post("/v1/chat/completions", json=body | {"model": model})
        assert answer.status_code == 200
    return (await gateway.http.get("/metrics")).text


def known_names(scrape: str) -> set[str]:
    """Names of samples, and those of declared families without samples."""
    names = {line.split("{")[0].split(" ")[0] for line in scrape.splitlines() if line and not line.startswith("#")}
    for line in scrape.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            names |= {f"{family}_{end}" for end in ("bucket", "sum", "count")} if kind == "histogram" else {family}
    return names


async def test_every_metric_that_is_read_is_there(scrape: str) -> None:
    known = known_names(scrape)
    missing = {name for expression in expressions() for name in metric_names(expression) if name not in known}
    assert missing == set()


async def test_what_every_gateway_has_has_samples(scrape: str) -> None:
    for name in ("vllm:time_to_first_token_seconds_bucket", "aio_requests_total", "vllm:num_requests_waiting"):
        assert f"\n{name}{{" in scrape
    assert 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-' in scrape


async def test_panels_are_laid_out_and_named_once(scrape: str) -> None:
    shown = list(panels())
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in shown}) == len(shown)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = msgspec.convert(panel["gridPos"], dict[str, int])
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert all(target["datasource"]["uid"] == "${datasource}" for panel in shown for target in panel["targets"])
