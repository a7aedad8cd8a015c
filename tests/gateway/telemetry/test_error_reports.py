"""Unexpected errors become reports, in the log and at a tracker, and neither quotes a request."""

import gzip
import io
import json
import logging
import sys
import threading
import zlib
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from gateway import __version__
from gateway.base.configuration import load_settings
from gateway.base.logs import configure_logging
from gateway.base.settings import Settings, SettingsError
from gateway.telemetry.error_reports import ErrorReport, report_errors
from gateway.telemetry.sentry import sentry_sender
from inference_core.engine.core import Core
from inference_core.errors import CoreError
from inference_core.transport.core_thread import ThreadCoreClient
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.http_server import Asked, Reply, answering
from tests.tiers.remote.recording_proxy import recording_proxy

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CANARY = "xylophone-canary"
TRACED = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}


class Tracker:
    """Accepts envelopes, and keeps their events with the headers."""

    def __init__(self) -> None:
        self.received: SimpleQueue[tuple[dict[str, Any], bytes]] = SimpleQueue()
        self.dsn = ""

    def take(self, asked: Asked) -> Reply:
        encoding = asked.headers["content-encoding"]
        unpacked = {"gzip": gzip.decompress, None: bytes}.get(encoding, zlib.decompress)
        body = unpacked(asked.body)
        lines = body.split(b"\n")
        headers, event = json.loads(lines[1]), json.loads(lines[2])
        assert headers["type"] == "event"
        self.received.put((event, body + str(asked.headers).encode()))
        return Reply(b"{}")


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    tracker = Tracker()
    with answering(tracker.take) as url:
        tracker.dsn = f"{url.replace('//', '//publickey@')}/7"
        yield tracker


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
    body = {"model": "auto", "messages": [{"role": "user", "content": f"Say {CANARY}."}]}
    await gateway.http.post("/v1/chat/completions", json=body, headers=TRACED)


def broken(gateway: RunningGateway) -> None:
    """Tiers with a bug that quotes the prompt, the second as well as the first."""
    for tier in gateway.tiers:
        tier.fail_at, tier.error = 0, KeyError(f"{CANARY} was odd")


async def test_a_bug_in_a_request_is_one_report_with_its_trace_and_without_the_prompt(
    settings: Settings, stream: io.StringIO
) -> None:
    reports: list[ErrorReport] = []
    report_errors("all", reports.append)
    async with running_gateway(settings) as gateway:
        broken(gateway)
        await asked(gateway)
    first, second = reports
    assert [(report.tier, report.trace_id, report.role) for report in reports] == [
        (1, TRACE_ID, "all"),
        (2, TRACE_ID, "all"),
    ]
    assert first.request_id == second.request_id
    assert first.request_id.startswith("chatcmpl-")
    raised = first.raised[0]
    assert (raised.module, raised.type) == ("builtins", "KeyError")
    assert raised.frames[-1].file.endswith("scripted_tier.py")
    assert CANARY not in repr(reports)

    reported = [line for line in lines_of(stream) if "event_id" in line]
    assert {line["event_id"] for line in reported} == {first.event_id, second.event_id}
    assert len(reported) > len(reports), "the request's own line names the same event"
    assert {(line["trace_id"], line["release"], line["role"]) for line in reported} == {
        (TRACE_ID, f"aio-gateway@{__version__}", "all")
    }
    assert CANARY not in stream.getvalue()


async def test_a_tracker_gets_an_event_with_the_trace_and_no_prompt(
    settings: Settings, stream: io.StringIO, tracker: Tracker
) -> None:
    pytest.importorskip("sentry_sdk")
    report_errors("gateway", sentry_sender(tracker.dsn))
    async with running_gateway(settings) as gateway:
        broken(gateway)
        await asked(gateway)
    event, sent = tracker.received.get(timeout=30)
    assert event["contexts"]["trace"]["trace_id"] == TRACE_ID
    assert event["tags"]["role"] == "gateway"
    assert event["tags"]["tier"] == "1"
    assert event["tags"]["request_id"].startswith("chatcmpl-")
    assert event["release"] == f"aio-gateway@{__version__}"
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("KeyError", "")
    frames = exception["stacktrace"]["frames"]
    assert frames[-1]["filename"].endswith("scripted_tier.py")
    assert not any({"vars", "context_line", "pre_context"} & frame.keys() for frame in frames)
    assert not {"request", "user", "breadcrumbs", "modules", "extra"} & event.keys()
    assert CANARY.encode() not in sent
    assert event["event_id"] in {line.get("event_id") for line in lines_of(stream)}


async def test_a_core_that_dies_of_a_bug_is_reported(stream: io.StringIO) -> None:
    reports: list[ErrorReport] = []
    report_errors("core cpu", reports.append)

    def load() -> Core:
        raise ZeroDivisionError("of weights")

    client = ThreadCoreClient(load)
    with pytest.raises(CoreError):
        await client.start()
    await client.close()
    assert [(report.role, report.raised[0].type) for report in reports] == [("core cpu", "ZeroDivisionError")]


def test_what_ends_a_thread_uncaught_is_reported_and_what_interrupts_is_not(stream: io.StringIO) -> None:
    reports: list[ErrorReport] = []
    report_errors("all", reports.append)

    def fail() -> None:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    (report,) = reports
    assert (report.level, [raised.type for raised in report.raised]) == ("fatal", ["ValueError", "KeyError"])


def test_an_error_that_was_foreseen_is_a_line_and_no_report(stream: io.StringIO) -> None:
    reports: list[ErrorReport] = []
    report_errors("all", reports.append)
    logging.getLogger("gateway").error("the database is away")
    logging.getLogger("gateway").warning("tried again", exc_info=ValueError("x"))
    assert not reports
    assert "event_id" not in stream.getvalue()


@pytest.mark.parametrize("dsn", ["http://key@169.254.169.254/1", "http://key@metadata.google.internal/1", "key"])
def test_no_report_is_sent_to_a_metadata_server_or_nowhere(dsn: str) -> None:
    with pytest.raises(SettingsError, match="AIO_ERROR_REPORT_DSN"):
        sentry_sender(dsn)


def test_an_address_without_a_key_is_no_dsn() -> None:
    pytest.importorskip("sentry_sdk")
    with pytest.raises(SettingsError, match="AIO_ERROR_REPORT_DSN is no DSN"):
        sentry_sender("http://127.0.0.1/1")


def test_without_the_library_a_tracker_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(SettingsError, match=r"aio-gateway\[sentry\]"):
        sentry_sender("http://key@127.0.0.1/1")


def test_a_dsn_is_never_shown() -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({}, error_report_dsn=["http://secret@127.0.0.1/1"])
    assert "secret" not in str(refused.value)


def test_a_report_for_a_tracker_of_this_machine_goes_through_no_proxy(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentry_sdk")
    monkeypatch.delenv("NO_PROXY", raising=False)
    report = ErrorReport(event_id="0" * 32, timestamp=1.0, level="error", logger="x", raised=[], role="gateway")
    with recording_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.place}")
        sentry_sender(tracker.dsn)(report)
        event, _ = tracker.received.get(timeout=30)
        assert proxy.asked == []
    assert event["event_id"] == report.event_id
