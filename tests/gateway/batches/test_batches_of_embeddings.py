"""Batches of embeddings by OpenAI's client: a worker's vectors equal the endpoint's, and are billed."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openai
import pytest
import pytest_asyncio

from gateway.http import worker_app
from gateway.inference.embedding.embedder import CoreEmbedder
from inference_core.errors import CoreLostError
from tests.gateway.batches.batching import made, outcome, request_line
from tests.gateway.embedding_catalog import TEXTS, TOKEN_USD, embedding_settings
from tests.inference_core.hash_model import hash_core
from tests.support.app import RunningGateway, running_gateway
from tiers.catalog.catalog import EmbeddingSpec
from tiers.errors import TierLostError
from tiers.tier import UsageMeter

ENDPOINT = "/v1/embeddings"


@pytest_asyncio.fixture
async def serving(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that answers no lines, and a worker."""
    settings = embedding_settings(tmp_path)
    without_lines = msgspec.structs.replace(settings, batch_concurrency=0)
    async with running_gateway(without_lines) as gateway, running_gateway(settings, http=worker_app):
        yield gateway


async def key_of(gateway: RunningGateway, budget_usd: float) -> openai.AsyncOpenAI:
    """A client with a stored key that has a budget."""
    key = await gateway.key("ada")
    await gateway.budget("ada", budget_usd, "day")
    return gateway.openai.with_options(api_key=key)


def line(name: str, text: Any, **body: Any) -> bytes:
    return request_line(name, ENDPOINT, model="tiny", input=text, **body)


async def test_a_worker_answers_every_line_with_the_vectors_of_the_endpoint(serving: RunningGateway) -> None:
    ada = await key_of(serving, 100.0)
    lines = [line(f"r{n}", text) for n, text in enumerate(TEXTS)]
    lines += [line("both", TEXTS[:2]), line("packed", TEXTS[0], encoding_format="base64")]

    batch, output, errors = await outcome(ada, (await made(ada, lines, ENDPOINT)).id)

    assert (batch.status, errors) == ("completed", {})
    assert list(output) == [*(f"r{n}" for n in range(len(TEXTS))), "both", "packed"]
    bodies = {name: answer["response"]["body"] for name, answer in output.items()}
    direct = await ada.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    vectors = [bodies[f"r{n}"]["data"][0]["embedding"] for n in range(len(TEXTS))]
    np.testing.assert_allclose(vectors, [one.embedding for one in direct.data], atol=1e-5)
    np.testing.assert_allclose([one["embedding"] for one in bodies["both"]["data"]], vectors[:2], atol=1e-5)
    packed = np.frombuffer(base64.b64decode(bodies["packed"]["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(packed, vectors[0], atol=1e-5)
    assert bodies["r0"]["model"] == "tiny"


async def test_lines_are_recorded_with_their_batch_and_paid_by_its_maker(serving: RunningGateway) -> None:
    ada = await key_of(serving, 100.0)
    batch, output, _ = await outcome(ada, (await made(ada, [line("a", TEXTS[0])], ENDPOINT)).id)
    tokens = output["a"]["response"]["body"]["usage"]["prompt_tokens"]
    rows: list[dict[str, Any]] = []
    while not rows:  # Stored by the worker, behind its journal.
        rows = (await serving.order("GET", "/requests"))["rows"]
    assert (rows[0]["request_id"], rows[0]["api"]) == (output["a"]["response"]["request_id"], "embedding")
    assert rows[0]["tags"] == {"batch_id": batch.id}
    assert rows[0]["cost_usd"] == tokens * TOKEN_USD


async def test_lines_beyond_the_budget_and_wrong_ones_are_errors(serving: RunningGateway) -> None:
    poor = await key_of(serving, 0.0)
    lines = [line("poor", TEXTS[0]), line("empty", ""), request_line("unknown", ENDPOINT, model="tier-1", input="x")]
    batch, output, errors = await outcome(poor, (await made(poor, lines, ENDPOINT)).id)
    assert (batch.status, output) == ("completed", {})
    found = {name: error["response"] for name, error in errors.items()}
    assert (found["poor"]["status_code"], found["poor"]["body"]["error"]["code"]) == (429, "insufficient_quota")
    assert (found["empty"]["status_code"], found["empty"]["body"]["error"]["param"]) == (400, "input[0]")
    assert (found["unknown"]["status_code"], found["unknown"]["body"]["error"]["param"]) == (404, "model")


class LostCore:
    """A core of one model that dies on every request."""

    def __init__(self) -> None:
        self.models = {info.name: info for info in hash_core("m", slabs=8, max_context=64, vocab_size=10).model_infos}

    async def embed(self, *asked: Any, **how: Any) -> Any:
        raise CoreLostError("the connection to the core is lost")


async def test_a_core_that_dies_over_a_text_differs_from_a_missing_core() -> None:
    spec = EmbeddingSpec(name="tiny", model="m", input_usd_per_million=0.0)
    model = CoreEmbedder(spec, {"cpu": LostCore()})  # type: ignore[dict-item]
    with pytest.raises(TierLostError, match="connection to the core is lost"):
        await model.embed([[1], [2]], priority=0, salt="", meter=UsageMeter())
