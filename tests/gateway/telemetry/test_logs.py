"""Logs: a line stays one line whatever callers send, has its request's and trace's ids, and quotes no caller."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gateway.base.logs import LOG_CONTEXT, JsonFormatter, LogContext, TextFormatter, configure_logging
from gateway.base.settings import Settings
from tests.support.app import RunningGateway, running_gateway

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CANARY = "xylophone-canary"


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log of a process that logs everything, as JSON lines."""
    written = io.StringIO()
    root = logging.getLogger()
    handlers = list(root.handlers)
    root.handlers = []
    monkeypatch.setattr("sys.stderr", written)
    configure_logging("debug", "json")
    yield written
    root.handlers = handlers


def line_of(message: str, *arguments: object, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("gateway.test", logging.WARNING, __file__, 1, message, arguments, info)
    for name, value in extra.items():
        setattr(record, name, value)
    return record


def raised() -> BaseException:
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise ValueError(f"quoting {CANARY}") from error
    except ValueError as error:
        return error


def in_request(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    token = LOG_CONTEXT.set(LogContext("chatcmpl-1", TRACE_ID))
    try:
        return formatter.format(record)
    finally:
        LOG_CONTEXT.reset(token)


HOSTILE = 'tier "x"\r\n2026-01-01 ERROR forged \x1b[31mred\x00 \u2028end \ud800'


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_hostile_message_stays_one_line(formatter: logging.Formatter) -> None:
    text = formatter.format(line_of("failed: %s", HOSTILE))
    assert len(text.splitlines()) == 1
    assert not any(ord(character) < 0x20 for character in text)


def test_json_lines_name_the_event_and_its_request() -> None:
    shown = json.loads(in_request(JsonFormatter(), line_of("tier %d failed", 3, fields={"tier": 3})))
    assert shown["message"] == "tier 3 failed"
    assert (shown["level"], shown["logger"], shown["tier"]) == ("warning", "gateway.test", 3)
    assert (shown["request_id"], shown["trace_id"]) == ("chatcmpl-1", TRACE_ID)
    assert shown["time"].endswith("Z")
    outside = json.loads(JsonFormatter().format(line_of("starting")))
    assert "request_id" not in outside


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_exception_in_a_request_is_its_type_and_its_stack_without_words(formatter: logging.Formatter) -> None:
    text = in_request(formatter, line_of("broken", error=raised()))
    assert CANARY not in text
    for part in ("ValueError", "KeyError", "in raised", "test_logs.py", "chatcmpl-1", TRACE_ID):
        assert part in text
    assert f"quoting {CANARY}" in formatter.format(line_of("starting failed", error=raised()))


async def asked(gateway: RunningGateway, **headers: str) -> None:
    await gateway.ask(f"Say {CANARY}-prompt.", headers=headers, stream=True)


async def test_a_run_with_failures_logs_no_prompt_no_answer_and_no_key(settings: Settings, stream: io.StringIO) -> None:
    key = f"{CANARY}-key-6f0be4c19a7d2583c1e94b7d05fa3862"
    keyed = msgspec.structs.replace(settings, api_keys=f"ann={key}", log_requests=True)
    async with running_gateway(keyed) as gateway:
        bearer = {"authorization": f"Bearer {key}"}
        for tier in gateway.tiers:
            tier.words = (f"{CANARY}-answer",)
        traced = bearer | {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
        await asked(gateway, **traced)
        gateway.tier(1).fail_at, gateway.tier(1).error = 0, RuntimeError(f"{CANARY}-prompt was odd")
        await asked(gateway, **traced)
        for tier in gateway.tiers:
            tier.fail_at, tier.error = 0, ValueError(f"{CANARY}-prompt was odd")
        await asked(gateway, **traced)
        gateway.classifier.error = RuntimeError(f"{CANARY}-prompt")
        await asked(gateway, **bearer)
        await asked(gateway, authorization=f"Bearer {CANARY}-key-wrong")
        await asyncio.sleep(0)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert not [line for line in lines if CANARY in json.dumps(line)]
    ours = [line for line in lines if "request_id" in line]
    errors = [line for line in ours if line["level"] == "error" and "error" in line]
    assert {line["error"] for line in errors} >= {"RuntimeError", "ValueError"}
    assert all(line["stack"] for line in errors)
    finished = [line for line in lines if line["logger"] == "aio.requests"]
    assert [line["status"] for line in finished] == ["ok", "ok", "error", "error"]
    assert [line.get("trace_id") for line in finished] == [TRACE_ID] * 3 + [None]
    assert {line["key"] for line in finished} == {"ann"}
    by_request = {line["request_id"]: line.get("trace_id") for line in errors}
    assert TRACE_ID in by_request.values()
