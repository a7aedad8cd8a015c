"""The paths and headers under which clients look for each API: all lead to the same endpoints."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from gateway.edge.client_paths import ServedPath, served_path
from gateway.tenancy import guard
from gateway.tenancy.keys.key_secrets import new_key
from tests.gateway.edge.raw_http import exchanged, head
from tests.gateway.walk import BOUNDED
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Hello there, how are you?"
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
KEY = new_key()[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bounded(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    """A gateway with the HTTP protocol of production, and a key that it asks for."""
    folder: Path = tmp_path_factory.mktemp("data")
    return await module_app(protocol=BOUNDED, data_dir=str(folder), api_keys=f"tests={KEY}")


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/api/v1/messages", "/v1/messages"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/openai/responses/resp_1", "/v1/responses/resp_1"),
        ("/models/openai/gpt-5", "/v1/models/openai/gpt-5"),
        ("//v1/messages", "/v1/messages"),
        ("/v1beta/openai/chat/completions", "/v1/chat/completions"),
        ("/inference/v1/completions", "/v1/completions"),
        ("/cursor/chat/completions", "/v1/chat/completions"),
        ("/v2/rerank", "/v1/rerank"),
        ("/v2/models", "/v2/models"),
        # A model's name may look like a prefix, and the gateway's own paths are its own.
        ("/v1/models/v1/models", "/v1/models/v1/models"),
        ("/chats", "/chats"),
        ("/api/models", "/api/models"),
        ("/openai/deployments/a", "/openai/deployments/a"),
        ("/metrics", "/metrics"),
        ("/api/hello", "/health/live"),
        ("/health", "/health/ready"),
        ("/v1/health", "/health/ready"),
        ("/tokenize", "/tokenize"),
        ("/admin/models", "/admin/models"),
        ("/", "/"),
    ],
)
async def test_each_path_is_that_of_one_endpoint(path: str, served: str) -> None:
    assert served_path(path) == ServedPath(served)


@pytest.mark.parametrize("base", ["", "/v1", "/v1/", "/openai/v1", "/v1/v1"])
async def test_openais_client_reaches_every_api_whatever_its_base_url(bounded: RunningGateway, base: str) -> None:
    async with openai.AsyncOpenAI(base_url=bounded.url + base, api_key=KEY, max_retries=0) as client:
        chat = await client.chat.completions.create(model="tier-1", messages=HELLO)
        assert chat.choices[0].message.content == SAID
        assert (await client.responses.create(model="tier-1", input="Say hello.")).output_text == SAID
        assert "tier-1" in [model.id async for model in client.models.list()]
        assert (await client.models.retrieve("tier-1")).id == "tier-1"


@pytest.mark.parametrize("base", ["", "/v1", "/anthropic"])
async def test_anthropics_client_does_too(bounded: RunningGateway, base: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=bounded.url + base, api_key=KEY, max_retries=0) as client:
        answer = await client.beta.messages.create(model="tier-1", max_tokens=9, messages=HELLO, betas=["a-beta-2026"])
        assert [block.text for block in answer.content if block.type == "text"] == [SAID]
        counted = await client.messages.count_tokens(model="tier-1", messages=HELLO)
        assert counted.input_tokens > 0


async def test_azures_client_names_the_model_in_its_path(bounded: RunningGateway) -> None:
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=bounded.url, api_key=KEY, api_version="2024-10-21", max_retries=0
    ) as client:
        answer = await client.chat.completions.create(model="tier-2", messages=HELLO)
        assert (answer.choices[0].message.content, answer.model) == (SAID, "smollm2-bf16")


@pytest.mark.parametrize(
    ("deployment", "body", "status"),
    [
        ("tier-1", {"messages": HELLO}, 200),
        ("tier-1", {"messages": HELLO, "model": "no such model"}, 200),
        ("no-such-model", {"messages": HELLO, "model": "tier-1"}, 404),
        ("tier-1", {"messages": "?"}, 400),
    ],
)
async def test_the_deployment_is_the_model_whatever_the_body_says(
    bounded: RunningGateway, deployment: str, body: dict[str, Any], status: int
) -> None:
    path = f"/openai/deployments/{deployment}/chat/completions?api-version=2024-10-21"
    answer = await bounded.http.post(path, json=body, headers={"api-key": KEY}, auth=None)
    assert answer.status_code == status, answer.text


async def test_an_engine_is_the_model_too(bounded: RunningGateway) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    for path in ("/v1/engines/tier-2/completions", "/engines/tier-2/completions"):
        answer = await bounded.http.post(path, json={"prompt": "Hi"}, headers=headers, auth=None)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "smollm2-bf16"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/conversations", 404), ("GET", "/v1/messages/batches", 404), ("GET", "/v1/chat/completions", 405)],
)
async def test_a_path_that_is_not_there_is_named(bounded: RunningGateway, method: str, path: str, status: int) -> None:
    answer = await bounded.http.request(method, path, headers={"authorization": f"Bearer {KEY}"}, auth=None)
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == f"There is no {method} {path} here; /docs lists all endpoints."
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tier-1", "/health/live", "/v1/messages", "/v1/none"])
async def test_a_head_is_that_of_the_same_get_without_its_body(bounded: RunningGateway, path: str) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    got = await bounded.http.get(path, headers=headers, auth=None)
    answer = await bounded.http.head(path, headers=headers, auth=None)
    assert (answer.status_code, answer.content) == (got.status_code, b"")
    assert answer.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"[" * 200])
async def test_a_deployments_body_that_is_no_object_is_a_400(bounded: RunningGateway, body: bytes) -> None:
    path, kind = "/openai/deployments/tier-1/chat/completions", "application/json"
    answer = await bounded.http.post(path, content=body, headers={"api-key": KEY, "content-type": kind}, auth=None)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"api-key": KEY}, 200),
        ({"x-api-key": KEY}, 200),
        ({"authorization": "Bearer", "x-api-key": KEY}, 200),
        ({"authorization": "Bearer x", "x-api-key": KEY}, 401),
        ({"api-key": "wrong"}, 401),
        ({}, 401),
    ],
)
async def test_azures_header_has_the_key(bounded: RunningGateway, headers: dict[str, str], status: int) -> None:
    answer = await bounded.http.get("/openai/models?api-version=2024-10-21", headers=headers, auth=None)
    assert answer.status_code == status


async def test_a_failure_on_another_path_of_messages_has_anthropics_envelope(bounded: RunningGateway) -> None:
    answer = await bounded.http.post("/messages", json={"model": "tier-1"}, headers={"x-api-key": KEY}, auth=None)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")


CHAT = json.dumps({"model": "tier-1", "messages": HELLO}).encode()
STREAMED = json.dumps({"model": "tier-1", "messages": HELLO, "stream": True}).encode()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_http_1_0_gets_no_chunks_and_the_end_of_the_connection(
    bounded: RunningGateway, path: str, stream: bool
) -> None:
    fields = {"input": "Hi"} if path == "/v1/responses" else {"messages": HELLO, "max_tokens": 9}
    body = json.dumps({"model": "tier-1", "stream": stream} | fields).encode()
    answer = await exchanged(bounded.port, head(path, len(body), "1.0", KEY) + body)
    start, _, rest = answer.partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in start
    assert b"connection: close" in start
    if stream:
        assert rest.startswith(b"data: " if path == "/v1/chat/completions" else b"event: ")
        assert rest.endswith(b"\n\n")
    else:
        json.loads(rest)


@pytest.mark.parametrize(
    "more",
    [
        "expect: 100-continue",
        "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__",
        "connection: keep-alive, upgrade\r\nupgrade: tls/1.2",
    ],
)
async def test_what_a_client_offers_besides_is_no_hindrance(bounded: RunningGateway, more: str) -> None:
    # Both on one connection: the first answer leaves it as it was.
    first = head("/v1/chat/completions", len(CHAT), "1.1", KEY, more) + CHAT
    last = head("/v1/chat/completions", len(STREAMED), "1.1", KEY, "connection: close") + STREAMED
    answer = await exchanged(bounded.port, first, last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"data: [DONE]" in answer
    assert answer.startswith(b"HTTP/1.1 100") == more.startswith("expect")


async def test_a_client_of_http_1_0_gets_no_100_continue(bounded: RunningGateway) -> None:
    answer = await exchanged(bounded.port, head("/v1/models", 0, "1.0", KEY, "expect: 100-continue"))
    assert b" 100 " not in answer


async def test_a_body_in_chunks_of_single_bytes_is_read(bounded: RunningGateway) -> None:
    start = head("/v1/chat/completions", None, "1.1", KEY, "transfer-encoding: chunked\r\nconnection: close")
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in CHAT)
    assert (await exchanged(bounded.port, start + chunks + b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_several_paths_on_one_connection(bounded: RunningGateway) -> None:
    """Requests in one packet under several paths are answered in their order."""
    paths = ("/models", "/v1/models", "/openai/v1/models")
    asked = b"".join(head(path, 0, "1.1", KEY) for path in paths[:-1]) + head(
        paths[-1], 0, "1.1", KEY, "connection: close"
    )
    async with asyncio.timeout(120):
        answer = await exchanged(bounded.port, asked.replace(b"POST", b"GET"))
    assert answer.count(b"HTTP/1.1 200") == 3


ANTHROPIC = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}


async def test_anthropics_client_lists_all_models_page_by_page(bounded: RunningGateway) -> None:
    plain = await bounded.http.get("/v1/models", headers={"x-api-key": KEY}, auth=None)
    ids = [model["id"] for model in plain.json()["data"]]
    async with anthropic.AsyncAnthropic(base_url=bounded.url, api_key=KEY, max_retries=0) as client:
        for limit in (1, 2, 1000):
            models = [model async for model in client.models.list(limit=limit)]
            assert [model.id for model in models] == ids
            assert all(model.type == "model" and model.display_name and model.created_at for model in models)
        one = await client.models.retrieve("tier-1")
        assert (one.id, one.display_name) == ("tier-1", "tier-1")
        assert one.max_input_tokens == bounded.tier(1).max_context
        assert one.to_dict()["lifecycle"] == "active", "required since version 2 of the client"
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.models.retrieve("no-such-model")
        assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


@pytest.mark.parametrize(
    ("query", "places", "has_more"),
    [
        ("limit=2", slice(0, 2), True),
        ("after_id=auto&limit=1", slice(1, 2), True),
        ("before_id=tier-2&limit=1", slice(1, 2), True),
        ("before_id=tier-1", slice(0, 1), False),
        ("limit=1000", slice(0, None), False),
    ],
)
async def test_a_page_of_models_says_what_it_is(
    bounded: RunningGateway, query: str, places: slice, has_more: bool
) -> None:
    ids = [model["id"] for model in (await bounded.http.get("/v1/models", headers=ANTHROPIC, auth=None)).json()["data"]]
    page = (await bounded.http.get(f"/v1/models?{query}", headers=ANTHROPIC, auth=None)).json()
    wanted = ids[places]
    assert [model["id"] for model in page["data"]] == wanted
    assert (page["has_more"], page["first_id"], page["last_id"]) == (has_more, wanted[0], wanted[-1])


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "after_id=nothing", "before_id=nothing"])
async def test_a_page_that_cannot_be_is_anthropics_400(bounded: RunningGateway, query: str) -> None:
    answer = await bounded.http.get(f"/v1/models?{query}", headers=ANTHROPIC, auth=None)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_large_bodies_share_a_bound_and_give_it_back(
    bounded: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LARGE_BODY", 1000)
    monkeypatch.setattr(guard, "MOST_HELD", 10_000)
    fields, headers = {"model": "tier-1", "messages": HELLO}, {"x-api-key": KEY, "content-type": "application/json"}
    for size, status in ((4000, 200), (4000, 200), (6000, 503), (4000, 200), (900, 200)):
        body = json.dumps(fields).encode()[:-1] + b" " * size + b"}"
        answer = await bounded.http.post("/v1/chat/completions", content=body, headers=headers, auth=None)
        assert answer.status_code == status, (size, answer.text)
    assert guard._LargeBodies.held == 0


async def test_googles_clients_send_the_key_in_their_header_or_the_query(bounded: RunningGateway) -> None:
    for path in ("/v1beta/models/tier-1:countTokens", "/v1/models/tier-1:countTokens"):
        for fields, status in (
            ({"headers": {"x-goog-api-key": KEY}}, 200),
            ({"params": {"key": KEY}}, 200),
            ({"params": {"key": "wrong"}}, 401),
            ({}, 401),
        ):
            answer = await bounded.http.post(path, json={"contents": [{"parts": [{"text": "a"}]}]}, auth=None, **fields)
            assert answer.status_code == status
            assert status == 200 or answer.json()["error"]["status"] == "UNAUTHENTICATED"
    elsewhere = await bounded.http.get("/v1/files", params={"key": KEY}, auth=None)
    assert elsewhere.status_code == 401
