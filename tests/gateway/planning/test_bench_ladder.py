"""Measuring a ladder: every tier is asked the same tasks, and shares stand by part, level and family."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import Result

import gateway.runtime.cores.engine
from gateway.runtime.cores.engine import Engine
from quality.evaluation.ladder import PARTS, LadderTask, measured_ladder, measured_tasks
from tests.gateway.in_process_cli import aio
from tests.quality.evaluation.knowing_tier import KnowingTier
from tiers.catalog.load import load_catalog
from tiers.tier import AnswerEnd, Delta, GenerationRequest, Usage

LAPTOP = load_catalog("laptop")
HELD_OUT, UNTRAINED = (measured_tasks(2, part) for part in PARTS)


class LevelTier(KnowingTier):
    """Knows the ladder's tasks up to `level`."""

    def __init__(self, number: int, level: int) -> None:
        super().__init__(number, lambda task: True, seed=1, per_level=1)
        self._level = level
        self._found: dict[str, LadderTask] = {task.prompt: task for task in HELD_OUT + UNTRAINED}

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        assert request.messages is not None
        task = self._found[request.messages[-1].text]
        yield Delta(text=task.answers[0] if task.level <= self._level else "I cannot say")
        yield Delta(finish_reason="stop")
        yield Delta(end=AnswerEnd(usage=Usage(prompt_tokens=10, completion_tokens=task.level)))


async def test_shares_stand_by_tier_part_level_and_family() -> None:
    tiers = [LevelTier(1, 2), LevelTier(2, 6)]
    seen: list[float] = []
    scores = await measured_ladder(
        tiers, LAPTOP, per_level=2, concurrency=4, progress=lambda stage, share: seen.append(share)
    )
    assert [(one.tier, one.part) for one in scores] == [
        (1, "held-out"), (2, "held-out"), (1, "untrained"), (2, "untrained")
    ]  # fmt: skip
    assert [(one.share.count, one.share.total) for one in scores] == [(44, 132), (132, 132), (12, 36), (36, 36)]
    weak = scores[0]
    assert [weak.of(HELD_OUT, levels=pair).count for pair in ((1, 2), (3, 4), (5, 6))] == [44, 0, 0]
    assert (weak.of(HELD_OUT, family="sort").count, weak.of(HELD_OUT, family="sort").total) == (4, 12)
    assert weak.tokens == [task.level for task in HELD_OUT]
    assert seen[-1] == 1.0


@pytest.mark.parametrize(("per_level", "held_out", "untrained"), [(1, 66, 18), (10, 660, 180)])
def test_there_are_so_many_different_tasks_of_every_family_and_level(
    per_level: int, held_out: int, untrained: int
) -> None:
    found = [measured_tasks(per_level, part) for part in PARTS]
    assert [len({task.prompt for task in tasks}) for tasks in found] == [held_out, untrained]
    assert set(Counter((task.family, task.level) for tasks in found for task in tasks).values()) == {per_level}


def test_every_task_takes_its_answer_and_refuses_another() -> None:
    for task in (*measured_tasks(10, "held-out"), *measured_tasks(10, "untrained")):
        assert task.is_right(f"{task.answers[0]}."), task
        assert not task.is_right("I cannot say"), task


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tiers in place of the catalogue's, which know ever harder tasks."""

    @asynccontextmanager
    async def running_engine(*settings: object) -> AsyncIterator[Engine]:
        yield Engine([LevelTier(number, level) for number, level in enumerate((1, 2, 4, 6), 1)], {})

    monkeypatch.setattr(gateway.runtime.cores.engine, "running_engine", running_engine)


def asked(*options: str) -> Result:
    return aio("bench", "ladder", "--catalog", "laptop", "--per-level", "2", *options)


def test_the_table_has_a_row_with_an_interval_for_every_tier_and_part(engine: None, tmp_path: Path) -> None:
    shown = asked("--data-dir", str(tmp_path))
    assert shown.exit_code == 0, shown.output
    held_out, untrained = shown.output.split("families never trained")
    assert [line.split()[:3] for line in held_out.splitlines() if line.startswith("tier-")] == [
        ["tier-1", "22/132", "16.7%"],
        ["tier-2", "44/132", "33.3%"],
        ["tier-3", "88/132", "66.7%"],
        ["tier-4", "132/132", "100.0%"],
    ]
    assert "[25.9, 41.7]" in held_out
    assert "18/36" not in held_out
    assert "24/36" in untrained


def test_programs_get_every_score(engine: None, tmp_path: Path) -> None:
    shown = json.loads(asked("--data-dir", str(tmp_path), "--json").stdout)
    assert shown["per_level"] == 2
    assert [sum(one["right"]) for one in shown["scores"]] == [22, 44, 88, 132, 6, 12, 24, 36]
