"""Requests for embeddings are in the ledger, in lists and in bills, and nothing else takes them for answers."""

import asyncio
import csv
from typing import Any

import openai
import pytest
import pytest_asyncio
from sqlalchemy import func, select

from migrations.tables.requests import requests, routing_decisions
from quality.records.record import EmbeddingRecord
from tests.gateway.embedding_catalog import TOKEN_USD, embedding_settings
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tiers.tier import Usage, UsageMeter

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEYS = {"ada": "test-ada-021e396f1e3ce9d4889bb83e68344d8b", "bob": "test-bob-1b892e8121353734aca120232cf84021"}
ADMIN_KEY = "test-admin-07158b06243a3ef4b8e7746013aa659a"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
TEXT = "embedded texts are not stored"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encoding(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    return await module_app(
        embedding_settings(
            tmp_path_factory.mktemp("encoder"),
            api_keys=",".join(f"{name}={key}" for name, key in KEYS.items()),
            admin_keys=f"root={ADMIN_KEY}",
        )
    )


@pytest.fixture
def ada(encoding: RunningGateway) -> openai.AsyncOpenAI:
    return encoding.openai.with_options(api_key=KEYS["ada"])


async def embedded(client: openai.AsyncOpenAI, model: str = "tiny", **fields: Any) -> tuple[str, int]:
    """The id of a request for one text's vector, and its tokens."""
    raw = await client.embeddings.with_raw_response.create(model=model, input=TEXT, extra_body=fields)
    return raw.headers["x-request-id"], raw.parse().usage.prompt_tokens


async def shown(gateway: RunningGateway, path: str, **query: Any) -> Any:
    """What an administrator sees, once everything is stored."""
    await gateway.serving.records.flush()  # type: ignore[attr-defined]
    answer = await gateway.http.get(path, params=query, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer


async def record(gateway: RunningGateway, request_id: str) -> EmbeddingRecord:
    found = await gateway.serving.records.find(request_id)
    assert isinstance(found, EmbeddingRecord)
    return found


async def test_its_caller_finds_the_record_before_and_after_the_database_has_it(
    encoding: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    request_id, tokens = await embedded(ada, metadata={"project": "search"})
    waiting = await record(encoding, request_id)
    await encoding.serving.records.flush()  # type: ignore[attr-defined]
    assert await record(encoding, request_id) == waiting
    assert (waiting.status, waiting.model, waiting.key_id, waiting.tags) == (
        "ok", "tiny", "ada", {"project": "search"},
    )  # fmt: skip
    assert (waiting.prompt_tokens, waiting.cost_usd) == (tokens, pytest.approx(tokens * TOKEN_USD))
    assert 0 < waiting.overhead_ms < waiting.e2e_ms
    assert waiting.replica == encoding.access.tenancy.replica
    own = {"authorization": f"Bearer {KEYS['ada']}"}
    shown = (await encoding.http.get(f"/v1/requests/{request_id}", headers=own)).json()
    assert (shown["api"], shown["prompt_tokens"]) == ("embedding", tokens)
    others = {"authorization": f"Bearer {KEYS['bob']}"}
    assert (await encoding.http.get(f"/v1/requests/{request_id}", headers=others)).status_code == 404


async def test_no_text_and_no_decision_is_stored(encoding: RunningGateway, ada: openai.AsyncOpenAI) -> None:
    request_id, _ = await embedded(ada)
    await encoding.serving.records.flush()  # type: ignore[attr-defined]
    async with encoding.serving.database.connect() as connection:
        row = (await connection.execute(select(requests).where(requests.c.request_id == request_id))).mappings().one()
        mine = routing_decisions.c.request_id == request_id
        assert await connection.scalar(select(func.count()).select_from(routing_decisions).where(mine)) == 0
    assert TEXT not in repr(dict(row))
    assert row["tier"] is None


async def test_operators_list_it_export_it_and_look_at_it(encoding: RunningGateway, ada: openai.AsyncOpenAI) -> None:
    request_id, tokens = await embedded(ada)
    answer = await ada.chat.completions.create(model="tier-1", messages=[{"role": "user", "content": "hello"}])
    [newest, before] = (await shown(encoding, "/admin/api/requests", key_id="ada", limit=2)).json()["rows"]
    assert (newest["request_id"], newest["tier"]) == (answer.id, 1)
    assert (before["request_id"], before["tier"], before["api"]) == (request_id, None, "embedding")
    of_tier = (await shown(encoding, "/admin/api/requests", tier=1)).json()["rows"]
    assert {row["api"] for row in of_tier} == {"chat"}
    lines = list(csv.DictReader((await shown(encoding, "/admin/api/requests", format="csv")).text.splitlines()))
    [line] = [line for line in lines if line["request_id"] == request_id]
    assert (line["tier"], line["prompt_tokens"]) == ("", str(tokens))
    one = (await shown(encoding, f"/admin/api/requests/{request_id}")).json()
    assert (one["request"]["model"], one["verifications"]) == ("tiny", [])
    row = (await shown(encoding, f"/admin/api/requests/{request_id}", format="csv")).text
    assert request_id in row
    async with browser(encoding) as admin:
        await sign_in(admin, ADMIN_KEY)
        listed, page = await admin.get("/admin/requests"), await admin.get(f"/admin/requests/{request_id}")
    assert ">Embeddings</td>" in listed.text
    assert (page.status_code, f"<code>{request_id}</code>" in page.text) == (200, True)


async def test_costs_include_it_by_key_by_tag_and_next_to_the_tiers(
    encoding: RunningGateway, ada: openai.AsyncOpenAI
) -> None:
    _, tokens = await embedded(encoding.openai.with_options(api_key=KEYS["bob"]), metadata={"project": "billed"})
    await ada.chat.completions.create(model="tier-1", messages=[{"role": "user", "content": "hello"}])
    report = (await shown(encoding, "/admin/api/report", tag="project")).json()["cost"]["costs"]
    cost = pytest.approx(tokens * TOKEN_USD)
    assert {part["name"]: part["spent"]["cost_usd"] for part in report["by_tag"]}["billed"] == cost
    assert {part["name"]: part["spent"]["cost_usd"] for part in report["by_key"]}["bob"] == cost
    embeddings = {part["name"]: part for part in report["by_tier"]}["embeddings"]
    # No tier could have given vectors, so that nothing is saved.
    assert embeddings["net"]["share"] == 0
    assert embeddings["spent"]["requests"] + 1 <= report["total"]["spent"]["requests"]


async def test_one_that_fails_costs_nothing_and_one_that_is_left_what_the_model_was_given_to_read(
    encoding: RunningGateway, ada: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = encoding.serving.embedders["tiny"], asyncio.Event()

    async def never(rows: list[list[int]], *, meter: UsageMeter, **fields: object) -> None:
        meter.add(lambda: Usage(prompt_tokens=len(rows[0])))
        asked.set()
        await asyncio.Event().wait()

    async def fails(*args: object, **fields: object) -> None:
        raise ValueError("no memory")

    monkeypatch.setattr(model, "embed", fails)
    with pytest.raises(openai.InternalServerError) as caught:
        await embedded(ada)
    failed = await record(encoding, caught.value.response.headers["x-request-id"])
    monkeypatch.setattr(model, "embed", never)
    leaving = asyncio.create_task(embedded(ada.with_options(default_headers={"x-request-id": "left-it"})))
    await asked.wait()
    leaving.cancel()

    async def aborted() -> Any:
        newest = (await shown(encoding, "/admin/api/requests", key_id="ada", limit=1)).json()["rows"][0]
        return newest if newest["status"] == "aborted" else None

    newest = await eventually(aborted)
    assert (failed.status, failed.http_status, failed.error) == ("error", 500, "ValueError: no memory")
    assert (newest["api"], newest["http_status"]) == ("embedding", 499)
    assert (failed.cost_usd, failed.prompt_tokens) == (0, 0)
    tokens = len(model.tokens(TEXT))
    assert (newest["cost_usd"], newest["prompt_tokens"]) == (pytest.approx(tokens * TOKEN_USD), tokens)


async def test_it_is_no_answer_to_rate(encoding: RunningGateway, ada: openai.AsyncOpenAI) -> None:
    request_id, _ = await embedded(ada)
    own = {"authorization": f"Bearer {KEYS['ada']}"}
    rated = await encoding.http.post("/v1/feedback", json={"request_id": request_id, "rating": "up"}, headers=own)
    assert (rated.status_code, rated.json()["error"]["code"]) == (400, "not_an_answer")
