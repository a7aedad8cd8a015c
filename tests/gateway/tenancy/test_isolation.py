"""Two tenants of one gateway: neither sees, rates, continues or times the other's requests."""

from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from tests.support.administrator import ADMIN_HEADERS, bearer
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
# Long enough for whole blocks of the prefix cache.
LONG = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 20}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(aio: RunningGateway) -> dict[str, str]:
    """Keys of ada and ann, who share a team, and of bob."""
    await aio.order("POST", "/teams", {"name": "research"})
    orders = {"ada": {"team": "research"}, "ann": {"team": "research"}, "bob": {}}
    return {name: (await aio.order("POST", "/keys", {"name": name, **team}))["key"] for name, team in orders.items()}


async def asked(aio: RunningGateway, key: str, messages: Any, **headers: str) -> httpx.Response:
    body = {"model": "tier-1", "messages": messages, "max_tokens": 2, "temperature": 0}
    answer = await aio.http.post(CHAT, json=body, headers=bearer(key) | headers)
    assert answer.status_code == 200, answer.text
    await aio.serving.records.recorded(answer.headers["x-aio-decision-id"])  # type: ignore[attr-defined]
    return answer


def cached(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_anothers_record_looks_as_if_there_were_none(aio: RunningGateway, keys: dict[str, str]) -> None:
    request_id = (await asked(aio, keys["ada"], LONG)).headers["x-aio-decision-id"]
    unknown = request_id[:-4] + "0000"
    assert (await aio.http.get(f"/v1/requests/{request_id}", headers=bearer(keys["ada"]))).status_code == 200
    for other in (keys["bob"], keys["ann"]):
        theirs = await aio.http.get(f"/v1/requests/{request_id}", headers=bearer(other))
        nobodys = await aio.http.get(f"/v1/requests/{unknown}", headers=bearer(other))
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(request_id, "ID") == nobodys.text.replace(unknown, "ID")


async def test_anothers_answer_cannot_be_rated(aio: RunningGateway, keys: dict[str, str]) -> None:
    request_id = (await asked(aio, keys["ada"], LONG)).headers["x-aio-decision-id"]
    word = {"request_id": request_id, "rating": "down", "comment": "from somebody else"}
    assert (await aio.http.post("/v1/feedback", json=word, headers=bearer(keys["bob"]))).status_code == 404
    assert (await aio.http.post("/v1/feedback", json=word, headers=bearer(keys["ada"]))).status_code == 200


async def test_the_prefix_cache_does_not_reveal_another_tenants_prompts(
    aio: RunningGateway, keys: dict[str, str]
) -> None:
    secret = [{"role": "user", "content": "The launch code of this tenant is twelve digits long. " * 20}]
    first, of_another_tenant, again, of_the_same_team = [
        cached(await asked(aio, keys[name], secret, **{"x-aio-cache": "off"})) for name in ("ada", "bob", "ada", "ann")
    ]
    # The start of the chat template may be cached from each tenant's earlier requests.
    assert max(first, of_another_tenant) <= 32
    assert min(again, of_the_same_team) > 200


async def test_a_conversation_of_that_id_is_continued_by_its_own_caller_alone(
    aio: RunningGateway, keys: dict[str, str]
) -> None:
    async def previous_tier(key: str) -> int | None:
        answer = await asked(aio, key, LONG, **{"x-aio-conversation": "shared-id"})
        shown = await aio.http.get(f"/v1/requests/{answer.headers['x-aio-decision-id']}", headers=bearer(key))
        tier: int | None = shown.json()["decision"]["inputs"].get("previous_tier")
        return tier

    assert await previous_tier(keys["ada"]) is None
    assert await previous_tier(keys["bob"]) is None
    assert await previous_tier(keys["ada"]) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/admin/api/requests",
        "/admin/api/verifications",
        "/admin/api/report",
        "/admin/api/keys",
        "/admin/api/budgets",
        "/v1/admin/stats",
        "/v1/admin/knobs/core",
    ],
)
async def test_a_key_for_inference_reads_nothing_of_the_operators(
    aio: RunningGateway, keys: dict[str, str], path: str
) -> None:
    assert (await aio.http.get(path, headers=ADMIN_HEADERS)).status_code == 200
    answer = await aio.http.get(path, headers=bearer(keys["bob"]))
    assert answer.status_code in (401, 403)
    assert "ada" not in answer.text


async def test_a_callers_own_request_id_names_nothing_of_anybody_else(
    aio: RunningGateway, keys: dict[str, str]
) -> None:
    first = await asked(aio, keys["ada"], LONG, **{"x-request-id": "same-id"})
    second = await asked(aio, keys["bob"], LONG, **{"x-request-id": "same-id"})
    assert first.headers["x-aio-decision-id"] != second.headers["x-aio-decision-id"]
    assert (await aio.http.get("/v1/requests/same-id", headers=bearer(keys["bob"]))).status_code == 404


async def test_an_answer_is_given_again_to_its_own_tenant_alone(aio: RunningGateway, keys: dict[str, str]) -> None:
    question = [{"role": "user", "content": "What did the tenant ask before?"}]
    said = [(await asked(aio, keys[name], question)).headers["x-aio-cache"] for name in ("ada", "bob", "ada", "ann")]
    assert said == ["miss", "miss", "hit", "hit"]


async def test_files_and_batches_belong_to_the_team(aio: RunningGateway, keys: dict[str, str]) -> None:
    async def asked_of(name: str, method: str, path: str, **given: Any) -> httpx.Response:
        return await aio.http.request(method, f"/v1{path}", headers=bearer(keys[name]), **given)

    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": {"model": "tier-1", "messages": LONG}}
    form = {"files": {"file": ("in.jsonl", msgspec.json.encode(line))}, "data": {"purpose": "batch"}}
    file = (await asked_of("ada", "POST", "/files", **form)).json()["id"]
    wanted = {"input_file_id": file, "endpoint": CHAT, "completion_window": "1h"}

    for method, path in (("GET", f"/files/{file}"), ("GET", f"/files/{file}/content"), ("DELETE", f"/files/{file}")):
        assert (await asked_of("bob", method, path)).status_code == 404
    assert (await asked_of("bob", "POST", "/batches", json=wanted)).status_code == 404
    assert (await asked_of("bob", "GET", "/files")).json()["data"] == []

    assert [one["id"] for one in (await asked_of("ann", "GET", "/files")).json()["data"]] == [file]
    assert (await asked_of("ann", "GET", f"/files/{file}/content")).content == msgspec.json.encode(line)
    batch = (await asked_of("ann", "POST", "/batches", json=wanted)).json()["id"]

    for method, path in (("GET", f"/batches/{batch}"), ("POST", f"/batches/{batch}/cancel")):
        assert (await asked_of("bob", method, path)).status_code == 404
    assert (await asked_of("bob", "GET", "/batches")).json()["data"] == []
    assert [one["id"] for one in (await asked_of("ada", "GET", "/batches")).json()["data"]] == [batch]
    assert (await asked_of("ada", "POST", f"/batches/{batch}/cancel")).status_code in (200, 409)
    assert (await asked_of("ann", "DELETE", f"/files/{file}")).json()["deleted"]


async def test_stored_responses_belong_to_the_team(aio: RunningGateway, keys: dict[str, str]) -> None:
    async def respond(name: str, previous: str | None = None) -> httpx.Response:
        body = {"model": "tier-1", "input": "Hello", "max_output_tokens": 2, "previous_response_id": previous}
        return await aio.http.post("/v1/responses", json=body, headers=bearer(keys[name]))

    first = (await respond("ada")).json()["id"]
    assert (await respond("bob", first)).status_code == 404
    assert (await respond("ann", first)).status_code == 200
    for name, status in (("bob", 404), ("ann", 200)):
        answer = await aio.http.get(f"/v1/responses/{first}", headers=bearer(keys[name]))
        assert answer.status_code == status
        answer = await aio.http.delete(f"/v1/responses/{first}", headers=bearer(keys[name]))
        assert answer.status_code == status
