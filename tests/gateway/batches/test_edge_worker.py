"""A worker at the edge that speaks the contract of docs/reference/edge-workers.md: HTTP in, queue out (SPEC AS-06)."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEYS = {"ada": "test-ada-021e396f1e3ce9d4889bb83e68344d8b", "bob": "test-bob-1b892e8121353734aca120232cf84021"}
TEXT = "Hello there, how are you?"
ENDPOINT = "/v1/chat/completions"
# What AIO calls a batch whose answers are still to come.
UNFINISHED = ("validating", "in_progress", "finalizing")
LATER = {"retry-after": "1"}


class EdgeWorker:
    """Takes callers' requests by `fetch` and asks AIO for all it answers; it remembers nothing between two calls."""

    def __init__(self, aio: httpx.AsyncClient) -> None:
        self._aio = aio

    async def fetch(self, request: httpx.Request) -> httpx.Response:
        """Answer one request of a caller."""
        passed = {name: request.headers[name] for name in ("authorization", "traceparent") if name in request.headers}
        batch_id = request.url.path.removeprefix("/jobs").strip("/")
        if request.method == "POST":
            answer = await self._queue(json.loads(request.content), passed)
        elif request.method == "DELETE":
            cancelled = await self._aio.post(f"/v1/batches/{batch_id}/cancel", headers=passed)
            answer = httpx.Response(202) if cancelled.status_code == 200 else cancelled
        else:
            answer = await self._look(batch_id, passed)
        return httpx.Response(answer.status_code, headers=_kept(answer), content=answer.content)

    async def _queue(self, body: dict[str, Any], passed: dict[str, str]) -> httpx.Response:
        job = uuid.uuid4().hex
        line = json.dumps({"custom_id": job, "method": "POST", "url": ENDPOINT, "body": body}).encode()
        file = await self._aio.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("job.jsonl", line)}, headers=passed
        )
        if file.status_code != 200:
            return file
        wanted = {
            "input_file_id": file.json()["id"],
            "endpoint": ENDPOINT,
            "completion_window": "1h",
            "metadata": {"job": job},
        }
        batch = await self._aio.post("/v1/batches", json=wanted, headers=passed)
        if batch.status_code != 200:
            return batch
        return httpx.Response(202, headers={"location": f"/jobs/{batch.json()['id']}"} | LATER)

    async def _look(self, batch_id: str, passed: dict[str, str]) -> httpx.Response:
        found = await self._aio.get(f"/v1/batches/{batch_id}", headers=passed)
        if found.status_code != 200:
            return found
        batch = found.json()
        if batch["status"] in (*UNFINISHED, "cancelling"):
            return httpx.Response(202, headers=LATER)
        if batch["status"] == "failed":
            return httpx.Response(400, json=batch["errors"]["data"])
        file_id = batch["output_file_id"] or batch["error_file_id"]
        content = await self._aio.get(f"/v1/files/{file_id}/content", headers=passed)
        if content.status_code != 200:
            return content
        [line] = [json.loads(text) for text in content.text.splitlines()]
        if line["response"] is not None:
            return httpx.Response(line["response"]["status_code"], json=line["response"]["body"])
        status = {"batch_expired": 504, "batch_cancelled": 410}.get(line["error"]["code"], 502)
        return httpx.Response(status, json=line["error"])


def _kept(answer: httpx.Response) -> dict[str, str]:
    return {
        name: answer.headers[name] for name in ("content-type", "location", "retry-after") if name in answer.headers
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def working(module_app: StartApp) -> RunningGateway:
    return await module_app(api_keys=",".join(f"{name}={key}" for name, key in KEYS.items()))


@pytest_asyncio.fixture(loop_scope="module")
async def edge(working: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of the worker, with Ada's key."""
    working.reset()
    async with (
        httpx.AsyncClient(base_url=working.url, timeout=120) as aio,
        httpx.AsyncClient(
            transport=httpx.MockTransport(EdgeWorker(aio).fetch),
            base_url="https://edge.example",
            headers={"authorization": f"Bearer {KEYS['ada']}"},
        ) as caller,
    ):
        yield caller


async def queued(edge: httpx.AsyncClient, **body: Any) -> str:
    """Where the answer will be."""
    asked = {"model": "tier-1", "messages": [{"role": "user", "content": "Say something."}]} | body
    answer = await edge.post("/jobs", json=asked)
    assert (answer.status_code, answer.headers["retry-after"]) == (202, "1"), answer.text
    return answer.headers["location"]


async def answered(edge: httpx.AsyncClient, place: str) -> httpx.Response:
    """What is there once it is no promise any more."""

    async def final() -> httpx.Response | None:
        answer = await edge.get(place)
        return None if answer.status_code == 202 else answer

    found: httpx.Response = await eventually(final, every=0.02)
    return found


async def test_a_request_is_queued_and_its_answer_is_fetched_later(edge: httpx.AsyncClient) -> None:
    place = await queued(edge)
    answer = await answered(edge, place)

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == TEXT
    assert (await edge.delete(place)).status_code == 409


async def test_the_queue_holds_a_request_while_its_tier_is_busy(
    edge: httpx.AsyncClient, working: RunningGateway
) -> None:
    working.tier(1).hold_at = 2
    place = await queued(edge)
    await working.tier(1).holding.wait()

    assert (await edge.get(place)).status_code == 202

    working.tier(1).go.set()
    assert (await answered(edge, place)).status_code == 200


async def test_what_is_wrong_with_a_request_is_its_answer(edge: httpx.AsyncClient) -> None:
    streaming = await answered(edge, await queued(edge, stream=True))
    unknown = await answered(edge, await queued(edge, model="no-such-model"))

    assert (streaming.status_code, streaming.json()["error"]["param"]) == (400, "stream")
    assert unknown.status_code == 404


async def test_a_cancelled_request_is_gone(edge: httpx.AsyncClient, working: RunningGateway) -> None:
    working.tier(1).hold_at = 0
    place = await queued(edge)
    await working.tier(1).holding.wait()

    assert (await edge.delete(place)).status_code == 202
    answer = await answered(edge, place)

    assert (answer.status_code, answer.json()["code"]) == (410, "batch_cancelled")


async def test_the_callers_key_and_trace_go_with_the_request(edge: httpx.AsyncClient, working: RunningGateway) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "Say something."}]}
    made = await edge.post("/jobs", json=body, headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    place = made.headers["location"]
    await answered(edge, place)

    trace = working.tier(1).requests[-1].trace
    assert trace is not None
    assert trace.traceparent.split("-")[1] == trace_id
    bobs = {"authorization": f"Bearer {KEYS['bob']}"}
    assert (await edge.get(place, headers=bobs)).status_code == 404
    assert (await edge.post("/jobs", json=body, headers={"authorization": "Bearer wrong"})).status_code == 401
