"""The matrix of APIs, servers, streams and cases: which fields of requests and answers are lost or changed in each
(docs/results/fidelity.md)."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec

from benchmarks.gateway.fidelity.clients import PATHS, THINKING, asked, next_step, sent, whole_answer
from benchmarks.gateway.fidelity.dialects import Body, Facts, answer_facts, differences, request_facts
from benchmarks.gateway.fidelity.provider import (
    CACHED,
    OUTPUT,
    PROMPT,
    RETRY_AFTER,
    TEXT,
    THOUGHT,
    Provider,
    dialect_of,
    recording_provider,
)
from benchmarks.gateway.fidelity.wires import BY_NAME, KEYS, catalogue, groups, installed_wires
from benchmarks.running_server import running_server
from gateway.base.settings import Settings
from gateway.cli.options import echo_answer, json_option, staged_progress

CASES = ("plain", "tools", "thinking", "moved", "lenient", "half", "busy")
SERVERS = tuple(wire.name for wire in installed_wires())
# Of a call whose thoughts are elsewhere, by Google's own rule.
_NO_SEAL = "skip_thought_signature_validator"
# What AIO says itself of each request: which model answers, how it is sent, and that nothing is stored elsewhere.
_OWN = ("model", "stream", "store", "include")
_ITEM_IDS = ("id", "status")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One way through the matrix. `lost`: fields that came to the server, or back to the client, as others or not at
    all; `checked`: how many facts were compared."""

    api: str
    server: str
    stream: bool
    case: str
    checked: int
    lost: list[str]


async def matrix(url: str, provider: Provider, cases: Sequence[str], servers: Sequence[str]) -> AsyncIterator[Cell]:
    """Every cell through the gateway at `url`, one after another: the provider's record has no other request in it. The
    gateway's models have the names of the wires, with `-b` for the second one of each."""
    headers = {"authorization": "Bearer unused", "x-api-key": "unused", "x-aio-cache": "off"}
    async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as http:
        asked_again: dict[str, float] = {}
        for case, api, stream, server in itertools.product(cases, PATHS, (False, True), servers):
            if case == "busy":
                # So long nothing is sent to a busy server.
                await asyncio.sleep(max(0.0, asked_again.get(server, 0.0) - time.monotonic()))
            walk = _Walk(http, provider, api, server, case, stream)
            await walk.run()
            asked_again[server] = time.monotonic() + RETRY_AFTER + 0.1
            yield walk.cell()


class _Walk:
    """One cell as it is measured."""

    def __init__(
        self, http: httpx.AsyncClient, provider: Provider, api: str, server: str, case: str, stream: bool
    ) -> None:
        self._http, self._provider = http, provider
        self._api, self._server, self._case, self._stream = api, server, case, stream
        self._lost: list[str] = []
        self._checked = 0
        self._own_ids: dict[str, str] = {}

    def cell(self) -> Cell:
        return Cell(
            api=self._api, server=self._server, stream=self._stream, case=self._case, checked=self._checked,
            lost=self._lost,
        )  # fmt: skip

    async def run(self) -> None:
        """Hold the session. What a broken gateway sends may have a form that no client or server of the API knows."""
        try:
            await self._held()
        except (LookupError, TypeError, AttributeError, ValueError):
            self._note(["the API's form"])

    async def _held(self) -> None:
        body = asked(self._api, self._server, self._case, stream=self._stream)
        answer = await self._asked(body)
        if self._case in ("busy", "half"):
            return
        if answer is None:
            self._lost.append("answer")
            return
        thinks = self._case in THINKING
        self._check_answer(answer, "calls" if "tools" in body else "stop", thinks)
        if "tools" not in body:
            return
        sealed = list(self._provider.state)
        model = f"{self._server}-b" if self._case == "moved" else self._server
        step = next_step(self._api, body, answer, model)
        if await self._asked(step, [] if self._case == "moved" else sealed) is None:
            self._lost.append("second answer")

    async def _asked(self, body: Body, seals: Sequence[str] = ()) -> Body | None:
        """Ask, compare what the server got with what was asked, and return the answer; None if it is not whole."""
        before = len(self._provider.calls)
        path, fields = sent(self._api, body)
        told = await self._http.post(path, json=fields)
        if len(self._provider.calls) == before:
            self._lost.append(f"request ({told.status_code})")
            return None
        path, got = self._provider.calls[-1]
        self._check_request(dialect_of(path), body, got, seals, told.headers.get("x-aio-ignored-fields", ""))
        answer = whole_answer(self._api, told.text, stream=self._stream) if told.status_code == 200 else None
        if self._case == "busy":
            self._note([] if told.status_code in (429, 503, 529) else ["status of a busy server"])
            self._note([] if told.headers.get("retry-after") == str(RETRY_AFTER) else ["retry-after"])
        elif self._case == "half":
            self._note([] if answer is None else ["the end of a broken answer"])
        return answer

    def _check_request(self, dialect: str, body: Body, got: Body, seals: Sequence[str], named: str) -> None:
        if dialect == self._api and dialect != "chat" and self._server in ("anthropic", "openai", "gemini"):
            expected = {name: value for name, value in body.items() if name not in (*_OWN, "stream_options")}
            actual = {name: value for name, value in got.items() if name not in (*_OWN, "stream_options")}
            if dialect == "responses":
                expected["input"], actual["input"] = _without_ids(expected["input"]), _without_ids(actual["input"])
            if self._case == "moved":
                expected = _without_seals(expected, dialect)
                actual = _without_seals(actual, dialect) if dialect == "gemini" else actual
                actual, expected = _alike_but_thinking(actual, expected)
            self._note([f"request.{path}" for path in differences(expected, actual)])
        else:
            expected, actual = request_facts(self._api, body), request_facts(dialect, got)
            for call in (*expected["calls"], *expected["results"]):
                call[0] = self._own_ids.get(call[0], call[0])
            expected["seals"], actual["seals"] = list(seals), [seal for seal in actual["seals"] if seal != _NO_SEAL]
            if "thinking" in named:
                # Said to the client: the server knows no budget of thoughts.
                actual["thinks"] = expected["thinks"]
            if self._case == "moved" and expected["results"]:
                # A budget of thoughts has to begin the turn with them, which the other model may not see.
                actual["thinks"] = expected["thinks"]
            lost = differences(_comparable(expected, dialect), _comparable(actual, dialect))
            self._note([f"request.{path}" for path in lost])

    def _check_answer(self, answer: Body, end: str, thinks: bool) -> None:
        dialect = dialect_of(self._provider.calls[-1][0])
        calls: list[list[Any]] = [
            [None if dialect == "gemini" else i, name, arguments] for i, name, arguments in self._provider.made_calls()
        ]
        expected = {
            "text": TEXT if end == "calls" else "Both are done.",
            "thoughts": THOUGHT if thinks and self._shows_thoughts else "",
            "calls": calls if end == "calls" else [],
            "end": end,
            "usage": {"prompt": PROMPT, "cached": CACHED, "output": OUTPUT},
        }
        actual = answer_facts(self._api, answer)
        self._own_ids = dict(zip([call[0] for call in actual["calls"]], [call[0] for call in calls], strict=False))
        if self._api == "messages" and len(self._own_ids) == len(calls):
            # For these clients ids are made unique, which the next request has to undo.
            actual["calls"] = [[self._own_ids[call_id], *more] for call_id, *more in actual["calls"]]
        if dialect == "gemini":
            actual["calls"] = [[None, name, arguments] for _, name, arguments in actual["calls"]]
        self._note([f"answer.{path}" for path in differences(expected, actual)])

    @property
    def _shows_thoughts(self) -> bool:
        """Whether the server's answers have thoughts in a form that can be shown."""
        return BY_NAME[self._server].state != "extra_content" and not (
            self._server in ("openai", "azure") and dialect_of(self._provider.calls[-1][0]) == "chat"
        )

    def _note(self, lost: list[str]) -> None:
        self._checked += 1
        self._lost += [path for path in lost if path not in self._lost]


def _comparable(facts: Facts, dialect: str) -> Facts:
    """Facts without what the server's API cannot say: Gemini's calls have ids of its own."""
    texts: list[list[str]] = []
    for role, text in facts["texts"]:
        if texts and texts[-1][0] == role:
            texts[-1][1] += text
        else:
            texts.append([role, text])
    same = facts | {"texts": texts}
    if dialect != "gemini":
        return same
    return same | {name: [[None, *call[1:]] for call in facts[name]] for name in ("calls", "results")}


def _without_ids(items: Sequence[Body]) -> list[Body]:
    return [{name: value for name, value in item.items() if name not in _ITEM_IDS} for item in items]


def _without_seals(body: Body, dialect: str) -> Body:
    if dialect == "responses":
        return body | {"input": [item for item in body["input"] if item["type"] != "reasoning"]}
    if dialect == "gemini":
        turns = [
            turn | {"parts": [_without_signature(part) for part in turn["parts"] if not part.get("thought")]}
            for turn in body["contents"]
        ]
        return body | {"contents": turns}
    sealed = ("thinking", "redacted_thinking")
    turns = [
        turn
        if isinstance(turn["content"], str)
        else turn | {"content": [block for block in turn["content"] if block["type"] not in sealed]}
        for turn in body["messages"]
    ]
    return body | {"messages": turns}


def _without_signature(part: Body) -> Body:
    return {name: value for name, value in part.items() if name != "thoughtSignature"}


def _alike_but_thinking(actual: Body, expected: Body) -> tuple[Body, Body]:
    if len(expected.get("messages", ())) < 3:
        return actual, expected
    return (
        {name: value for name, value in actual.items() if name != "thinking"},
        {name: value for name, value in expected.items() if name != "thinking"},
    )


@asynccontextmanager
async def _gateway(provider: Provider, servers: Sequence[str]) -> AsyncIterator[str]:
    """The URL of AIO in a process of its own, in front of the provider."""
    with tempfile.TemporaryDirectory(prefix="aio-fidelity-") as folder:
        catalog = Path(folder) / "fidelity.toml"
        catalog.write_text(catalogue(provider.origin, provider.ollama, [BY_NAME[name] for name in servers]))
        keys = dict(KEYS)
        if "vertex" in servers:
            account = Path(folder) / "google.json"
            account.write_text(provider.service_account())
            keys["GOOGLE_APPLICATION_CREDENTIALS"] = str(account)
        settings = Settings(data_dir=folder, catalog=str(catalog), monitor=False)
        async with running_server(settings, keys | {"AIO_MONITOR": "false"}) as server:
            yield server.url


async def measured(
    cases: Sequence[str] = CASES, progress: Callable[[str, float], None] = lambda stage, share: None
) -> list[Cell]:
    """All cells of AIO."""
    total = 2 * len(PATHS) * len(cases) * len(SERVERS)
    cells: list[Cell] = []
    async with recording_provider() as provider:
        for group in groups(SERVERS):
            async with _gateway(provider, group) as url:
                async for cell in matrix(url, provider, cases, group):
                    cells.append(cell)
                    progress(f"{cell.api} to {cell.server}, {cell.case}", len(cells) / total)
    return cells


@click.command()
@json_option
def fidelity(as_json: bool) -> None:
    """Chat, Messages, Responses and Gemini before the servers of all wires, whole and streamed: sessions of two steps
    with tools and thoughts, a change of the model, and faults. One line for each cell with a loss."""
    with staged_progress("a provider and a gateway") as show:
        cells = asyncio.run(measured(progress=show))
    lines = [
        f"{cell.api} to {cell.server}, {cell.case}, {'streamed' if cell.stream else 'whole'}: {', '.join(cell.lost)}"
        for cell in cells
        if cell.lost
    ]
    lost = sum(len(cell.lost) for cell in cells)
    lines.append(f"{lost} fields lost or changed; {len(cells) - len(lines)} of {len(cells)} cells are whole")
    echo_answer(as_json, cells, "\n".join(lines))
