"""A background task that fails is logged, goes on, and is shown; every task of the packages is supervised."""

import ast
import asyncio
import logging
from pathlib import Path

import pytest

from inference_core.io import background_tasks
from inference_core.io.background_tasks import once, repeated, task_problems

ROOT = Path(__file__).parents[3]
STARTERS = ("create_task", "ensure_future")
# Tasks that somebody awaits, or that note their own failure, with who does.
AWAITED = {
    "gateway/edge/response_cycle.py": "the request that is watched",
    "gateway/inference/tier_attempt.py": "the request, which waits for it and gets its error",
    "gateway/inference/api/sending.py": "the connection that is sent to",
    "gateway/inference/shared_generation.py": "its readers get its error",
    "gateway/runtime/cores/engine.py": "the start of the tiers",
    "gateway/admin/overview.py": "the page that asks, and those that share its look",
    "gateway/admin/tryout.py": "the page that asks",
    "gateway/runtime/engines/engine_child.py": "the owner of the program",
    "gateway/runtime/engines/engine_process.py": "the owner of the program",
    "gateway/batches/line_worker.py": "its callback logs the line that was given up",
    "gateway/runtime/chat_queue/chat_worker.py": "its callback logs the chat that was given up; sending is awaited",
    "gateway/processes/supervisor.py": "its failure ends the whole command",
    "gateway/telemetry/readings.py": "the pages that look, which show the last figures",
    "gateway/operations/running_figures.py": "the next scrape, which shows its last figures",
    "gateway/telemetry/overview.py": "the next look",
    "inference_core/io/background_tasks.py": "the supervisor itself",
    "inference_core/transport/server.py": "the process of the core",
    "quality/learning/learning.py": "the page that asks",
    "quality/monitor/worker.py": "the one who drains the loop",
    "quality/retraining/retrain.py": "the retraining",
    "quality/store/drivers.py": "the closing of the database, which leaves a stuck thread alone",
    "tiers/deltas.py": "the reader of the stream",
    "tiers/replicas/hedged_request.py": "the request",
}


async def test_a_task_that_fails_is_logged_shown_and_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_SECONDS", 0.0)
    runs, goes_on = 0, asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise OverflowError("a secret text")
        goes_on.set()
        await asyncio.sleep(3600)

    with caplog.at_level(logging.ERROR):
        task = repeated(work, "watch of the test")
        await asyncio.wait_for(goes_on.wait(), 120)
    assert task_problems() == {"task watch of the test": "failed (OverflowError), 2 times in a row; the log has more"}
    assert sum("watch of the test" in record.getMessage() for record in caplog.records) == 2
    monkeypatch.setattr(background_tasks, "STEADY_SECONDS", -1.0)
    assert task_problems() == {}
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_the_end_of_something_else_does_not_end_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_SECONDS", 0.0)
    awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    awaited.cancel()
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await awaited

    await asyncio.wait_for(repeated(work, "waits for another"), 120)
    assert runs == 2


async def test_a_task_ends_when_it_is_cancelled_although_its_work_makes_an_error_of_that() -> None:
    waits = asyncio.Event()

    async def work() -> None:
        try:
            waits.set()
            await asyncio.sleep(3600)
        finally:
            raise TimeoutError

    task = repeated(work, "watch of the test")
    await waits.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert task_problems() == {}


async def test_a_task_that_ends_by_itself_or_is_cancelled_has_not_failed() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    await repeated(work, "ends")
    waits = repeated(lambda: asyncio.sleep(3600), "waits")
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    assert task_problems() == {}


async def test_work_that_is_done_once_never_raises_and_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("a secret text")

    await once(fails(), "an errand")
    shown = task_problems()
    background_tasks._failed.clear()
    assert shown == {"task an errand": "failed (ValueError); the log has more"}
    assert any("an errand" in record.getMessage() for record in caplog.records)


def test_every_task_of_the_packages_is_supervised_or_awaited() -> None:
    found = set()
    for package in ("gateway", "quality", "classifier", "tiers", "inference_core"):
        for file in (ROOT / package).rglob("*.py"):
            source = file.read_text()
            if not any(name in source for name in STARTERS):
                continue
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Attribute) and node.attr in STARTERS:
                    owner = node.value.id if isinstance(node.value, ast.Name) else ""
                    if owner != "group":
                        found.add(str(file.relative_to(ROOT)))
    assert found == AWAITED.keys()
