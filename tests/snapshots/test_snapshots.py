"""HTTP API, command line, metrics, settings and database schema are those of the stored snapshots, and the pages of
docs/reference that are made of them are current.

Callers, dashboards and stored data see a difference. Where it is intended, `make snapshots` rewrites the files.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.settings import Settings
from gateway.planning.scaling.target_server import target_exposition
from gateway.telemetry.gpus import Gpus
from quality.store.database import migrate, open_database
from tests.gateway.telemetry.fake_nvml import H200, FakeNvml
from tests.snapshots.interfaces import OpenApiLines, command_lines, metric_lines, schema_lines, settings_lines
from tests.snapshots.pages import api_page, commands_page, extras_page, knobs_page, metrics_page, settings_page
from tests.support.app import running_gateway
from tests.support.core import laptop_hash_core

Compare = Callable[[str, Iterable[str]], None]
ComparePage = Callable[[str, str], None]
PAGES = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Compare:
    """Compare sorted lines with a file of this folder, or write the file with `--update-snapshots`."""

    def compare_with_file(name: str, lines: Iterable[str]) -> None:
        path = Path(__file__).with_name(name)
        found = sorted(set(lines))
        if request.config.getoption("--update-snapshots"):
            path.write_text("".join(f"{line}\n" for line in found))
        stored = path.read_text().splitlines()
        gone, new = [line for line in stored if line not in found], [line for line in found if line not in stored]
        shown = "\n".join([*(f"- {line}" for line in gone), *(f"+ {line}" for line in new)])
        assert not shown, f"{name} differs; `make snapshots` rewrites it:\n{shown}"

    return compare_with_file


@pytest.fixture
def compare_page(request: pytest.FixtureRequest) -> ComparePage:
    """Compare a page with a file of docs/reference, or write the file with `--update-snapshots`."""

    def compare_with_file(name: str, text: str) -> None:
        path = PAGES / name
        if request.config.getoption("--update-snapshots"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"docs/reference/{name} is old; `make snapshots` rewrites it"

    return compare_with_file


async def test_http_api_and_metrics_are_those_of_the_snapshots(
    tmp_path: Path, compare: Compare, compare_page: ComparePage
) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=False, drain_seconds=5)
    async with running_gateway(settings, core=laptop_hash_core(settings), scripted=False) as gateway:
        metrics = gateway.operations.metrics
        metrics._gpus = Gpus(FakeNvml(H200))
        assert (await gateway.http.get("/metrics")).status_code == 200
        document: dict[str, Any] = (await gateway.http.get("/docs/openapi.json")).json()
        registries = (metrics.registry, metrics.private, metrics.shared)
        families = [line for registry in registries for line in metric_lines(registry)]
        metrics_now = metrics_page(registries)

    compare("openapi.txt", OpenApiLines(document).lines())
    compare("metrics.txt", families)
    compare_page("api.md", api_page(document))
    compare_page("metrics.md", metrics_now)


def test_metrics_of_the_fleet_service_are_those_of_the_snapshot(compare: Compare) -> None:
    target = SimpleNamespace(target=1, need=1.0, known=True)
    families = text_string_to_metric_families(target_exposition(SimpleNamespace(tiers={"1": target})).decode())
    compare("fleet_metrics.txt", (f"{f.name} {f.type} {{{', '.join(f.samples[0].labels)}}}" for f in families))


def test_commands_and_their_options_are_those_of_the_snapshot(compare: Compare, compare_page: ComparePage) -> None:
    compare("commands.txt", command_lines())
    compare_page("commands.md", commands_page())


def test_settings_are_those_of_the_snapshot(compare: Compare, compare_page: ComparePage) -> None:
    compare("settings.txt", settings_lines())
    compare_page("settings.md", settings_page())


def test_the_page_of_what_is_billed_besides_tokens_is_current(compare_page: ComparePage) -> None:
    compare_page("extras.md", extras_page())


def test_the_page_of_live_knobs_is_current(compare_page: ComparePage) -> None:
    compare_page("knobs.md", knobs_page())


async def test_the_database_schema_is_that_of_the_snapshot(sqlite_url: str, compare: Compare) -> None:
    await migrate(sqlite_url)
    engine = open_database(sqlite_url)
    async with engine.connect() as connection:
        lines = await connection.run_sync(lambda opened: list(schema_lines(opened)))
    await engine.dispose()
    compare("database.txt", lines)
