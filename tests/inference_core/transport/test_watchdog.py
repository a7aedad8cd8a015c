"""A stuck core is noticed, located and reported while it is stuck, and again when it goes on."""

import asyncio
import logging
import threading

import pytest
from scripted_core import ScriptedCore

from inference_core.protocol import CoreHealth
from inference_core.transport.core_thread import Watchdog
from inference_core.transport.event_client import EventClient
from tests.support.clock import Clock


class Reports(list[str | None]):
    """What a watchdog of 10 seconds on a virtual clock said."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.watchdog = Watchdog(10, self.append, self.clock)


def test_a_piece_of_work_is_reported_once_when_it_has_lasted_too_long() -> None:
    reports = Reports()
    reports.watchdog.begin()
    reports.clock.advance(10)
    reports.watchdog.check()
    assert reports == []
    reports.clock.advance(0.5)
    reports.watchdog.check()
    reports.watchdog.check()
    assert reports == ["no step has finished for 10.5 s"]


def test_a_late_return_is_reported_and_the_next_piece_is_timed_from_its_start() -> None:
    reports = Reports()
    for _ in range(2):
        reports.watchdog.begin()
        reports.clock.advance(11)
        reports.watchdog.check()
        reports.watchdog.end()
    assert reports == ["no step has finished for 11.0 s", None] * 2


def test_neither_many_short_pieces_nor_a_long_rest_are_reported() -> None:
    reports = Reports()
    for _ in range(5):
        reports.watchdog.begin()
        reports.clock.advance(9)
        reports.watchdog.check()
        reports.watchdog.end()
        reports.clock.advance(60)
        reports.watchdog.check()
    assert reports == []


def test_the_log_says_where_the_thread_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports()
    gate, inside = threading.Event(), threading.Event()

    def a_matrix_that_never_ends() -> None:
        reports.watchdog.start()
        reports.watchdog.begin()
        inside.set()
        gate.wait(60)
        reports.watchdog.stop()

    thread = threading.Thread(target=a_matrix_that_never_ends)
    thread.start()
    assert inside.wait(60)
    reports.clock.advance(11)
    with caplog.at_level(logging.ERROR):
        reports.watchdog.check()
    gate.set()
    thread.join()
    assert "a_matrix_that_never_ends" in caplog.text
    assert "gate.wait(60)" in caplog.text


async def test_clients_learn_that_the_core_is_stuck_and_that_it_goes_on(connect, ask, monkeypatch) -> None:
    """The held step is the only thing that can end the first wait, its end the only thing that can end the second."""
    heard, receive = asyncio.Event(), EventClient._receive

    def note(client, events) -> None:
        receive(client, events)
        if any(isinstance(event, CoreHealth) for event in events):
            heard.set()

    monkeypatch.setattr(EventClient, "_receive", note)
    core = ScriptedCore()
    client = await connect(lambda: core, watchdog_seconds=0.02)
    core.hold()
    answer = asyncio.create_task(anext(client.generate(ask(tokens=1))))
    while client.stuck is None:
        await asyncio.wait_for(heard.wait(), 60)
        heard.clear()
    assert "no step has finished" in client.stuck
    core.release()
    while client.stuck is not None:
        await asyncio.wait_for(heard.wait(), 60)
        heard.clear()
    assert (await answer).finish_reason == "length"
