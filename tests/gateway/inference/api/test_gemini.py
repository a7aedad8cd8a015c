"""Gemini's API beyond its recordings: its paths, the two forms of a stream, counts, models and embeddings."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from tests.gateway.walk import BOUNDED
from tests.support.app import RunningGateway, running_gateway
from tests.support.served import UNCACHED
from tests.support.upstream import Call, LoopbackServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Hello there, how are you?"
USER = {"role": "user", "parts": [{"text": "Say hello."}]}


async def ask(gateway: RunningGateway, method: str = "generateContent", model: str = "tier-1", **fields: Any) -> Any:
    """The answer, or the error, to a body with these fields."""
    path = f"/v1beta/models/{model}:{method}"
    answer = await gateway.http.post(path, json={"contents": [USER]} | fields, headers=UNCACHED)
    return answer.json()


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1"])
@pytest.mark.parametrize("query", ["?alt=sse", ""])
async def test_a_stream_is_events_or_an_array(gateway: RunningGateway, prefix: str, query: str) -> None:
    path = f"{prefix}/models/tier-1:streamGenerateContent{query}"
    answer = await gateway.http.post(path, json={"contents": [USER]}, headers=UNCACHED)
    if query:
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    else:
        assert answer.headers["content-type"] == "application/json"
        pieces = answer.json()
    parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
    assert "".join(part["text"] for part in parts) == SAID
    assert [piece["candidates"][0].get("finishReason") for piece in pieces[-2:]] == [None, "STOP"]
    assert pieces[-1]["usageMetadata"]["candidatesTokenCount"] == 5


@pytest.mark.parametrize("query", ["?alt=sse", ""])
async def test_a_stream_that_breaks_ends_with_googles_error(gateway: RunningGateway, query: str) -> None:
    gateway.tier(1).fail_at = 2
    path = f"/v1beta/models/tier-1:streamGenerateContent{query}"
    text = (await gateway.http.post(path, json={"contents": [USER]}, headers=UNCACHED)).text
    last = json.loads(text.strip().rpartition("data: ")[2]) if query else json.loads(text)[-1]
    assert last["error"]["status"] == "INTERNAL"
    assert last["usageMetadata"]["candidatesTokenCount"] == 2


async def test_unknown_models_and_methods_are_not_found(gateway: RunningGateway) -> None:
    for model, method in (("none", "generateContent"), ("tier-1", "predict"), ("none", "embedContent")):
        error = (await ask(gateway, method, model, content=USER))["error"]
        assert (error["code"], error["status"]) == (404, "NOT_FOUND")
    for path, headers in (("/v1beta/files", {}), ("/v1/cachedContents", {"x-goog-api-key": "unused"})):
        missing = await gateway.http.get(path, headers=headers)
        assert missing.json()["error"]["status"] == "NOT_FOUND"


async def test_tokens_are_counted_alone_or_of_a_whole_request(gateway: RunningGateway) -> None:
    alone = await ask(gateway, "countTokens")
    body = {"generateContentRequest": {"model": "models/tier-1", "contents": [USER]}}
    whole = await gateway.http.post("/v1beta/models/tier-1:countTokens", json=body)
    assert alone == whole.json() == {"totalTokens": 6}


async def test_models_have_googles_form_for_its_clients_alone(gateway: RunningGateway) -> None:
    listed = (await gateway.http.get("/v1beta/models", params={"pageSize": 2})).json()
    assert [one["name"] for one in listed["models"]] == ["models/auto", "models/tier-1"]
    more = (await gateway.http.get("/v1beta/models", params={"pageToken": listed["nextPageToken"]})).json()
    assert more["models"][0]["name"] == "models/tier-2"
    assert "nextPageToken" not in more
    named = await gateway.http.get("/v1/models/tier-1", headers={"x-goog-api-key": "unused"})
    assert named.json()["supportedGenerationMethods"][0] == "generateContent"
    assert (await gateway.http.get("/v1/models/tier-1")).json()["object"] == "model"


async def embedded(call: Call) -> None:
    vectors = [{"index": place, "embedding": [0.6, 0.8]} for place in range(len(call.body["input"]))]
    await call.reply(200, {"data": vectors, "usage": {"prompt_tokens": 2, "total_tokens": 2}})


CATALOGUE = """
[[tiers]]
name = "one"
url = "{url}"

[[tiers]]
name = "other"
url = "{url}"
price = {{ input_usd_per_million = 90, output_usd_per_million = 90 }}

[[embeddings]]
name = "e"
url = "{url}"
model = "e"
input_usd_per_million = 1
"""


async def test_texts_are_embedded_alone_or_together(tmp_path: Path) -> None:
    one = {"content": {"parts": [{"text": "a"}]}, "taskType": "RETRIEVAL_QUERY"}
    async with LoopbackServer(embedded) as server:
        (tmp_path / "catalog.toml").write_text(CATALOGUE.format(url=server.base_url))
        settings = Settings(data_dir=str(tmp_path / "data"), catalog=str(tmp_path / "catalog.toml"), monitor=False)
        async with running_gateway(settings, scripted=False, protocol=BOUNDED) as gateway:
            alone = await gateway.http.post("/v1beta/models/e:embedContent", json=one)
            both = await ask(gateway, "batchEmbedContents", "e", requests=[one, one])
            other = one | {"outputDimensionality": 4}
            mixed = await ask(gateway, "batchEmbedContents", "e", requests=[one, other])
    assert alone.json() == {"embedding": {"values": [0.6, 0.8]}}
    assert alone.headers["x-aio-ignored-fields"] == "taskType"
    assert both == {"embeddings": [{"values": [0.6, 0.8]}] * 2}
    assert mixed["error"]["details"][0]["fieldViolations"][0]["field"] == "requests"
