"""A loop over stored work: until there is none, again when it is woken, and in spite of errors."""

import asyncio
import logging

import pytest

from quality.monitor.worker import WorkLoop


class Work:
    """`left`: steps of work that are there; an exception among them is raised."""

    def __init__(self, *left: bool | Exception) -> None:
        self.left, self.steps = list(left), 0
        self.third = asyncio.Event()

    async def step(self) -> bool:
        self.steps += 1
        if self.steps == 3:
            self.third.set()
        for _ in range(5):
            await asyncio.sleep(0)
        found = self.left.pop(0) if self.left else False
        if isinstance(found, Exception):
            raise found
        return found


async def test_it_works_until_nothing_is_left_and_again_when_it_is_woken() -> None:
    work = Work(True, True)
    loop = WorkLoop("work", work.step, poll_seconds=1e6)
    await loop.start()
    await loop.start()
    await loop.drain()
    assert (work.left, work.steps) == ([], 3)
    work.left += [True]
    await loop.drain()
    assert (work.left, work.steps) == ([], 5)
    await loop.close()
    await loop.close()
    with pytest.raises(RuntimeError, match="work is not running"):
        await loop.drain()


async def test_without_being_woken_it_looks_again_after_a_while() -> None:
    work = Work()
    loop = WorkLoop("work", work.step, poll_seconds=0.0)
    await loop.start()
    await asyncio.wait_for(work.third.wait(), 60)
    await loop.close()


async def test_a_nudge_wakes_it() -> None:
    work = Work()
    loop = WorkLoop("work", work.step, poll_seconds=1e6)
    await loop.start()
    await loop.drain()
    assert work.steps == 1
    work.left += [True]
    loop.nudge()
    await asyncio.wait_for(work.third.wait(), 60)
    await loop.close()


async def test_an_error_is_in_the_log_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(OSError("no database"), True)
    loop = WorkLoop("work", work.step, poll_seconds=1e6)
    await loop.start()
    await loop.drain()
    assert "work could not work; it tries again within 1000000.0 s" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR
    await loop.drain()
    assert work.left == []
    await loop.close()


async def test_waiting_for_a_loop_that_is_closed_raises() -> None:
    entered, never = asyncio.Event(), asyncio.Event()

    async def step() -> bool:
        entered.set()
        await never.wait()
        return False

    loop = WorkLoop("work", step, poll_seconds=1e6)
    await loop.start()
    await entered.wait()
    waiting = asyncio.create_task(loop.drain())
    await asyncio.sleep(0)
    await loop.close()
    with pytest.raises(RuntimeError, match="work was stopped"):
        await waiting
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing waits any more"
    await loop.start()
    await loop.close()


async def test_a_loop_is_closed_once_its_step_has_ended() -> None:
    entered, ended = asyncio.Event(), False

    async def step() -> bool:
        nonlocal ended
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended = True
        return False

    loop = WorkLoop("work", step, poll_seconds=1e6)
    await loop.start()
    await entered.wait()
    await loop.close()
    assert ended


@pytest.mark.parametrize("turns", range(5))
async def test_a_loop_that_was_just_woken_is_closed(turns: int) -> None:
    work = Work()
    loop = WorkLoop("work", work.step, poll_seconds=1e6)
    await loop.start()
    await loop.drain()
    loop.nudge()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await loop.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
