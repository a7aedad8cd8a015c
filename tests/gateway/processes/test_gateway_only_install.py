"""A gateway in an installation without any extra: no torch, scikit-learn, scipy, nor drivers of servers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.gateway_only import without_extras
from tests.gateway.operations.dashboard.real_traffic import WATCHED
from tests.polling import until
from tests.support.served import ServedProcess, served
from tests.support.upstream import running_upstream, write_remote_catalog

pytestmark = pytest.mark.processes


def ask(gateway: ServedProcess, prompt: str, model: str = "auto") -> int:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    answer = gateway.admin.post("/v1/chat/completions", json=body, headers={"x-aio-cache": "off"})
    assert answer.status_code == 200, answer.text
    return int(answer.headers["x-aio-tier"])


def test_it_routes_verifies_learns_by_counts_and_retrains(tmp_path: Path) -> None:
    catalog, environment = tmp_path / "catalog.toml", WATCHED | without_extras(tmp_path / "site")
    with running_upstream() as upstream:
        write_remote_catalog(catalog, upstream.base_url, tiers=2)
        with served(
            tmp_path / "data", tmp_path / "cache", "--catalog", str(catalog), environment=environment
        ) as gateway:
            # Until the monitor has started, estimates are a 503, which the log shows.
            until(lambda: gateway.admin.get("/admin/api/estimates").status_code == 200)
            began = (tmp_path / "data" / "log").stat().st_size
            # Texts to the letter: a judge that asks no model compares them, and tier 1's answer is as good.
            routed = [ask(gateway, f"Repeat word for word: the first numbers are 1, 2 and {n}.") for n in range(3, 9)]
            assert set(routed) <= {1, 2}
            ask(gateway, "Repeat word for word: the numbers are 4 and 5.", model="tier-1")
            until(lambda: labels_that_count(gateway) > 0, every=0.2)

            ordered = gateway.admin.post("/admin/api/retrainings", json={"reason": "to see"})
            assert (ordered.status_code, ordered.json()) == (202, {"started": True})
            until(lambda: ended_retraining(gateway) is not None, every=0.2)
            run = ended_retraining(gateway)
            assert run is not None
            assert (run["status"], run["error"], run["trigger"]) == ("done", None, "button")
            assert run["classifier_version"], "a candidate was trained and judged"
            assert ask(gateway, "The numbers are 6 and 7.") in (1, 2)
            mapped = Path(f"/proc/{gateway.process.pid}/maps").read_text()
    assert not [name for name in ("libtorch", "sklearn", "scipy.libs", "tokenizers", "llguidance") if name in mapped]
    log = (tmp_path / "data" / "log").read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log[began:]


def ended_retraining(gateway: ServedProcess) -> dict[str, Any] | None:
    """The newest run, once it has ended."""
    runs = gateway.admin.get("/admin/api/retrainings").json()["rows"]
    return next((run for run in runs if run["status"] != "running"), None)


def labels_that_count(gateway: ServedProcess) -> float:
    """How many verified outcomes correct the decisions now."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(gateway.admin.get("/metrics").text)
        for sample in family.samples
        if sample.name == "aio_own_labels"
    )


def aio(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
    return subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *arguments],
        env=inherited | without_extras(folder / "site") | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def error_of(ran: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refused command prints as its error."""
    assert ran.returncode == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    errors = [line for line in ran.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, ran.stderr
    return errors[0]


@pytest.mark.parametrize("role", ["all", "core"])
def test_a_catalogue_of_models_in_aio_itself_is_refused_with_what_to_install(tmp_path: Path, role: str) -> None:
    ran = aio(tmp_path, "serve", "--catalog", "laptop", "--role", role, "--data-dir", "data", "--port", "0")
    assert "pip install 'aio-gateway[local]'" in error_of(ran)
    assert "Admin key" not in ran.stdout, "it is shown once, and this start comes to nothing"


@pytest.mark.parametrize(
    ("variable", "value", "extra"),
    [
        ("AIO_DATABASE_URL", "postgresql://aio@127.0.0.1:1/aio", "postgres"),
        ("AIO_REDIS_URL", "redis://127.0.0.1:1", "redis"),
        ("AIO_TRACE_EXPORTER", "console", "otlp"),
    ],
)
def test_a_setting_that_needs_an_extra_says_which(tmp_path: Path, variable: str, value: str, extra: str) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:1/v1", tiers=2)
    started = ("serve", "--catalog", str(catalog), "--data-dir", "data", "--port", "0")
    assert error_of(aio(tmp_path, *started, **{variable: value})).endswith(f"pip install 'aio-gateway[{extra}]'")


def test_a_command_that_fits_says_what_to_install(tmp_path: Path) -> None:
    ran = aio(tmp_path, "classifier", "train")
    assert "pip install 'aio-gateway[train]'" in error_of(ran)


EVERY_HELP = """
import click
from click.testing import CliRunner
from gateway.cli import main

def walk(group, path):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        ran = CliRunner().invoke(main, [*path, name, "--help"])
        assert ran.exit_code == 0, (path, name, ran.output, ran.exception)
        if isinstance(command, click.Group):
            walk(command, [*path, name])

walk(main, [])
"""


def test_every_command_explains_itself_and_those_about_remote_tiers_run(tmp_path: Path) -> None:
    walked = subprocess.run(
        [sys.executable, "-c", EVERY_HELP],
        env=os.environ | without_extras(tmp_path / "site"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert walked.returncode == 0, walked.stderr
    catalog = str(write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:1/v1", tiers=2))
    for command in (
        ("models", "--catalog", catalog),
        ("route", "--catalog", catalog, "Prove that the square root of two is irrational."),
        ("keys", "create", "app", "--data-dir", "data"),
        ("models", "--catalog", "laptop"),
        ("retrain", "--catalog", catalog, "--data-dir", "data"),
        ("settings",),
    ):
        # The data folder of the user who runs the tests may be of an earlier version.
        ran = aio(tmp_path, *command, XDG_DATA_HOME=str(tmp_path / "home"))
        assert ran.returncode == 0, (command, ran.stderr)
