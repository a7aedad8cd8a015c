"""Embeddings by an encoder's checkpoint over HTTP: the vectors, what the request may hold, and who pays."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio

from tests.gateway.embedding_catalog import TEXTS, embedding_settings
from tests.gateway.running_gateway import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encoding(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """Scripted tiers, and an encoder of 2 layers."""
    async with running_gateway(embedding_settings(tmp_path_factory.mktemp("encoder"))) as running:
        yield running


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
    tokens = encoding.parts.embedders["tiny"].tokens("hello there")
    by_text = vectors(await embedded(encoding, "hello there"))
    for given in (tokens, [tokens]):
        answer = await embedded(encoding, given)
        np.testing.assert_allclose(vectors(answer), by_text, atol=1e-6)
        assert answer["usage"]["prompt_tokens"] == len(tokens)


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
        ({"input": "a", "modell": "x"}, 400, "modell"),
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
