"""The process that sends alerts, ready for every order: to import Apprise and its plugins takes a second, which each
order of a gateway takes again. Tests of that process itself start it as gateways do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from threading import Lock
from typing import Any

import msgspec
import pytest

from gateway.telemetry import alert_channels

# Each order is carried out by a copy of the process, which `main` changes for good.
_PROGRAM = """
import io, json, os, sys
import apprise
from gateway.telemetry import alert_sender
apprise.Apprise.instantiate("json://127.0.0.1")
for line in sys.stdin:
    environment, order = json.loads(line)
    child = os.fork()
    if not child:
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = io.StringIO(json.dumps(order))
        alert_sender.main()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print(flush=True)
"""


class ReadySender:
    """Carries out one order at a time, as `alert_channels._carry_out` does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = Lock()

    def carry_out(self, order: dict[str, Any]) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(json.dumps([dict(os.environ), order]) + "\n")
            stdin.flush()
            answer = stdout.readline()
        problem = msgspec.json.decode(answer, type=str | None)
        if problem is not None:
            raise alert_channels.AlertNotSentError(problem)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def _ready_sender() -> Iterator[ReadySender]:
    sender = ReadySender()
    yield sender
    sender.close()


@pytest.fixture
def ready_alert_sender(_ready_sender: ReadySender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gateways of the test send their alerts by a process that is there already."""
    monkeypatch.setattr(alert_channels, "_carry_out", _ready_sender.carry_out)
