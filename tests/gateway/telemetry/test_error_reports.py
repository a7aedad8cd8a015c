"""Unexpected errors become reports in the log, and none quotes a request."""

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gateway import __version__
from gateway.base.logs import configure_logging
from gateway.base.settings import Settings
from gateway.telemetry.error_reports import report_errors
from inference_core.engine.core import Core
from inference_core.errors import CoreError
from inference_core.transport.core_thread import ThreadCoreClient
from tests.support.app import RunningGateway, running_gateway

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CANARY = "xylophone-canary"
TRACED = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The process's log as JSON lines; its hooks are restored."""
    written = io.StringIO()
    root = logging.getLogger()
    handlers, hooks = list(root.handlers), (sys.excepthook, threading.excepthook)
    root.handlers = []
    monkeypatch.setattr("sys.stderr", written)
    configure_logging("info", "json")
    yield written
    root.handlers, (sys.excepthook, threading.excepthook) = handlers, hooks


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def asked(gateway: RunningGateway) -> None:
    await gateway.ask(f"Say {CANARY}.", headers=TRACED)


def broken(gateway: RunningGateway) -> None:
    """Tiers with a bug that quotes the prompt, the second as well as the first."""
    for tier in gateway.tiers:
        tier.fail_at, tier.error = 0, KeyError(f"{CANARY} was odd")


def reports_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [line for line in lines_of(stream) if "event_id" in line]


async def test_a_bug_in_a_request_is_one_report_with_its_trace_and_without_the_prompt(
    settings: Settings, stream: io.StringIO
) -> None:
    report_errors("all")
    async with running_gateway(settings) as gateway:
        broken(gateway)
        await asked(gateway)
    reports = reports_of(stream)
    by_event = {report["event_id"]: report for report in reversed(reports)}
    assert len(by_event) == 2 < len(reports), "the request's own line names the same event"
    assert {report["tier"] for report in reports if "tier" in report} == {1, 2}
    assert {(line["trace_id"], line["release"], line["role"]) for line in reports} == {
        (TRACE_ID, f"aio-gateway@{__version__}", "all")
    }
    (request_id,) = {report["request_id"] for report in reports}
    assert request_id.startswith("chatcmpl-")
    assert all("KeyError" in str(report) and "scripted_tier.py" in str(report) for report in by_event.values())
    assert CANARY not in stream.getvalue()


async def test_a_core_that_dies_of_a_bug_is_reported(stream: io.StringIO) -> None:
    report_errors("core cpu")

    def load() -> Core:
        raise ZeroDivisionError("of weights")

    client = ThreadCoreClient(load)
    with pytest.raises(CoreError):
        await client.start()
    await client.close()
    (report,) = reports_of(stream)
    assert (report["role"], "ZeroDivisionError" in str(report)) == ("core cpu", True)


def test_what_ends_a_thread_uncaught_is_reported_and_what_interrupts_is_not(stream: io.StringIO) -> None:
    report_errors("all")

    def fail() -> None:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    (report,) = reports_of(stream)
    assert report["level"] == "critical"
    assert "ValueError" in str(report)
    assert "KeyError" in str(report)


def test_an_error_that_was_foreseen_is_a_line_and_no_report(stream: io.StringIO) -> None:
    report_errors("all")
    logging.getLogger("gateway").error("the database is away")
    logging.getLogger("gateway").warning("tried again", exc_info=ValueError("x"))
    assert reports_of(stream) == []
