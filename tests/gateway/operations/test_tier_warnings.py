"""`aio bench tiers` stores its results; `aio models` and a starting gateway warn by them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import Result

import gateway.runtime.cores.engine
from gateway.base.settings import Settings
from gateway.runtime.cores.engine import Engine
from quality.evaluation.tier_accuracy import REPORT_FILE
from tests.gateway.in_process_cli import aio
from tests.quality.evaluation.knowing_tier import KnowingTier
from tests.support.app import running_gateway

SEED, PER_LEVEL = 5, 3


def bench(folder: Path, *options: str) -> Result:
    chosen = ("--seed", str(SEED), "--per-level", str(PER_LEVEL), "--data-dir", str(folder))
    return aio("bench", "tiers", *chosen, *options)


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> list[KnowingTier]:
    """Four tiers in place of the catalogue's: the second is better than the first, the others no better than the
    second."""
    first = KnowingTier(1, lambda task: task.kind == "copy", seed=SEED, per_level=PER_LEVEL)
    others = [
        KnowingTier(n, lambda task: task.kind in ("copy", "spell"), seed=SEED, per_level=PER_LEVEL) for n in (2, 3, 4)
    ]
    scripted = [first, *others]

    @asynccontextmanager
    async def running_engine(settings: Settings, *others: object) -> AsyncIterator[Engine]:
        assert settings.role == "all"
        yield Engine(scripted, {})

    monkeypatch.setattr(gateway.runtime.cores.engine, "running_engine", running_engine)
    return scripted


@pytest.fixture
def measured(tiers: list[KnowingTier], tmp_path: Path) -> Path:
    """A data folder with a measurement in which tiers 3 and 4 are no better than tier 2."""
    assert bench(tmp_path).exit_code == 0
    return tmp_path


def test_the_table_shows_accuracy_by_kind_cost_and_comparisons(tiers: list[KnowingTier], tmp_path: Path) -> None:
    shown = bench(tmp_path)

    assert shown.exit_code == 0, shown.output
    first = next(line for line in shown.output.splitlines() if line.startswith("1 ")).split()
    assert first[:5] == ["1", "smollm2-int4", "plain", "15/60", "25.0%"]
    assert "100.0%" in first
    assert "$8.75e-06" in first
    assert "arithmetic  5      0/3" in shown.output
    assert "tier 2  tier 1   5 x" in shown.output
    assert "warning: tier 3 costs 6 times tier 2 and was not measurably better on 60 tasks (p = 1)" in shown.output
    assert shown.stderr == ""


def test_json_gives_programs_the_report_that_is_kept(tiers: list[KnowingTier], tmp_path: Path) -> None:
    shown = json.loads(bench(tmp_path, "--json").stdout)

    assert shown["report"] == json.loads((tmp_path / REPORT_FILE).read_bytes())
    assert [tier["accuracy"]["count"] for tier in shown["report"]["tiers"]] == [15, 30, 30, 30]
    assert [(c["dearer"], c["cheaper"]) for c in shown["comparisons"] if not c["better"]] == [(3, 2), (4, 2)]
    assert len(shown["warnings"]) == 2


def test_more_tasks_than_exist_are_refused_before_anything_starts(tiers: list[KnowingTier], tmp_path: Path) -> None:
    shown = aio("bench", "tiers", "--per-level", "500", "--data-dir", str(tmp_path))
    assert shown.exit_code == 2
    assert "ask for fewer" in shown.output
    assert not tiers[0].requests


def test_a_tier_that_fails_leaves_the_measurement_before(tiers: list[KnowingTier], measured: Path) -> None:
    before = (measured / REPORT_FILE).read_bytes()
    tiers[1].finish_reason = "error"

    shown = bench(measured)

    assert shown.exit_code == 1
    assert "tier-2 could not answer" in shown.output
    assert (measured / REPORT_FILE).read_bytes() == before


def test_models_warns_by_the_stored_measurement(measured: Path) -> None:
    text, program = (aio("models", "--data-dir", str(measured), *option) for option in ((), ("--json",)))

    assert "warning: tier 4 costs 6 times tier 2" in text.output
    assert "aio bench tiers" not in text.output
    assert [line[:6] for line in json.loads(program.output)["warnings"]] == ["tier 3", "tier 4"]


def test_models_says_how_to_measure_where_nothing_was(tmp_path: Path) -> None:
    shown = aio("models", "--data-dir", str(tmp_path))
    assert "run `aio bench tiers`" in shown.output
    assert "warning" not in shown.output


async def starting_warnings(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    async with running_gateway(Settings(data_dir=str(folder), monitor=False, drain_seconds=5)):
        return [record.getMessage() for record in caplog.records if record.name == "gateway.app"]


async def test_a_gateway_logs_the_tiers_that_are_not_worth_their_price(
    measured: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warned = await starting_warnings(measured, caplog)
    assert [line[:6] for line in warned] == ["tier 3", "tier 4"]


async def test_a_gateway_without_a_measurement_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert await starting_warnings(tmp_path, caplog) == []


async def test_a_measurement_that_cannot_be_read_stops_no_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / REPORT_FILE).write_text("{")
    (line,) = await starting_warnings(tmp_path, caplog)
    assert "run `aio bench tiers` again" in line
