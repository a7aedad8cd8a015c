"""Stored responses through the official client, on both databases: what goes on from them, who finds them, and when
they are gone."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from gateway.base.settings import Settings
from gateway.inference.api.responses.stored_responses import StoredResponses
from migrations.tables.api_objects import stored_responses
from quality.privacy import Retention, RetentionLimits
from tests.gateway.batches.batching import made, outcome, request_line
from tests.support.administrator import ADMIN_HEADERS
from tests.support.app import RunningGateway, StartApp
from tiers.conversation import ToolCallDelta

SAID = "Hello there, how are you?"
KEYS = {"ada": "test-ada-f35eedd987dfd329c654d535ce9eb689", "bob": "test-bob-8d8aece77e484397d1dbc0b9da4ebce2"}
ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}


def open_settings(folder: Path, **changes: Any) -> Settings:
    return Settings(data_dir=str(folder), monitor=False, drain_seconds=5, **changes)


@pytest.fixture
async def anyone(tmp_path: Path, database_url: str, app: StartApp) -> RunningGateway:
    """A gateway without keys, once on each database."""
    return await app(open_settings(tmp_path, database_url=database_url))


@pytest.fixture
async def keyed(tmp_path: Path, app: StartApp) -> RunningGateway:
    """A gateway with the keys of Ada and of Bob, who did not consent."""
    keys = ",".join(f"{name}={key}" for name, key in KEYS.items())
    return await app(open_settings(tmp_path, api_keys=keys, private_keys="bob"))


def client(gateway: RunningGateway, name: str) -> openai.AsyncOpenAI:
    return gateway.openai.with_options(api_key=KEYS[name])


async def num_stored(gateway: RunningGateway) -> int:
    async with gateway.serving.database.connect() as connection:
        return (await connection.execute(select(func.count()).select_from(stored_responses))).scalar_one()


def turns(gateway: RunningGateway) -> list[tuple[str, str]]:
    """The turns of the last request."""
    return [(turn.role, turn.text) for turn in gateway.tier(1).requests[-1].messages or ()]


async def test_a_request_goes_on_from_the_conversation_of_a_previous_response(anyone: RunningGateway) -> None:
    ask = anyone.openai.responses.create
    first = await ask(model="tier-1", input="One", instructions="Be kind.")
    assert (first.model_dump()["store"], first.id.startswith("resp_")) == (True, True)
    items: Any = [{"role": "developer", "content": "Short."}, {"role": "user", "content": "Two"}]
    second = await ask(model="tier-1", input=items, previous_response_id=first.id)
    third = await ask(model="tier-1", input="Three", previous_response_id=second.id, instructions="Be quick.")
    assert third.previous_response_id == second.id
    assert turns(anyone) == [
        ("system", "Be quick."),
        ("user", "One"), ("assistant", SAID),
        ("system", "Short."), ("user", "Two"), ("assistant", SAID),
        ("user", "Three"),
    ]  # fmt: skip
    await ask(model="tier-1", previous_response_id=third.id)
    assert turns(anyone)[-1] == ("assistant", SAID)


async def test_who_asks_for_a_response_in_the_background_or_compacted_finds_it_completed(
    anyone: RunningGateway,
) -> None:
    compaction: Any = [{"type": "compaction", "compact_threshold": 1000}]
    raw = await anyone.openai.responses.with_raw_response.create(
        model="tier-1", input="One", background=True, context_management=compaction
    )
    response = raw.parse()
    assert response.status == "completed"
    assert raw.headers["x-aio-ignored-fields"] == "background, context_management"
    assert await anyone.openai.responses.retrieve(response.id) == response


async def test_a_stored_response_is_shown_as_it_was_answered_with_its_items_in_pages(anyone: RunningGateway) -> None:
    responses = anyone.openai.responses
    first = await responses.create(model="tier-1", input="One", metadata={"team": "x"})
    second = await responses.create(model="tier-1", input="Two", previous_response_id=first.id)
    assert (await responses.retrieve(first.id)).model_dump() == first.model_dump()
    newest = [item async for item in responses.input_items.list(second.id, limit=2)]
    assert [item.type for item in newest] == ["message"] * 3
    assert [item.content[0].text for item in newest] == ["Two", SAID, "One"]  # type: ignore[union-attr]
    oldest = await responses.input_items.list(second.id, order="asc", limit=1, include=["reasoning.encrypted_content"])
    assert (oldest.data[0].content[0].text, oldest.has_more) == ("One", True)  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="no item"):
        await responses.input_items.list(second.id, after="msg_other")


async def test_the_loop_of_an_agent_sends_only_the_results_of_its_tools(anyone: RunningGateway) -> None:
    responses = anyone.openai.responses
    tier = anyone.tier(1)
    tier.words, tier.calls = (), (ToolCallDelta(index=0, id="call_1", name="add", arguments='{"a": 1}'),)
    async with responses.stream(model="tier-1", input="1 and 1?", tools=[ADD]) as stream:
        final = await stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    tier.words, tier.calls = ("2",), ()
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "2"}]
    answer = await responses.create(model="tier-1", input=output, previous_response_id=final.id, tools=[ADD])
    assert answer.output_text == "2"
    messages = tier.requests[-1].messages or []
    assert [turn.role for turn in messages] == ["user", "assistant", "tool"]
    assert (messages[1].calls[0].id, messages[2].call_id) == ("call_1", "call_1")


async def test_items_of_stored_responses_are_named_instead_of_given(anyone: RunningGateway) -> None:
    """As the AI SDK goes on by default: thoughts, texts and calls by their ids, results as items."""
    tier, ask = anyone.tier(1), anyone.openai.responses.create
    tier.reasoning, tier.words = ("Hm.",), ("Wait.",)
    items: Any = [{"role": "user", "content": "1 and 1?"}]
    for step in (("call_0", "call_1"), ("call_2",)):
        tier.calls = tuple(ToolCallDelta(index=n, id=name, name="add", arguments="{}") for n, name in enumerate(step))
        stream = await ask(model="tier-1", input=items, tools=[ADD], stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.completed"
        items += [{"type": "item_reference", "id": item.id} for item in last.response.output]
        items += [{"type": "function_call_output", "call_id": name, "output": name} for name in step]
    items[1] = {"id": items[1]["id"]}  # its type may be left out
    answer = await ask(model="tier-1", input=items, tools=[ADD])
    said = [
        (turn.role, turn.text, turn.thoughts, [call.id for call in turn.calls], turn.call_id)
        for turn in tier.requests[-1].messages or ()
    ]
    assert said == [
        ("user", "1 and 1?", "", [], None),
        ("assistant", "Wait.", "Hm.", ["call_0", "call_1"], None),
        ("tool", "call_0", "", [], "call_0"),
        ("tool", "call_1", "", [], "call_1"),
        ("assistant", "Wait.", "Hm.", ["call_2"], None),
        ("tool", "call_2", "", [], "call_2"),
    ]
    listed = [item async for item in anyone.openai.responses.input_items.list(answer.id, order="asc")]
    assert [item.type for item in listed[:4]] == ["message", "reasoning", "message", "function_call"]


async def test_routing_recognises_the_conversation_of_named_items(anyone: RunningGateway) -> None:
    responses = anyone.openai.responses
    first = await responses.create(model="tier-3", input="One")
    named: Any = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "Two"}]
    second = await responses.create(model="auto", input=named)
    await anyone.serving.records.recorded(second.id)  # type: ignore[attr-defined]
    record = await anyone.serving.records.find(second.id)
    assert record is not None
    assert record.decision.inputs.previous_tier == 3  # type: ignore[union-attr]


async def test_a_named_item_of_another_tenant_or_of_none_is_not_found(keyed: RunningGateway) -> None:
    mine = await client(keyed, "ada").responses.create(model="tier-1", input="My secret")
    for item_id in (mine.output[0].id, f"msg_{mine.id}-9", "rs_resp_0", "no\0id", ""):
        named: Any = [{"role": "user", "content": "And?"}, {"type": "item_reference", "id": item_id}]
        name = "bob" if item_id == mine.output[0].id else "ada"
        with pytest.raises(openai.NotFoundError) as refused:
            await client(keyed, name).responses.create(model="tier-1", input=named)
        assert (refused.value.param, refused.value.code) == ("input[1].id", "item_not_found")
    named = [{"role": "user", "content": "And?"}, {"type": "item_reference", "id": mine.output[0].id}]
    await client(keyed, "ada").responses.create(model="tier-1", input=named)


async def test_named_items_hold_no_more_than_a_body_may(app: StartApp) -> None:
    gateway = await app(body_limit=4096)
    gateway.tier(1).words = ("x" * 1000,)
    said = await gateway.openai.responses.create(model="tier-1", input="x")
    named: Any = [{"type": "item_reference", "id": said.output[0].id}]
    await gateway.openai.responses.create(model="tier-1", input=named * 2)
    with pytest.raises(openai.BadRequestError) as refused:
        await gateway.openai.responses.create(model="tier-1", input=named * 4)
    assert (refused.value.param, refused.value.code) == ("input", "context_too_large")


async def test_a_stream_that_ends_is_found_by_the_next_request(anyone: RunningGateway) -> None:
    """The last event is sent after the response is stored: nothing has to be waited for, on any gateway process."""
    stream = await anyone.openai.responses.create(model="tier-1", input="One", stream=True)
    async for event in stream:
        if event.type == "response.completed":
            found = await StoredResponses(anyone.serving.database).find("", event.response.id)
            assert found is not None
            assert found.response["output"][0]["content"][0]["text"] == SAID


async def test_what_was_deleted_is_neither_shown_nor_gone_on_from(anyone: RunningGateway) -> None:
    responses = anyone.openai.responses
    first = await responses.create(model="tier-1", input="One")
    second = await responses.create(model="tier-1", input="Two", previous_response_id=first.id)
    await responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await responses.retrieve(first.id)
    # Half a conversation is none.
    with pytest.raises(openai.NotFoundError) as refused:
        await responses.create(model="tier-1", input="Three", previous_response_id=second.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")
    assert [item.type async for item in responses.input_items.list(second.id)] == ["message"]


async def test_retention_deletes_stored_responses_with_the_texts_of_requests(anyone: RunningGateway) -> None:
    old = await anyone.openai.responses.create(model="tier-1", input="One")
    database = anyone.serving.database
    day = 86_400
    kept = Retention(database, RetentionLimits(text_days=1), clock=lambda: old.created_at + 0.5 * day)
    assert (await kept.purge()).stored_responses == 0
    due = Retention(database, RetentionLimits(text_days=1), clock=lambda: old.created_at + 1.5 * day)
    assert (await due.purge()).stored_responses == 1
    unlimited = await anyone.openai.responses.create(model="tier-1", input="One")
    by_rows = RetentionLimits(text_days=None, days=1)
    due = Retention(database, by_rows, clock=lambda: unlimited.created_at + 1.5 * day)
    assert (await due.purge()).stored_responses == 1


async def test_nothing_is_stored_of_who_did_not_consent_or_did_not_want_it(keyed: RunningGateway) -> None:
    private = await client(keyed, "bob").responses.create(model="tier-1", input="One", store=True)
    unwanted = await client(keyed, "ada").responses.create(model="tier-1", input="One", store=False)
    assert [answer.model_dump()["store"] for answer in (private, unwanted)] == [False, False]
    assert await num_stored(keyed) == 0
    for previous in (private.id, "no\0id", "x" * 100):
        with pytest.raises(openai.NotFoundError):
            await client(keyed, "bob").responses.create(model="tier-1", input="Two", previous_response_id=previous)


async def test_another_tenants_response_is_not_found(keyed: RunningGateway) -> None:
    mine = await client(keyed, "ada").responses.create(model="tier-1", input="My secret")
    other = client(keyed, "bob").responses
    with pytest.raises(openai.NotFoundError):
        await other.create(model="tier-1", input="And?", previous_response_id=mine.id)
    for attempt in (other.retrieve, other.delete, other.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await attempt(mine.id)
    assert (await client(keyed, "ada").responses.retrieve(mine.id)).id == mine.id


async def test_an_erased_users_responses_are_gone(keyed: RunningGateway) -> None:
    mine = await client(keyed, "ada").responses.create(model="tier-1", input="My secret")
    answer = await keyed.http.request("DELETE", "/admin/api/users/ada", json={"reason": "asked"}, headers=ADMIN_HEADERS)
    assert (answer.status_code, answer.json()["rows"]["stored_responses"]) == (200, 1)
    with pytest.raises(openai.NotFoundError):
        await client(keyed, "ada").responses.retrieve(mine.id)


async def test_a_response_whose_user_is_erased_while_it_is_answered_is_not_stored(keyed: RunningGateway) -> None:
    tier = keyed.tier(1)
    tier.hold_at = 1
    asked = asyncio.create_task(client(keyed, "ada").responses.create(model="tier-1", input="My secret"))
    await tier.holding.wait()
    await keyed.http.request("DELETE", "/admin/api/users/ada", json={"reason": "asked"}, headers=ADMIN_HEADERS)
    tier.go.set()
    assert (await asked).model_dump()["store"] is False
    assert await num_stored(keyed) == 0


async def test_a_redaction_stores_no_responses(tmp_path: Path, app: StartApp) -> None:
    patterns = tmp_path / "patterns"
    patterns.write_text("4711\n", "utf-8")
    gateway = await app(open_settings(tmp_path, redaction=str(patterns)))
    answer = await gateway.openai.responses.create(model="tier-1", input="My number is 4711.")
    assert answer.model_dump()["store"] is False
    assert await num_stored(gateway) == 0


async def test_an_answer_is_given_though_it_cannot_be_stored(monkeypatch: pytest.MonkeyPatch, app: StartApp) -> None:
    async def add(self: StoredResponses, response: object) -> bool:
        raise OperationalError("INSERT", {}, Exception("down"))

    monkeypatch.setattr(StoredResponses, "add", add)
    gateway = await app()
    answer = await gateway.openai.responses.create(model="tier-1", input="One")
    assert (answer.output_text, answer.model_dump()["store"]) == (SAID, False)
    stream = await gateway.openai.responses.create(model="tier-1", input="One", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.completed"
    assert last.response.model_dump()["store"] is False


async def test_a_conversation_grows_to_the_size_of_a_body_and_no_further(app: StartApp) -> None:
    gateway = await app(body_limit=4096)
    gateway.tier(1).max_context = 100_000
    responses = gateway.openai.responses
    last = await responses.create(model="tier-1", input="x" * 1500)
    last = await responses.create(model="tier-1", input="x" * 1500, previous_response_id=last.id)
    last = await responses.create(model="tier-1", input="x" * 1500, previous_response_id=last.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await responses.create(model="tier-1", input="x", previous_response_id=last.id)
    assert refused.value.code == "context_too_large"


async def test_routing_recognises_the_conversation_whatever_its_instructions(anyone: RunningGateway) -> None:
    responses = anyone.openai.responses
    first = await responses.create(model="tier-3", input="One", instructions="Be kind.")
    second = await responses.create(
        model="auto", input="Two", instructions="It is Tuesday.", previous_response_id=first.id
    )
    await anyone.serving.records.recorded(second.id)  # type: ignore[attr-defined]
    record = await anyone.serving.records.find(second.id)
    assert record is not None
    assert record.decision.inputs.previous_tier == 3  # type: ignore[union-attr]


async def test_auto_truncation_drops_the_oldest_turns_of_what_no_tier_can_read(anyone: RunningGateway) -> None:
    items: Any = [{"role": "user", "content": f"{n} " + "word " * 50} for n in range(8)]
    ask = anyone.openai.responses.create
    with pytest.raises(openai.BadRequestError):
        await ask(model="tier-1", input=items, instructions="Be kind.", max_output_tokens=8)
    answer = await ask(model="tier-1", input=items, instructions="Be kind.", max_output_tokens=8, truncation="auto")
    assert answer.truncation == "auto"
    kept = [turn.text.split()[0] for turn in anyone.tier(1).requests[-1].messages or ()]
    # 256 tokens are read: the system message and four turns of 55.
    assert kept == ["Be", "4", "5", "6", "7"]


async def test_lines_of_a_batch_go_on_from_responses_and_store_their_own(anyone: RunningGateway) -> None:
    responses, endpoint = anyone.openai.responses, "/v1/responses"
    first = await responses.create(model="tier-1", input="One")
    lines = [
        request_line("known", endpoint, input="Two", previous_response_id=first.id),
        request_line("unknown", endpoint, input="Two", previous_response_id="resp_unknown"),
    ]
    _, output, errors = await outcome(anyone.openai, (await made(anyone.openai, lines, endpoint)).id)
    assert errors["unknown"]["response"]["body"]["error"]["code"] == "previous_response_not_found"
    stored = await responses.retrieve(output["known"]["response"]["body"]["id"])
    assert stored.previous_response_id == first.id


async def test_tokens_are_counted_with_the_conversation_and_nothing_is_generated(tmp_path: Path, app: StartApp) -> None:
    gateway = await app(open_settings(tmp_path))
    responses = gateway.openai.responses
    first = await responses.create(model="tier-1", input="Say hello.")
    alone = await responses.input_tokens.count(model="tier-1", input="And again.", tools=[ADD])
    after = await responses.input_tokens.count(
        model="tier-1", input="And again.", previous_response_id=first.id, instructions="Be kind."
    )
    # The scripted tier counts four tokens more than words for each turn.
    assert (alone.object, alone.input_tokens) == ("response.input_tokens", 2 + 4)
    assert after.input_tokens == sum(len(text.split()) + 4 for text in ("Be kind.", "Say hello.", SAID, "And again."))
    with pytest.raises(openai.NotFoundError, match="claude-0"):
        await responses.input_tokens.count(model="claude-0", input="x")
    assert len(gateway.tier(1).requests) == 1
    assert await num_stored(gateway) == 1
