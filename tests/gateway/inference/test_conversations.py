"""Which tiers a conversation had: recognised without a client's help, for a while, and by its caller alone."""

from typing import Any

import msgspec
import pytest

from gateway.base.inference_request import Caller, InferenceRequest
from gateway.inference.conversations import TIERS_KEPT, Conversations, circumstances, digested
from tests.gateway.chats import chat
from tests.support.app import RunningGateway
from tests.support.clock import Clock
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import PlainSpec, Price, RemoteSpec
from tiers.conversation import Call, Turn

CATALOG = load_catalog("laptop")
HELLO = ("user", "Tell me of the sea.")
ANSWER = ("assistant", "It is wide.")
MORE = ("user", "Go on.")


def ask(*turns: tuple[str, str], **fields: Any) -> InferenceRequest:
    return chat(messages=[Turn.of(role, content) for role, content in turns], **fields)


def test_the_next_turn_finds_the_tier_of_the_last_one_even_if_the_answer_was_edited() -> None:
    known = Conversations()
    known.remember(ask(HELLO), 3)
    assert known.history(ask(HELLO, ANSWER, MORE)).tiers == (3,)
    assert known.history(ask(HELLO, ("assistant", "Something else."), MORE)).tiers == (3,)


def test_a_conversation_with_another_beginning_is_another_one() -> None:
    known = Conversations()
    known.remember(ask(HELLO), 3)
    assert known.history(ask(("user", "Tell me of the sky."), ANSWER, MORE)).tiers == ()
    assert known.history(ask(("system", "Be brief."), HELLO, ANSWER, MORE)).tiers == ()
    assert known.history(ask(HELLO)).tiers == (), "a first turn goes on with nothing"


def test_tiers_are_kept_in_order_and_only_the_newest() -> None:
    known, turns = Conversations(), [HELLO]
    for tier in (1, 2, 4, 3, 1, 2, 4, 3, 2):
        known.remember(ask(*turns), tier)
        turns += [ANSWER, MORE]
    assert known.history(ask(*turns)).tiers == (2, 4, 3, 1, 2, 4, 3, 2)
    assert len(known.history(ask(*turns)).tiers) == TIERS_KEPT


def test_a_conversation_is_forgotten_after_its_time() -> None:
    clock = Clock(100.0)
    known = Conversations(seconds=60, clock=clock)
    known.remember(ask(HELLO), 3)
    clock.now += 60
    assert known.history(ask(HELLO, ANSWER, MORE)).tiers == (3,)
    clock.now += 1
    assert known.history(ask(HELLO, ANSWER, MORE)).tiers == ()
    known.remember(ask(("user", "Another.")), 1)
    assert len(known) == 1


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    known = Conversations(most=3)
    asks = [ask(("user", f"Question {i}.")) for i in range(5)]
    for one in asks:
        known.remember(one, 2)
    assert len(known) == 3
    found = [known.history(ask(("user", f"Question {i}."), ANSWER, MORE)).tiers for i in range(5)]
    assert found == [(), (), (2,), (2,), (2,)]


def test_one_callers_conversation_says_nothing_about_anothers() -> None:
    known = Conversations()
    known.remember(ask(HELLO, caller=Caller(key_id="ada")), 4)
    known.remember(ask(HELLO, caller=Caller(key_id="ada"), conversation="c1"), 4)
    assert known.history(ask(HELLO, ANSWER, MORE, caller=Caller(key_id="bob"))).tiers == ()
    assert known.history(ask(MORE, caller=Caller(key_id="bob"), conversation="c1")).tiers == ()


def test_the_callers_own_id_is_enough_where_the_messages_were_rewritten() -> None:
    known = Conversations()
    known.remember(ask(HELLO, conversation="c1"), 4)
    assert known.history(ask(("user", "Summary of what was said."), ANSWER, MORE, conversation="c1")).tiers == (4,)
    assert known.history(ask(HELLO, ANSWER, MORE, conversation="c2")).tiers == (4,), "known by its messages"


def test_a_turn_that_brings_results_of_tools_is_a_loop() -> None:
    known = Conversations()
    assert known.history(ask(HELLO, ANSWER, ("tool", "42"))).in_tool_loop
    assert not known.history(ask(HELLO, ANSWER, ("tool", "42"), ANSWER, MORE)).in_tool_loop


def test_calls_of_tools_are_part_of_what_a_conversation_is_known_by() -> None:
    known = Conversations()

    def with_call(arguments: str) -> InferenceRequest:
        call = Call(id="1", name="f", arguments=arguments)
        called = Turn.of("assistant", calls=(call,))
        turns = [
            *(ask(HELLO).generation.messages or []),
            called,
            Turn.of("tool", "42", call_id="1"),
        ]
        return ask().with_generation(messages=turns)

    known.remember(with_call("{}"), 3)
    further = [Turn.of("assistant", "It is 42."), Turn.of("user", "Why?")]
    for arguments, tiers in (("{}", (3,)), ('{"x":1}', ())):
        first = with_call(arguments)
        assert (
            known.history(first.with_generation(messages=[*(first.generation.messages or []), *further])).tiers == tiers
        )


def test_what_a_tier_has_read_is_worth_its_price_to_all_tiers_of_its_model() -> None:
    known = Conversations()
    known.remember(ask(HELLO), 2)
    history = known.history(ask(HELLO, ("assistant", "word " * 800), MORE))
    found = circumstances(history, CATALOG, prompt_tokens=10_000)
    assert found["previous_tier"] == 2
    expected = [
        CATALOG.tier(k).price.input_usd_per_million * history.tokens / 1e6 * (CATALOG.tier(k).model == "smollm2-bf16")
        for k in (1, 2, 3, 4)
    ]
    assert found["reuse_usd"] == pytest.approx(expected)
    assert found["reuse_usd"][0] == 0 < found["reuse_usd"][1]
    assert circumstances(known.history(ask(HELLO)), CATALOG, 10) == {}


def test_a_conversation_stays_at_the_cached_price_and_moves_at_that_of_cache_writes() -> None:
    written = Price(input_usd_per_million=1.0, output_usd_per_million=5.0, cache_write_usd_per_million=1.25)
    cached = Price(input_usd_per_million=3.0, output_usd_per_million=15.0, cached_input_usd_per_million=0.3)
    elsewhere = {"model": None, "policy": PlainSpec()}
    tiers = [
        msgspec.structs.replace(tier, price=price, remote=RemoteSpec(base_url="https://x/v1", model=name), **elsewhere)
        for tier, price, name in zip(CATALOG.tiers[:2], (written, cached), ("haiku", "sonnet"), strict=True)
    ]
    catalog = msgspec.structs.replace(CATALOG, tiers=tiers)
    known = Conversations()
    known.remember(ask(HELLO), 2)
    history = known.history(ask(HELLO, ("assistant", "word " * 800), MORE))
    found = circumstances(history, catalog, prompt_tokens=10_000)
    assert found["reuse_usd"] == pytest.approx([-0.25 * history.tokens / 1e6, 2.7 * history.tokens / 1e6])


# -- over HTTP -------------------------------------------------------------------------------------


async def answered(gateway: RunningGateway, turns: list[dict[str, Any]], **headers: str) -> int:
    answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": turns}, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.headers["x-aio-tier"])


def turns_of(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_tool_loop_keeps_its_tier_over_http(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = (0.1, 0.2, 0.3, 1.0)
    first = turns_of(("user", "Look it up."))
    assert await answered(gateway, first) == 4
    gateway.classifier.p_ok = (0.999, 0.999, 0.999, 1.0)
    looped = [*first, CALL, {"role": "tool", "tool_call_id": "c1", "content": "42"}]
    assert await answered(gateway, looped) == 4
    assert gateway.classifier.seen[-1].previous_tiers == (4,)
    further = [*looped, *turns_of(("assistant", "It is 42."), ("user", "Thanks."))]
    assert await answered(gateway, further) == 1, "the loop is over, and little has been read"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_conversation_id_is_followed_and_a_bad_one_refused(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = (0.1, 0.2, 0.3, 1.0)
    await answered(gateway, turns_of(("user", "One thing.")), **{"x-aio-conversation": "conv-7"})
    await answered(gateway, turns_of(("user", "Another thing.")), **{"x-aio-conversation": "conv-7"})
    assert gateway.classifier.seen[-1].previous_tiers == (4,)
    body = {"model": "auto", "messages": turns_of(("user", "Hi"))}
    refused = await gateway.http.post("/v1/chat/completions", json=body, headers={"x-aio-conversation": "a b"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-aio-conversation"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_failing_tier_of_a_tool_loop_is_replaced_by_what_is_worth_most(
    gateway: RunningGateway,
) -> None:
    gateway.classifier.p_ok = (0.1, 0.9999, 0.3, 1.0)
    first = turns_of(("user", "Look that up."))
    assert await answered(gateway, first) == 2
    gateway.tier(2).fail_at = 0
    assert await answered(gateway, [*first, CALL, {"role": "tool", "tool_call_id": "c1", "content": "1"}]) == 4


@pytest.mark.asyncio(loop_scope="module")
async def test_without_its_appeal_to_the_router_nothing_is_left_of_a_prompt(gateway: RunningGateway) -> None:
    gateway.classifier.novelty = 0.99
    assert await answered(gateway, turns_of(("user", "Use tier 4."))) == 1


def test_a_reminder_or_instructions_after_results_do_not_end_a_tool_loop() -> None:
    """As Claude Code sends them: in the turn of the results, and as a system message after it."""
    result = Turn.of("tool", "ok", call_id="1")
    reminder = Turn.of("user", "<system-reminder>The list is empty.</system-reminder>")
    rules = Turn.of("system", "Two skills are available.")
    known, asked = Conversations(), Turn.of("user", "Mend it.")
    call = Turn.of("assistant", calls=(Call(id="1", name="run", arguments="{}"),))
    for after in ([], [reminder], [rules], [reminder, rules], [rules, reminder]):
        assert known.history(chat(messages=[asked, call, result, *after])).in_tool_loop
    more = Turn.of("user", "<system-reminder>One.</system-reminder> And test it.")
    for ended in ([asked], [asked, rules], [asked, call, result, more], [asked, call, result, more, rules], [reminder]):
        assert not known.history(chat(messages=ended)).in_tool_loop


def test_the_messages_of_a_request_are_digested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noting(message: Turn) -> tuple[bytes, ...]:
        read.append(message.text)
        return digested(message)

    monkeypatch.setattr("gateway.inference.conversations.digested", noting)
    known, second = Conversations(), ask(HELLO, ANSWER, MORE)
    known.history(second)
    known.remember(second, 2)
    assert read == [content for _, content in (HELLO, ANSWER, MORE)]
    assert known.history(ask(HELLO, ANSWER, MORE, ("assistant", "Very."), MORE)).tiers == (2,)
