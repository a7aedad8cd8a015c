"""Steps of agents are verified: the strongest tier answers the same messages with the same tools, and no call is
made. The tiers are servers on loopback, whose bytes are counted."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import delete, select

from migrations.tables.quality import tool_definitions, training_rows, verifications
from quality.monitor.answer_monitor import AnswerMonitor
from quality.verification.sampling import WHY_NOT, SamplingSettings
from quality.verification.training_rows import EncodedPrompt
from tests.gateway.operations.dashboard.browsing import with_user
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
CATALOG = """
name = "turns"

[[tiers]]
name = "home"
local = true
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.3 }}
capabilities = {{ vision = true, audio = true }}
remote = {{ base_url = "{home}", model = "home", max_context = 65536 }}

[[tiers]]
name = "best"
price = {{ input_usd_per_million = 10.0, output_usd_per_million = 30.0 }}
capabilities = {{ vision = true }}
remote = {{ base_url = "{best}", model = "best", max_context = 65536 }}
"""
EVERY = SamplingSettings(rates=(1.0, 1.0), least_attention=1.0, probe_rate=0.0, budget_share=1e9)
TOOL = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["path"],
        },
    },
}
STEP = [
    {"role": "user", "content": "What does the guide say?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call-0", "type": "function", "function": {"name": "list", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call-0", "content": "guide.md, notes.md"},
]
PIXEL = "data:image/png;base64,aGVsbG8="


async def encode(messages: list[dict[str, str]]) -> EncodedPrompt:
    return EncodedPrompt(feature_spec="test-1", embedding=b"", features=None)


class Scripted:
    """A server that answers every request with `says`: a text, or the arguments of calls of `read`."""

    def __init__(self) -> None:
        self.says: str | list[str] = "7"
        self.server = LoopbackServer(self._answer)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [call.body for call in self.server.calls]

    async def _answer(self, call: Call) -> None:
        text = self.says if isinstance(self.says, str) else None
        calls = [
            {"id": f"call-{n}", "type": "function", "function": {"name": "read", "arguments": arguments}}
            for n, arguments in enumerate([] if text is not None else self.says, start=1)
        ]
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        finish = "tool_calls" if calls else "stop"
        if not call.body.get("stream"):
            await call.whole(text, usage, finish, **({"tool_calls": calls} if calls else {}))
            return
        await call.begin()
        await call.chunk(
            text or "", **({"tool_calls": [{"index": n} | c for n, c in enumerate(calls)]} if calls else {})
        )
        await call.end(usage, finish)


class World:
    """A gateway whose classifier chooses tier 1, and whose monitor draws everything."""

    def __init__(self, aio: RunningGateway, home: Scripted, best: Scripted, monitor: AnswerMonitor) -> None:
        self.aio, self.home, self.best, self.monitor = aio, home, best, monitor

    def wait_for_results(self, seconds: float) -> None:
        """How long answers with calls wait for the caller's next request."""
        self.monitor.settings = msgspec.structs.replace(self.monitor.settings, result_seconds=seconds)

    async def ask(self, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
        given = {"model": "auto", "messages": STEP, "tools": [TOOL], "max_tokens": 64} | body
        headers = {"x-aio-cache": "off", **given.pop("headers", {})}
        answer = await self.aio.http.post(path, json=given, headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def verified(self) -> list[dict[str, Any]]:
        """Verify what was drawn; return the rows, the oldest first."""
        await self.aio.serving.records.flush()  # type: ignore[attr-defined]
        await self.monitor.drain()
        return await self.stored(verifications)

    async def stored(self, table: Any) -> list[dict[str, Any]]:
        async with self.aio.serving.database.connect() as connection:
            return [dict(row) for row in (await connection.execute(select(table))).mappings()]

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What the strongest tier was sent, a judge's questions apart."""
        return [one for one in self.best.bodies if "You compare two answers" not in str(one["messages"][0]["content"])]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    data: Path = tmp_path_factory.mktemp("turns")
    home, best = Scripted(), Scripted()
    async with home.server, best.server:
        catalog = CATALOG.format(home=home.server.base_url, best=best.server.base_url)
        async with gateway_of(data, catalog, monitor=True, cold_start_usd=0.0) as aio:

            async def monitor_of() -> AnswerMonitor | None:
                loop = aio.operations.quality_loop
                # It is there before its tasks are.
                monitor = None if loop is None else loop.monitor
                return None if monitor is None or monitor._intake._task is None else monitor

            monitor = await eventually(monitor_of)
            assert monitor is not None
            monitor.settings = msgspec.structs.replace(monitor.settings, sampling=EVERY, poll_seconds=0.0)
            monitor._shadow_rate, monitor.worker._encode = None, encode
            monitor._queue.sampling = EVERY
            yield World(aio, home, best, monitor)


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: World) -> World:
    """With nothing asked, stored or counted."""
    await shared.aio.serving.records.flush()  # type: ignore[attr-defined]
    await shared.monitor.drain()
    async with shared.aio.serving.database.begin() as connection:
        for table in (verifications, tool_definitions, training_rows):
            await connection.execute(delete(table))
    shared.aio.classifier.reset()
    shared.aio.classifier.p_ok = (0.99, 1.0)
    for scripted in (shared.home, shared.best):
        scripted.says = "7"
        scripted.server.calls.clear()
    shared.monitor.not_sampled.clear()
    shared.wait_for_results(0.0)
    return shared


async def test_the_strongest_tier_answers_the_same_step_with_the_same_tools_and_an_equal_call_is_good(
    world: World,
) -> None:
    world.home.says = ['{"path": "guide.md", "limit": 9}', '{"path": "notes.md"}']
    world.best.says = ['{"path": "notes.md"}', '{"limit": 9, "path": "guide.md"}']
    answer = await world.ask(parallel_tool_calls=True)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2
    [row] = await world.verified()
    assert (row["label"], row["judge"], row["tier"], row["scores"]) == (
        "no_worse",
        "tool_calls",
        1,
        {"tool_calls": 1.0},
    )
    [asked], [served] = world.asked, world.home.bodies
    assert (asked["messages"], asked["tools"]) == (served["messages"], served["tools"])
    assert asked["messages"][1]["tool_calls"][0]["id"] == asked["messages"][2]["tool_call_id"] == "call-0"
    [learned] = await world.stored(training_rows)
    assert (learned["no_worse"], learned["weights"][0], learned["judge"]) == ([True, True], 1.0, "tool_calls")
    # What it waited with is gone, but for the tools, which the next step has too.
    assert (row["turn"], row["tools_digest"]) == (None, None)
    await world.ask()
    await world.verified()
    assert len(await world.stored(tool_definitions)) == 1


async def test_a_different_argument_is_worse_once_the_strongest_tier_has_said_the_same_again(world: World) -> None:
    world.home.says, world.best.says = ['{"path": "notes.md"}'], ['{"path": "guide.md"}']
    await world.ask(tool_choice="required")
    [row] = await world.verified()
    assert (row["label"], row["judge"], row["scores"]) == ("worse", "tool_calls", {"tool_calls": 0.5})
    assert row["verifier_answer"] == 'read({"path": "guide.md"})'
    assert [body["tool_choice"] for body in world.asked] == ["required", "required"]


@pytest.mark.parametrize("arguments", ['{"path": ', '{"limit": 1}', '{"path": 7}'])
async def test_a_malformed_call_is_worse_without_a_reference(world: World, arguments: str) -> None:
    world.home.says = [arguments]
    await world.ask()
    [row] = await world.verified()
    assert (row["label"], row["judge"], row["cost_usd"]) == ("worse", "tool_calls", 0.0)
    assert row["reason"].startswith("the call of read is malformed")
    assert world.best.bodies == []


async def test_a_call_whose_result_is_an_error_is_worse_whatever_the_strongest_tier_would_call(world: World) -> None:
    world.wait_for_results(1e6)
    world.home.says = world.best.says = ['{"path": "guide.md"}']
    tool = {"name": "read", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    asked = [{"role": "user", "content": "Read the guide."}]
    said = await world.ask("/v1/messages", messages=asked, tools=[tool])
    [waiting] = await world.verified()
    assert (waiting["status"], world.best.bodies) == ("pending", [])
    call = said["content"][-1]["id"]
    result = {"type": "tool_result", "tool_use_id": call, "content": "no such file", "is_error": True}
    world.home.says = "There is no guide."
    later = [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": [result]}]
    await world.ask("/v1/messages", messages=[*asked, *later], tools=[tool])
    first = (await world.verified())[0]
    assert (first["status"], first["label"], first["cost_usd"]) == ("done", "worse", 0.0)
    assert first["reason"] == "the next request says that the call failed"


async def test_a_text_against_a_call_makes_no_label_and_two_texts_have_the_usual_judges(world: World) -> None:
    prompt = [{"role": "user", "content": "What is 3 + 4? Answer with the number only."}]
    world.best.says = ['{"path": "guide.md"}']
    await world.ask(messages=prompt)
    await world.verified()
    world.best.says = "7"
    await world.ask(messages=prompt)
    texts = await world.verified()
    assert [(row["label"], row["judge"]) for row in texts] == [(None, None), ("no_worse", "exact")]
    assert texts[0]["reason"] == "one answer calls a tool, the other is a text"


async def test_an_image_is_sampled_where_the_tiers_read_images_and_audio_is_not(world: World) -> None:
    def asking(part: dict[str, Any]) -> list[dict[str, Any]]:
        question = {"type": "text", "text": "How many dots are there? Answer with the number only."}
        return [{"role": "user", "content": [question, part]}]

    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    await world.ask(messages=asking(image), tools=None)
    await world.ask(messages=asking({"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}))
    row, skipped = await world.verified()
    assert row["label"] == "no_worse"
    assert (skipped["status"], skipped["reason"]) == ("skipped", WHY_NOT["unable"])
    [asked] = world.asked
    assert asked["messages"][0]["content"][1] == image
    assert world.monitor.not_sampled["unable"] == 1


async def test_reasons_are_counted_and_shown(world: World) -> None:
    world.home.says = ['{"path": "guide.md"}']
    await world.ask(headers={"x-aio-consent": "answer"})
    await world.ask(headers={"x-aio-consent": "local"})
    prompt = [{"role": "user", "content": "A grammar of its own."}]
    world.home.says = "7"
    await world.ask(messages=prompt, tools=None, structured_outputs={"regex": "[0-9]"})
    await world.verified()
    counts = {"no consent": 2, "bound": 1}
    assert (await world.aio.http.get("/admin/api/estimates")).json()["not_sampled"] == counts
    async with with_user(world.aio, "vera", "viewer") as viewer:
        page = (await viewer.get("/admin/quality/details")).text
    assert "2: its texts may not be stored, or not be shown to the tiers that would answer" in page
    assert 'aio_not_sampled_total{reason="bound"}' in (await world.aio.http.get("/metrics")).text


@pytest.mark.parametrize(
    "headers",
    [*({"x-aio-consent": consent} for consent in ("answer", "local", "answer, local")), {"x-aio-private": "true"}],
)
async def test_no_server_elsewhere_gets_a_byte_of_a_private_turn_and_nothing_of_it_is_kept(
    world: World, headers: dict[str, str]
) -> None:
    world.home.says = ['{"path": "guide.md"}']
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}
    await asyncio.gather(
        world.ask(headers=headers),
        world.ask(headers=headers, messages=[image], tools=None),
    )
    assert await world.verified() == []
    assert (world.best.bodies, await world.stored(tool_definitions)) == ([], [])


async def test_an_erased_users_waiting_turn_is_gone(world: World) -> None:
    world.wait_for_results(1e6)
    world.home.says = ['{"path": "guide.md"}']
    await world.ask(headers=bearer(await world.aio.key("ada")))
    [waiting] = await world.verified()
    assert json.dumps(waiting["turn"]).count("guide.md, notes.md") == 1
    assert len(await world.stored(tool_definitions)) == 1
    listed = (await world.aio.http.get("/admin/api/verifications")).json()["rows"]
    assert "turn" not in listed[0]
    erased = await world.aio.http.request(
        "DELETE", f"/admin/api/users/{waiting['key_id']}", json={"reason": "asked for it"}
    )
    assert erased.status_code == 200, erased.text
    assert await world.verified() == await world.stored(tool_definitions) == []
