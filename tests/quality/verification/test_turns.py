"""Turns: what verification needs of tools and attachments waits in the database, redacted, bounded, and no longer than
the texts of the request."""

import json
from typing import Any

import msgspec
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import tool_definitions, verifications
from quality.monitor.worker import MOST_BYTES, FailedCall, Offer, Offers
from quality.privacy import Retention, RetentionLimits
from quality.store.queries import delete_key_data
from quality.verification.job import (
    MOST_TOOLS_BYTES,
    MOST_TURN_BYTES,
    Exchange,
    exchange_from,
    exchange_of,
    failed_calls,
    redacted_exchange,
    stored_exchange,
)
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import Draw, SamplingSettings
from tests.gateway.chats import chat
from tests.quality.loop_world import ScriptedTier, record, rows, store_request
from tests.quality.monitor.monitors import ALL, monitor_of
from tiers.conversation import Call, Opaque, Text, Tool, ToolCallDelta, Tooling, Turn, media
from tiers.deltas import CollectedChoice
from tiers.tier import Delta

DRAWN = Draw(sampled=True, probability=1.0, reason="drawn")
TOOLING = Tooling(
    tools=(
        Tool(
            name="mail",
            description="Mail to Ada.",
            parameters={"type": "object", "properties": {"to": {"type": "string", "enum": ["Ada", "Bob"]}}},
        ),
    ),
    choice="required",
    parallel=False,
)
IMAGE = media("image", {"url": "data:image/png;base64,aGVsbG8="})
STEP = [
    Turn.of("system", "You write to Ada."),
    Turn.of("user", "Write to Ada."),
    Turn.of("assistant", calls=(Call(id="Ada", name="mail", arguments='{"to":"Ada"}'),)),
    Turn.of("tool", "Error: Ada is away", call_id="Ada"),
]
TURN = Exchange(
    messages=tuple(STEP),
    tooling=TOOLING,
    text="Again, Ada.",
    calls=(Call(id="c-2", name="mail", arguments='{"to": "Ada", "n": [1, "Ada"]}'),),
)


def queue(engine: AsyncEngine) -> VerificationQueue:
    return VerificationQueue(engine, SamplingSettings(), lease_seconds=60.0, max_attempts=2)


async def wait_with(engine: AsyncEngine, turn: Exchange, *names: str, key: str = "alice", at: float = 1400.0) -> None:
    for name in names:
        served = record(name, key_id=key)
        await store_request(engine, served)
        assert await queue(engine).add(served, DRAWN, at, turn=turn)


async def digests(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.scalars(select(tool_definitions.c.digest)))


async def test_a_turn_waits_whole_and_the_same_tools_once_for_each_key(engine: AsyncEngine) -> None:
    attached = msgspec.structs.replace(TURN, messages=(*STEP, Turn.of("user", [Text("This:"), IMAGE])))
    await wait_with(engine, attached, "r-1")
    job = await queue(engine).next_job(1500.0)
    assert job is not None
    assert job.turn == attached
    await wait_with(engine, TURN, "r-2", "r-3")
    assert len(await digests(engine)) == 1
    await wait_with(engine, TURN, "r-4", key="bob")
    assert len(await digests(engine)) == 2


async def test_an_answer_with_calls_waits_for_its_results_and_no_longer_once_one_failed(engine: AsyncEngine) -> None:
    await store_request(engine, record("r-1"))
    waiting = queue(engine)
    await waiting.add(record("r-1"), DRAWN, 1400.0, turn=TURN, not_before=1520.0)
    assert await waiting.next_job(1519.0) is None
    assert (await waiting.next_job(1521.0)) is not None
    assert await waiting.call_failed("r-1")
    job = await waiting.next_job(1401.0)
    assert job is not None
    assert job.next_step == "failed"
    assert not await waiting.call_failed("another")


async def test_what_a_verification_waited_with_goes_when_it_ends(engine: AsyncEngine) -> None:
    await wait_with(engine, TURN, "ended", "swept")
    waiting = queue(engine)
    for _ in range(2):
        job = await waiting.next_job(1500.0)
        assert job is not None
        assert job.request_id == "ended"
        assert await waiting.claim(job, 0.0, 1500.0) == "claimed"
        await waiting.give_back(job, "no", 0.0, 1500.0, 1500.0)
    await waiting.sweep(1500.0, expire_before=1401.0)
    assert {(row["status"], row["turn"], row["tools_digest"]) for row in await rows(engine, verifications)} == {
        ("failed", None, None)
    }


async def test_tools_go_with_the_texts_but_not_while_a_verification_waits(engine: AsyncEngine) -> None:
    await wait_with(engine, TURN, "r-1")
    keeper = Retention(engine, RetentionLimits(text_days=0.0), clock=lambda: 1_000_000.0)
    await keeper.purge()
    assert len(await digests(engine)) == 1
    await queue(engine).sweep(1500.0, expire_before=1401.0)
    await keeper.purge()
    assert await digests(engine) == set()


async def test_erasing_a_user_takes_its_turns_and_tools_and_leaves_those_of_others(engine: AsyncEngine) -> None:
    await wait_with(engine, TURN, "r-1")
    await wait_with(engine, TURN, "r-2", key="bob")
    await delete_key_data(engine, "alice", now=2000.0)
    assert [row["request_id"] for row in await rows(engine, verifications)] == ["r-2"]
    assert [row["key_id"] for row in await rows(engine, tool_definitions)] == ["bob"]


async def test_redaction_reaches_every_text_but_names_and_the_words_of_schemas() -> None:
    async def strike(text: str) -> str:
        return text.replace("Ada", "X").replace("object", "X").replace("mail", "X")

    kept = await redacted_exchange(TURN, strike)
    assert kept is not None
    stored = stored_exchange(kept, "alice")
    assert "Ada" not in json.dumps([stored.body["messages"][1:2], stored.body["text"], stored.tools])
    assert kept.calls == (Call(id="c-2", name="mail", arguments='{"to": "X", "n": [1, "X"]}'),)
    assert kept.messages[2].calls[0] == Call(id="Ada", name="mail", arguments='{"to": "X"}')
    assert kept.messages[3].text == "Error: X is away"
    assert kept.tooling is not None
    [tool] = kept.tooling.tools
    assert (tool.name, tool.description) == ("mail", "Mail to X.")
    assert tool.parameters == {"type": "object", "properties": {"to": {"type": "string", "enum": ["X", "Bob"]}}}


async def test_what_one_dialect_alone_reads_is_not_redacted_but_left_out() -> None:
    async def nothing(text: str) -> str:
        return text

    said = Turn.of("user", "Hi", opaque=[Opaque("messages", b'{"type":"text","text":"Ada"}', "text")])
    kept = await redacted_exchange(Exchange(messages=(said,)), nothing)
    assert kept == Exchange(messages=(Turn.of("user", "Hi"),))


def test_what_was_stored_in_another_form_has_lost_its_tools() -> None:
    found = exchange_from({"messages": [{"role": "user", "content": "Hi"}], "text": "Hello"}, None)
    assert found is not None
    assert found.tooling == Tooling(tools=())


async def test_a_turn_that_cannot_be_redacted_is_not_kept() -> None:
    async def fail(text: str) -> None:
        return None

    async def nothing(text: str) -> str:
        return text

    attached = Exchange(messages=(Turn.of("user", [Text("This:"), IMAGE]),))
    assert await redacted_exchange(TURN, fail) is None
    assert await redacted_exchange(attached, nothing) is None
    assert await redacted_exchange(TURN, nothing) is not None


def test_texts_alone_need_no_turn() -> None:
    said = CollectedChoice()
    for delta in (Delta(text="Hm."), Delta(tool_calls=[ToolCallDelta(index=0, id="c", name="mail", arguments="{}")])):
        said.take(delta)
    assert exchange_of(chat("Hello").generation, said) is None
    found = exchange_of(chat(messages=STEP, tooling=TOOLING).generation, said)
    assert found == Exchange(
        messages=tuple(STEP), tooling=TOOLING, text="Hm.", calls=(Call(id="c", name="mail", arguments="{}"),)
    )
    assert found.needs == {"tools"}
    assert exchange_of(chat(messages=[Turn.of("user", [IMAGE])]).generation, said) is not None


def test_failed_calls_are_those_of_the_last_answer() -> None:
    fine = Turn.of("tool", "No Error: fine", call_id="b")
    assert failed_calls(chat(messages=[*STEP, fine]).generation) == ["Ada"]
    assert failed_calls(chat(messages=[*STEP, Turn.of("assistant", "So?")]).generation) == []


def test_a_judge_sees_what_came_after_the_question() -> None:
    assert TURN.seen.text == 'assistant: mail({"to":"Ada"})\ntool: Error: Ada is away'


@pytest.mark.parametrize(
    ("changes", "is_too_large"),
    [
        ({}, False),
        ({"text": "x" * MOST_TURN_BYTES}, True),
        ({"tooling": Tooling(tools=(Tool(name="t", description="x" * MOST_TOOLS_BYTES),))}, True),
        (
            {"messages": (Turn.of("user", [msgspec.structs.replace(IMAGE, num_bytes=MOST_TURN_BYTES)]),)},
            True,
        ),
    ],
)
async def test_what_is_too_large_is_not_sampled(
    sqlite_engine: AsyncEngine, changes: dict[str, Any], is_too_large: bool
) -> None:
    monitor = await monitor_of(sqlite_engine, ScriptedTier(), msgspec.structs.replace(ALL, result_seconds=0.0))
    free = msgspec.structs.replace(TOOLING, choice="auto")
    turn = msgspec.structs.replace(TURN, **{"calls": (), "tooling": free} | changes)
    served = record("r-1")
    await store_request(sqlite_engine, served)
    await monitor.start()
    monitor.offer(served, turn=turn)
    await monitor.drain()
    await monitor.close()
    assert monitor.not_sampled == ({"too large": 1} if is_too_large else {})
    [row] = await rows(sqlite_engine, verifications)
    assert (row["status"], row["turn"]) == ("skipped" if is_too_large else "done", None)


def test_what_waits_for_a_decision_is_bounded_in_bytes() -> None:
    waiting = Offers(1000)
    heavy = msgspec.structs.replace(TURN, text="x" * (MOST_BYTES // 2 + 1))
    served = record("r-1")
    assert waiting.add(Offer(served, turn=heavy))
    assert not waiting.add(Offer(served, turn=heavy))
    assert waiting.add(Offer(served))
    waiting.done()
    assert waiting.add(Offer(served, turn=heavy))


def test_a_failed_call_is_noted_for_its_own_key_after_the_answer_that_made_it() -> None:
    waiting = Offers(1000)
    waiting.add(Offer(record("r-1"), turn=TURN))
    waiting.calls_failed("another", ["c-2"])
    waiting.calls_failed("alice", ["c-2", "unknown"])
    waiting.calls_failed("alice", ["c-2"])
    assert len(waiting) == 2
    waiting.done()
    assert waiting.first() == FailedCall("r-1")
