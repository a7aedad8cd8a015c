"""A model that others quantised serves as not measured, where an operator looks, until it was measured (SPEC QM-12)."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from inference_core.quantization.awq import RoundToNearest
from inference_core.quantization.calibration import CalibrationText
from inference_core.quantization.quality_report import RECORD
from inference_core.quantization.quantize_model import quantize_model
from tests.gateway.tiny_versions import ASKED, tiny_catalog
from tests.inference_core.quantization.tiny_model import TEXT, write_tiny_model
from tests.polling import until
from tests.support.administrator import ADMIN_KEY
from tests.support.served import UNCACHED, served, started

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    quantize_model(
        write_tiny_model(folder / "full"), folder / "theirs", RoundToNearest(group_size=32), CalibrationText(TEXT, "")
    )
    (folder / "theirs" / RECORD).unlink()
    return folder / "theirs"


def written(folder: Path, model: Path, head: str = "") -> Path:
    file = folder / "catalogue.toml"
    file.write_text(head + tiny_catalog(model).replace('"float32"', '"int4-int8"'))
    return file


def core_page(url: str) -> str:
    """What an administrator reads on the page of cores."""
    with httpx.Client(base_url=url, timeout=60) as browser:
        token = browser.get("/admin/login").text.split('name="csrf_token" value="')[1].split('"')[0]
        browser.post("/admin/login", data={"csrf_token": token, "name": "", "secret": ADMIN_KEY})
        return browser.get("/admin/core").text


@pytest.mark.timeout(600)
def test_it_is_not_measured_in_health_on_the_core_page_and_in_the_command_until_it_was_measured(
    theirs: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, theirs)

    def shown() -> str:
        command = [sys.executable, "-c", "from gateway.cli import main; main()", "models", "--catalog", str(file)]
        folders = ["--cache-dir", str(tmp_path / "cache"), "--data-dir", str(tmp_path / "data")]
        return subprocess.run([*command, *folders], capture_output=True, text=True, check=True).stdout

    assert "model 'tiny': not measured: others quantised it" in shown()
    with served(tmp_path / "data", tmp_path / "cache", "--catalog", str(file)) as aio:
        asked = httpx.post(f"{aio.url}/v1/completions", json=ASKED, headers=UNCACHED, timeout=60)
        assert asked.status_code == 200
        until(lambda: "quality of model tiny" in httpx.get(f"{aio.url}/health/ready").text)
        ready = httpx.get(f"{aio.url}/health/ready").json()
        assert ready["status"] == "ok"
        assert ready["problems"]["quality of model tiny"] == "not measured: others quantised it"
        assert "not measured: others quantised it" in core_page(aio.url)
    measuring = {"AIO_MEASURE_MODELS": "true"}
    with served(tmp_path / "data", tmp_path / "cache", "--catalog", str(file), environment=measuring) as aio:
        until(lambda: list((tmp_path / "cache" / "quality").glob("*.quality.json")))
        until(lambda: "not measured" not in httpx.get(f"{aio.url}/health/ready").text)
        assert "not measured" not in core_page(aio.url)
    assert "others quantised it" not in shown()


def test_a_catalogue_that_requires_reports_does_not_start_with_it(theirs: Path, tmp_path: Path) -> None:
    file = written(tmp_path, theirs, "require_report = true\n")
    with started(tmp_path / "data", tmp_path / "cache", "--port", "0", "--catalog", str(file)) as process:
        assert process.wait() != 0
    said = (tmp_path / "data" / "log").read_text()
    assert "nothing was measured of it here" in said
    assert "aio quality compare" in said
