"""Embeddings by an encoder's checkpoint over HTTP: the vectors, what the request may hold, and who pays."""

import asyncio
import base64
import threading
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio

from gateway.inference.embedding.embedder import TOGETHER, CoreEmbedder
from inference_core.protocol import ModelInfo
from tests.gateway.embedding_catalog import TEXTS, embedding_settings
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tiers.catalog.catalog import CPU_CORE, EmbeddingSpec
from tiers.tier import Usage, UsageMeter

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encoding(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    """Scripted tiers, and an encoder of 2 layers."""
    return await module_app(embedding_settings(tmp_path_factory.mktemp("encoder")))


async def embedded(gateway: RunningGateway, given: Any, **fields: Any) -> Any:
    answer = await gateway.http.post("/v1/embeddings", json={"model": "tiny", "input": given} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(answer: Any) -> Any:
    return np.array([one["embedding"] for one in answer["data"]])


async def test_texts_of_many_requests_at_a_time_have_the_vectors_that_each_has_alone(encoding: RunningGateway) -> None:
    alone = [vectors(await embedded(encoding, text))[0] for text in TEXTS]
    together = vectors(await embedded(encoding, TEXTS))
    several = await asyncio.gather(*(embedded(encoding, text) for text in TEXTS))
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose([vectors(one)[0] for one in several], alone, atol=1e-5)
    assert len({tuple(row) for row in together.round(4).tolist()}) == len(TEXTS)


async def test_vectors_have_length_one_and_come_in_the_order_of_the_inputs(encoding: RunningGateway) -> None:
    answer = await embedded(encoding, TEXTS[:3])
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    np.testing.assert_allclose(np.linalg.norm(vectors(answer), axis=1), 1, atol=1e-6)
    assert (answer["object"], answer["model"], answer["data"][0]["object"]) == ("list", "tiny", "embedding")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 3


async def test_base64_is_the_same_vector_in_fewer_bytes(encoding: RunningGateway) -> None:
    plain = vectors(await embedded(encoding, "hello"))[0]
    packed = (await embedded(encoding, "hello", encoding_format="base64"))["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), "<f4"), plain.astype(np.float32))
    client = await encoding.openai.embeddings.create(model="tiny", input="hello")
    np.testing.assert_allclose(client.data[0].embedding, plain, atol=1e-7)


async def test_token_ids_are_taken_as_they_are(encoding: RunningGateway) -> None:
    # The first request loads the encoder, and its tokeniser.
    by_text = vectors(await embedded(encoding, "hello there"))
    tokens = encoding.serving.embedders["tiny"].tokens("hello there")
    for given in (tokens, [tokens]):
        answer = await embedded(encoding, given)
        np.testing.assert_allclose(vectors(answer), by_text, atol=1e-6)
        assert answer["usage"]["prompt_tokens"] == len(tokens)


async def test_fields_that_only_servers_elsewhere_have_are_named_as_ignored(encoding: RunningGateway) -> None:
    body = {"model": "tiny", "input": "hello", "input_type": "query"}
    answer = await encoding.http.post("/v1/embeddings", json=body)
    assert (answer.status_code, answer.headers["x-aio-ignored-fields"]) == (200, "input_type")


async def test_fewer_dimensions_are_the_first_ones_at_length_one_where_the_model_was_made_for_it(
    encoding: RunningGateway,
) -> None:
    whole = vectors(await embedded(encoding, "hello", model="matryoshka"))[0]
    short = vectors(await embedded(encoding, "hello", model="matryoshka", dimensions=8))[0]
    np.testing.assert_allclose(short, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    with pytest.raises(openai.BadRequestError) as caught:
        await encoding.openai.embeddings.create(model="tiny", input="hello", dimensions=8)
    assert (caught.value.param, caught.value.code) == ("dimensions", "unsupported_parameter")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": ""}, 400, "input[0]"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input"),
        ({"input": ["fine", "word " * 60]}, 400, "input[1]"),
        ({"input": [300_000]}, 400, "input[0]"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "model": "tier-1"}, 404, "model"),
        ({"input": "a", "model": "matryoshka", "dimensions": 64}, 400, "dimensions"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(
    encoding: RunningGateway, body: dict[str, Any], status: int, param: str
) -> None:
    answer = await encoding.http.post("/v1/embeddings", json={"model": "tiny"} | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_a_model_that_only_embeds_is_listed_and_answers_no_chat(encoding: RunningGateway) -> None:
    assert "tiny" in [model.id async for model in await encoding.openai.models.list()]
    assert (await encoding.openai.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        await encoding.openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])


async def test_a_core_that_is_not_there_is_ours_to_mend(encoding: RunningGateway) -> None:
    answer = await encoding.http.post("/v1/embeddings", json={"model": "smollm2-embed", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_dimensions_that_a_model_does_not_have_are_refused_before_anything_is_computed(
    encoding: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding.serving.embedders["tiny"], "embed", None)
    answer = await encoding.http.post("/v1/embeddings", json={"model": "tiny", "input": "hello", "dimensions": 8})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dimensions")


async def test_what_the_core_was_given_to_read_is_metered_and_the_texts_behind_it_are_not() -> None:
    class SilentCore:
        @property
        def models(self) -> dict[str, ModelInfo]:
            info = ModelInfo(
                name="m", model_path="", max_context=9, vocab_size=9, weight_bytes=0, compute="x", num_layers=2
            )
            return {"m": info}

        async def embed(self, *args: object, **fields: object) -> None:
            await asyncio.Event().wait()

    core: Any = SilentCore()
    spec = EmbeddingSpec(name="e", model="m", input_usd_per_million=1.0)
    meter = UsageMeter()
    rows = [[1, 2, 3]] * (TOGETHER + 8)
    embedding = asyncio.create_task(CoreEmbedder(spec, {CPU_CORE: core}).embed(rows, priority=1, salt="", meter=meter))
    await eventually(lambda: meter.usage().prompt_tokens)
    embedding.cancel()
    await asyncio.gather(embedding, return_exceptions=True)
    assert meter.usage() == Usage(prompt_tokens=3 * TOGETHER)


async def test_what_an_encoder_has_started_to_read_is_metered_and_what_still_waits_is_not(
    encoding: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowModel:
        def __init__(self) -> None:
            self.batches: list[int] = []
            self.go = threading.Event()

        def encode_ids(self, rows: list[list[int]]) -> Any:
            self.batches.append(len(rows))
            self.go.wait()
            return np.ones((len(rows), 4), np.float32)

    model: Any = encoding.serving.embedders["tiny"]
    slow = SlowModel()
    monkeypatch.setattr(model, "_model", slow)
    meter = UsageMeter()
    embedding: asyncio.Task[Any] = asyncio.create_task(model.embed([[1, 2, 3]] * 80, priority=1, salt="", meter=meter))
    await eventually(lambda: slow.batches)
    embedding.cancel()
    await asyncio.gather(embedding, return_exceptions=True)
    assert meter.usage() == Usage(prompt_tokens=3 * slow.batches[0])
    assert slow.batches[0] < 80
    slow.go.set()
