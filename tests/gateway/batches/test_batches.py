"""Batches end to end by OpenAI's client: answers, rejections, early ends."""

import asyncio
import json
from typing import Any, get_args

import msgspec
import openai
import pytest
import pytest_asyncio
from openai.types import Batch
from sqlalchemy import func, select, update

from gateway.batches.api.batches import BatchRequest
from gateway.batches.api.line_answers import ENDPOINTS, BatchEndpoint
from migrations.tables.api_objects import batch_lines, batches
from migrations.tables.requests import requests
from tests.gateway.batches.batching import (
    CHAT,
    ended,
    lines_of,
    made,
    outcome,
    request_line,
    until,
    until_answered,
    uploaded,
)
from tests.support.app import RunningGateway, StartApp
from tests.support.scripted_tier import ScriptedTier
from tiers.errors import TierUnavailableError

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEYS = {"ada": "test-ada-021e396f1e3ce9d4889bb83e68344d8b", "bob": "test-bob-1b892e8121353734aca120232cf84021"}
ADMIN = {"authorization": "Bearer test-admin-07158b06243a3ef4b8e7746013aa659a"}
TEXT = "Hello there, how are you?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def working(module_app: StartApp) -> RunningGateway:
    gateway = await module_app(
        api_keys=",".join(f"{name}={key}" for name, key in KEYS.items()),
        admin_keys="root=test-admin-07158b06243a3ef4b8e7746013aa659a",
    )
    gateway.jobs.knobs.change({"backoff_seconds": 0.01})
    return gateway


@pytest.fixture(autouse=True)
def as_new(working: RunningGateway) -> None:
    working.reset()


@pytest.fixture
def ada(working: RunningGateway) -> openai.AsyncOpenAI:
    return working.openai.with_options(api_key=KEYS["ada"])


@pytest.fixture
def bob(working: RunningGateway) -> openai.AsyncOpenAI:
    return working.openai.with_options(api_key=KEYS["bob"])


async def test_every_line_is_answered_as_its_endpoint_would_in_the_inputs_order(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    names = [f"r{n}" for n in range(30)]
    lines = [request_line(name) for name in names]
    # Providers take the method in any case.
    batch = await made(ada, [lines[0].replace(b"POST", b"post"), *lines[1:]], metadata={"of": "spring"})
    assert (batch.object, batch.endpoint, batch.status, batch.metadata) == (
        "batch",
        CHAT,
        "validating",
        {"of": "spring"},
    )

    batch, output, errors = await outcome(ada, batch.id)

    assert batch.status == "completed"
    assert list(output) == names
    assert errors == {}
    assert batch.error_file_id is None
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (30, 30, 0)
    assert batch.created_at <= (batch.in_progress_at or 0) <= (batch.finalizing_at or 0) <= (batch.completed_at or 0)
    assert batch.expires_at == batch.created_at + 86_400
    line = output["r7"]
    assert (line["error"], line["response"]["status_code"]) == (None, 200)
    assert line["response"]["body"]["choices"][0]["message"]["content"] == TEXT
    assert line["response"]["body"]["id"] == line["response"]["request_id"]
    assert batch.output_file_id is not None
    file = await ada.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    async with working.serving.database.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(batch_lines)) == 0


async def test_a_line_gets_the_file_that_it_names_and_no_other_tenants(
    working: RunningGateway, ada: openai.AsyncOpenAI, bob: openai.AsyncOpenAI
) -> None:
    file_ids = {}
    for name, tenant in (("ada", ada), ("bob", bob)):
        file_ids[name] = (await tenant.files.create(file=("a.txt", b"Hers."), purpose="user_data")).id
    turns = {
        name: [{"role": "user", "content": [{"type": "file", "file": {"file_id": file}}]}]
        for name, file in file_ids.items()
    }
    batch = await made(ada, [request_line(name, messages=turn) for name, turn in turns.items()])
    _, output, errors = await outcome(ada, batch.id)
    assert (list(output), list(errors)) == (["ada"], ["bob"])
    assert errors["bob"]["response"]["body"]["error"]["param"] == "messages[0].content[0].file.file_id"


async def test_lines_go_behind_users_and_their_records_say_whose_and_what_batch(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    batch, output, _ = await outcome(ada, (await made(ada, [request_line("a", service_tier="priority")])).id)
    assert [request.priority for request in working.tier(1).requests] == [2]
    assert output["a"]["response"]["body"]["service_tier"] == "batch"
    await working.serving.records.flush()  # type: ignore[attr-defined]
    async with working.serving.database.connect() as connection:
        query = select(requests.c.key_id, requests.c.tags, requests.c.cost_usd).order_by(requests.c.created_at.desc())
        key_id, tags, cost = (await connection.execute(query.limit(1))).one()
    assert (key_id, tags) == ("ada", {"batch_id": batch.id})
    assert cost > 0


@pytest.mark.parametrize(
    ("endpoint", "form", "body", "text"),
    [
        ("/v1/chat/completions", "chatcmpl-", {}, lambda body: body["choices"][0]["message"]["content"]),
        ("/v1/completions", "cmpl-", {"prompt": "Say"}, lambda body: body["choices"][0]["text"]),
        ("/v1/responses", "resp_", {"input": "Say"}, lambda body: body["output"][0]["content"][0]["text"]),
        # An item and a field that only OpenAI reads are left out, as by the endpoint.
        (
            "/v1/responses", "resp_",
            {"input": [{"role": "user", "content": "Say"}, {"type": "web_search_call", "id": "w"}],
             "context_management": [{"type": "compaction"}]},
            lambda body: body["output"][0]["content"][0]["text"],
        ),
    ],
)  # fmt: skip
async def test_endpoints_answer_in_their_own_shape(
    ada: openai.AsyncOpenAI, endpoint: str, form: str, body: dict[str, Any], text: Any
) -> None:
    _, output, errors = await outcome(ada, (await made(ada, [request_line("a", endpoint, **body)], endpoint)).id)
    assert errors == {}
    answer = output["a"]["response"]["body"]
    assert text(answer) == TEXT
    assert answer["id"].startswith(form)


async def test_what_an_endpoint_refuses_is_a_line_of_errors_and_the_rest_is_answered(ada: openai.AsyncOpenAI) -> None:
    lines = [
        request_line("good"),
        request_line("unknown", model="no-such-model"),
        request_line("streamed", stream=True),
        request_line("empty", messages=[]),
    ]
    batch, output, errors = await outcome(ada, (await made(ada, lines)).id)
    assert (batch.status, list(output), list(errors)) == ("completed", ["good"], ["unknown", "streamed", "empty"])
    found = {name: (line["response"]["status_code"], line["response"]["body"]["error"]["param"])
             for name, line in errors.items()}  # fmt: skip
    assert found == {"unknown": (404, "model"), "streamed": (400, "stream"), "empty": (400, "messages")}
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 3)


async def test_a_batch_of_errors_alone_leaves_no_output(ada: openai.AsyncOpenAI) -> None:
    batch, _, errors = await outcome(ada, (await made(ada, [request_line("a", model="none")])).id)
    assert (batch.status, batch.output_file_id, list(errors)) == ("completed", None, ["a"])


async def test_what_may_pass_is_tried_again_and_what_does_not_is_an_error_in_the_end(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    tier = working.tier(1)
    tier.error, tier.fail_at = TierUnavailableError("not now"), 0
    working.jobs.knobs.change({"most_attempts": 3})
    batch, output, errors = await outcome(ada, (await made(ada, [request_line("a")])).id)
    assert (output, errors["a"]["response"]["status_code"]) == ({}, 503)
    assert len(tier.requests) == 3

    tier.reset()
    tier.error, tier.fail_at, tier.hold_at = TierUnavailableError("not now"), 0, 0
    batch = await made(ada, [request_line("b")])
    await tier.holding.wait()
    failing = tier.requests[-1]
    tier.go.set()
    while tier.requests[-1] is failing:
        await asyncio.sleep(0.001)
        tier.fail_at = None
    _, output, errors = await outcome(ada, batch.id)
    assert (list(output), errors) == (["b"], {})
    working.jobs.knobs.change({"most_attempts": None})


def bad(**changes: Any) -> bytes:
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {}} | changes
    return json.dumps({name: value for name, value in line.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("lines", "code", "line", "param"),
    [
        ([b"", b"  "], "empty_file", None, None),
        ([request_line("a"), b"{not json"], "invalid_json_line", 2, None),
        ([b"[1, 2]"], "invalid_json_line", 1, None),
        ([b"[" * 100_000], "invalid_json_line", 1, None),
        ([request_line("a"), request_line("b"), request_line("a")], "duplicate_custom_id", 3, "custom_id"),
        ([bad(custom_id=None)], "missing_required_parameter", 1, "custom_id"),
        ([bad(body=None)], "missing_required_parameter", 1, "body"),
        ([bad(custom_id=7)], "invalid_type", 1, "custom_id"),
        ([bad(custom_id="")], "invalid_custom_id", 1, "custom_id"),
        ([bad(custom_id="x" * 513)], "invalid_custom_id", 1, "custom_id"),
        ([bad(custom_id="a\0b")], "invalid_custom_id", 1, "custom_id"),
        ([bad(method="GET")], "invalid_method", 1, "method"),
        ([bad(url="/v1/embeddings")], "invalid_url", 1, "url"),
        ([bad(body="text")], "invalid_body", 1, "body"),
        ([b'{"custom_id": "\xff"}'], "invalid_utf8", 1, None),
        ([bad(body={"x": "\xff"}).replace(b"\\u00ff", b"\xff")], "invalid_utf8", 1, None),
        ([request_line("a"), b"", b'{"custom_id": "' + b"x" * 34_000_000], "line_too_long", 3, None),
    ],
)
async def test_wrong_input_is_reported_line_by_line_and_none_of_it_is_answered(
    working: RunningGateway, ada: openai.AsyncOpenAI, lines: list[bytes], code: str, line: int | None, param: str | None
) -> None:
    batch = await ended(ada, (await made(ada, lines)).id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.data is not None
    error = batch.errors.data[0]
    assert (error.code, error.line, error.param) == (code, line, param)
    assert working.tier(1).requests == []
    async with working.serving.database.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(batch_lines)) == 0


async def test_up_to_a_hundred_wrong_lines_are_reported(ada: openai.AsyncOpenAI) -> None:
    batch = await ended(ada, (await made(ada, [request_line("a")] + [b"x"] * 150)).id)
    assert batch.errors is not None
    assert [error.line for error in batch.errors.data or ()] == list(range(2, 102))


async def test_windows_line_ends_and_a_missing_last_one_do_no_harm(ada: openai.AsyncOpenAI) -> None:
    content = b"\xef\xbb\xbf" + request_line("a") + b"\r\n\r\n" + request_line("b")
    file = await ada.files.create(file=("in.jsonl", content), purpose="batch")
    batch = await ada.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    _, output, _ = await outcome(ada, batch.id)
    assert list(output) == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"input_file_id": "../etc/passwd"}, 404, "input_file_id"),
        ({"endpoint": "/v1/images"}, 400, "endpoint"),
        ({"completion_window": "24"}, 400, "completion_window"),
        ({"completion_window": "169h"}, 400, "completion_window"),
        ({"completion_window": "0h"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
async def test_a_wrong_order_is_refused_by_name(
    working: RunningGateway, ada: openai.AsyncOpenAI, fields: dict[str, Any], status: int, param: str
) -> None:
    file = await uploaded(ada, [request_line("a")])
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"} | fields
    headers = {"authorization": f"Bearer {KEYS['ada']}"}
    answer = await working.http.post("/v1/batches", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"].startswith(param)


def test_a_batch_may_name_every_endpoint_that_answers_lines() -> None:
    assert set(get_args(BatchEndpoint)) == set(ENDPOINTS)
    for window in ("1h", "24h", "168h"):
        assert msgspec.convert({"input_file_id": "f", "endpoint": CHAT, "completion_window": window}, BatchRequest)
    for window in ("0h", "24", "169h", "200h", "024h", "24h\n"):
        with pytest.raises(msgspec.ValidationError, match="completion_window"):
            msgspec.convert({"input_file_id": "f", "endpoint": CHAT, "completion_window": window}, BatchRequest)


async def test_a_file_of_another_purpose_is_no_input(ada: openai.AsyncOpenAI) -> None:
    file = await ada.files.create(file=("x", request_line("a")), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as caught:
        await ada.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert (caught.value.param, caught.value.code) == ("input_file_id", "invalid_purpose")


async def test_tenants_see_and_cancel_only_their_own(ada: openai.AsyncOpenAI, bob: openai.AsyncOpenAI) -> None:
    of_bob = [one.id async for one in bob.batches.list()]
    batch = await ended(ada, (await made(ada, [request_line("a")])).id)
    for ask in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await ask(batch.id)
    assert [one.id async for one in bob.batches.list()] == of_bob
    with pytest.raises(openai.NotFoundError):
        await bob.files.content(batch.output_file_id or "")
    with pytest.raises(openai.NotFoundError):
        await bob.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")


async def test_pages_hold_every_batch_once_newest_first(bob: openai.AsyncOpenAI) -> None:
    ids = [(await made(bob, [request_line("a")])).id for _ in range(3)]
    assert [one.id async for one in bob.batches.list(limit=2)] == sorted(ids, reverse=True)
    for batch_id in ids:
        await ended(bob, batch_id)


async def test_cancelling_ends_what_is_under_way_and_keeps_what_was_answered(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    tier = working.tier(2)
    tier.hold_at = 1
    lines = [request_line("quick"), *(request_line(f"slow{n}", model="tier-2") for n in range(20))]
    batch = await made(ada, lines)
    await tier.holding.wait()
    started = len(tier.requests)
    await until_answered(ada, batch.id, 1)

    cancelled = await ada.batches.cancel(batch.id)
    batch, output, errors = await outcome(ada, batch.id)

    assert cancelled.status == "cancelling"
    assert (batch.status, list(output)) == ("cancelled", ["quick"])
    assert (batch.cancelled_at or 0) >= (batch.cancelling_at or 0) > 0
    assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
    assert len(errors) == 20
    assert tier.closed_early == len(tier.requests) <= started + 4
    assert working.serving.service.in_flight == 0
    assert (await ada.batches.cancel(batch.id)).status == "cancelled"


async def held_batch(working: RunningGateway, client: openai.AsyncOpenAI) -> tuple[ScriptedTier, Batch]:
    """A batch of one line, `a`, and its tier, which holds the answer until `go` is set."""
    tier = working.tier(1)
    tier.hold_at = 1
    batch = await made(client, [request_line("a")])
    await tier.holding.wait()
    return tier, batch


async def test_a_line_that_is_delivered_twice_is_answered_once_and_billed_for_both_times(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    tier, batch = await held_batch(working, ada)
    tier.holding.clear()
    lost = update(batch_lines).where(batch_lines.c.batch_id == batch.id).values(visible_at=0.0, taken_by=None)
    async with working.serving.database.begin() as connection:
        await connection.execute(lost)
    await tier.holding.wait()
    tier.go.set()
    batch, output, errors = await outcome(ada, batch.id)
    assert (list(output), errors) == (["a"], {})

    await working.serving.records.flush()  # type: ignore[attr-defined]
    async with working.serving.database.connect() as connection:
        rows = await connection.execute(select(requests.c.request_id, requests.c.tags, requests.c.cost_usd))
        billed = {name: cost for name, tags, cost in rows if tags == {"batch_id": batch.id}}
    assert output["a"]["response"]["request_id"] in billed
    assert len(billed) == 2
    assert min(billed.values()) > 0


async def test_what_has_ended_cannot_be_cancelled(ada: openai.AsyncOpenAI) -> None:
    batch = await ended(ada, (await made(ada, [request_line("a")])).id)
    with pytest.raises(openai.ConflictError) as caught:
        await ada.batches.cancel(batch.id)
    assert caught.value.code == "batch_not_cancellable"


async def test_at_the_end_of_its_window_a_batch_expires_with_what_was_answered(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    tier = working.tier(2)
    tier.hold_at = 1
    batch = await made(ada, [request_line("quick"), request_line("slow", model="tier-2")])
    await tier.holding.wait()
    await until_answered(ada, batch.id, 1)
    async with working.serving.database.begin() as connection:
        await connection.execute(update(batches).where(batches.c.batch_id == batch.id).values(expires_at=1.0))

    batch, output, errors = await outcome(ada, batch.id)

    assert (batch.status, list(output), list(errors)) == ("expired", ["quick"], ["slow"])
    assert errors["slow"]["error"]["code"] == "batch_expired"
    assert batch.expired_at is not None
    assert tier.closed_early == 1


async def test_a_deleted_input_does_not_stop_a_batch_that_has_read_it(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    tier, batch = await held_batch(working, ada)
    await ada.files.delete(batch.input_file_id)
    tier.go.set()
    _, output, _ = await outcome(ada, batch.id)
    assert list(output) == ["a"]


async def test_a_batch_takes_no_more_places_than_the_knob_says_and_users_go_first(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    tier = working.tier(2)
    tier.hold_at = 1
    body = {"concurrency": 2, "reason": "a test"}
    changed = await working.http.patch("/v1/admin/knobs/batches", json=body, headers=ADMIN)
    assert changed.json()["changed"][0]["new_value"] == 2
    batch = await made(ada, [request_line(f"r{n}", model="tier-2") for n in range(5)])
    await until(ada, batch.id, "in_progress")
    await tier.holding.wait()
    answer = await ada.chat.completions.create(model="tier-1", messages=[{"role": "user", "content": "Hi"}])
    assert answer.choices[0].message.content == TEXT
    assert len(tier.requests) <= 2
    tier.go.set()
    _, output, _ = await outcome(ada, batch.id)
    assert len(output) == 5
    await working.http.patch("/v1/admin/knobs/batches", json={"concurrency": None}, headers=ADMIN)


async def test_administrators_see_all_batches_and_what_the_queue_is_like(
    working: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    batch = await ended(ada, (await made(ada, [request_line("a")])).id)
    query = {"status": "completed", "key_id": "ada"}
    rows = (await working.http.get("/admin/api/batches", params=query, headers=ADMIN)).json()["rows"]
    assert rows[0]["batch_id"] == batch.id
    assert rows[0]["completed"] == 1
    text = (await working.http.get("/metrics")).text
    assert "aio_batch_lines_waiting 0.0" in text
    assert 'aio_batch_lines_total{outcome="done"}' in text


async def test_erasing_a_user_erases_her_batches(working: RunningGateway, bob: openai.AsyncOpenAI) -> None:
    batch = await ended(bob, (await made(bob, [request_line("a")])).id)
    await working.http.delete("/admin/api/users/bob", headers=ADMIN)
    with pytest.raises(openai.NotFoundError):
        await bob.batches.retrieve(batch.id)
    with pytest.raises(openai.NotFoundError):
        await lines_of(bob, batch.output_file_id)


@pytest.mark.slow
async def test_a_thousand_lines_end_to_end(ada: openai.AsyncOpenAI) -> None:
    names = [f"r{n}" for n in range(1000)]
    batch, output, errors = await outcome(ada, (await made(ada, [request_line(name) for name in names])).id)
    assert (batch.status, list(output), errors) == ("completed", names, {})
