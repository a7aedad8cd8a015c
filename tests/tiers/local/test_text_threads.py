"""Threads for long texts: few at a time, never all for one caller, and fair turns."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest
import pytest_asyncio

from inference_core.io.background_tasks import require_wanted
from tests.polling import eventually
from tiers.local.text_threads import TextThreads, usual_threads


class Work:
    """Pieces of work that end on request."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._go = {name: threading.Event() for name in "abcdefgh"}

    def piece(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.begun.append(name)
            assert self._go[name].wait(60)
            return name

        return work

    def end(self, *names: str) -> None:
        for name in names:
            self._go[name].set()


@pytest.fixture
def work() -> Work:
    return Work()


@pytest_asyncio.fixture
async def threads(work: Work) -> AsyncIterator[TextThreads]:
    two = TextThreads(2)
    yield two
    work.end(*"abcdefgh")
    two.close()


async def test_work_runs_on_a_thread_and_gives_what_it_gives(threads: TextThreads) -> None:
    assert await threads.run("one", threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run("one", lambda: 1 // 0)
    await eventually(lambda: threads.running == 0)


class Text:
    """A long text that work refuses."""

    def refused(self) -> None:
        raise ValueError(id(self))


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Garbage of cycles stays, as it does for minutes where most objects live long."""
    gc.disable()
    yield
    gc.enable()


async def test_a_text_that_is_refused_is_freed_without_a_collection(threads: TextThreads, uncollected: None) -> None:
    text = Text()
    there = weakref.ref(text)
    work = partial(Text.refused, text)
    del text
    try:
        await threads.run("one", work)
    except ValueError:
        del work
    await eventually(lambda: there() is None)


async def test_a_caller_never_has_all_threads(threads: TextThreads, work: Work) -> None:
    mine = [asyncio.create_task(threads.run("one", work.piece(name))) for name in "abc"]
    await eventually(lambda: work.begun == ["a"])
    assert threads.waiting == 2
    other = asyncio.create_task(threads.run("two", work.piece("d")))
    await eventually(lambda: work.begun == ["a", "d"])
    work.end("d")
    assert await other == "d"
    assert (threads.running, work.begun) == (1, ["a", "d"])
    work.end("a", "b", "c")
    assert await asyncio.gather(*mine) == ["a", "b", "c"]


async def test_callers_who_wait_have_turns(threads: TextThreads, work: Work) -> None:
    asked = [("one", "a"), ("two", "b"), ("one", "c"), ("one", "d"), ("two", "e"), ("three", "f")]
    tasks = [asyncio.create_task(threads.run(caller, work.piece(name))) for caller, name in asked]
    await eventually(lambda: work.begun == ["a", "b"])
    work.end("a")
    await eventually(lambda: len(work.begun) == 3)
    work.end("b")
    await eventually(lambda: len(work.begun) == 4)
    assert set(work.begun[2:]) <= {"c", "e", "f"}
    work.end(*"cdef")
    await asyncio.gather(*tasks)
    # The second text of the one who asked for most comes after the first of everybody.
    assert work.begun.index("d") > max(map(work.begun.index, "ef"))


async def test_who_leaves_while_it_waits_takes_no_turn(threads: TextThreads, work: Work) -> None:
    first, second, third = (asyncio.create_task(threads.run("one", work.piece(name))) for name in "abc")
    await eventually(lambda: work.begun == ["a"])
    second.cancel()
    work.end("a", "c")
    assert (await first, await third) == ("a", "c")
    assert work.begun == ["a", "c"]


async def test_a_thread_is_busy_until_its_work_ends_even_if_the_caller_leaves(threads: TextThreads, work: Work) -> None:
    first = asyncio.create_task(threads.run("one", work.piece("a")))
    await eventually(lambda: work.begun == ["a"])
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(threads.run("one", work.piece("b")))
    await eventually(lambda: threads.waiting == 1)
    assert work.begun == ["a"]
    work.end("a", "b")
    assert await second == "b"


async def test_work_whose_caller_left_ends_when_it_next_looks(threads: TextThreads, work: Work) -> None:
    done: list[str] = []

    def endless() -> None:
        work.piece("a")()
        require_wanted()
        done.append("all of it")

    first = asyncio.create_task(threads.run("one", endless))
    await eventually(lambda: work.begun == ["a"])
    first.cancel()
    await asyncio.wait([first])
    work.end("a")
    await eventually(lambda: threads.running == 0)
    assert done == []
    # The next piece of work on the same thread is of a caller who waits.
    assert await threads.run("one", lambda: [require_wanted()]) == [None]


@pytest.mark.parametrize(("processors", "threads"), [(1, 2), (4, 2), (6, 3), (64, 8)])
def test_half_of_the_processors_read_texts(processors: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiers.local.text_threads.usable_cpus", lambda: processors)
    assert usual_threads() == threads


async def test_what_work_has_left_is_cleared_when_none_is_under_way_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tiers.local.text_threads.QUIET_SECONDS", 0.0)
    cleared, goes_on = threading.Event(), threading.Event()
    threads = TextThreads(2, when_quiet=cleared.set)
    under_way = asyncio.create_task(threads.run("ann", goes_on.wait))
    try:
        # One thread is left, and takes its work in order: what the first end brought to it is done before the second.
        for _ in range(2):
            await threads.run("eve", lambda: None)
            await eventually(lambda: threads.running == 1)
            for _ in range(3):  # timers that are due
                await asyncio.sleep(0)
        assert not cleared.is_set()
    finally:
        goes_on.set()
    await under_way
    assert await asyncio.to_thread(cleared.wait, 30)
    threads.close()
