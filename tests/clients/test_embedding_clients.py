"""Embeddings by the laptop catalogue's model, through the client libraries."""

from typing import Any

import numpy as np
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr
from sklearn.feature_extraction.text import TfidfVectorizer

from tests.gateway.paraphrases import PARAPHRASES
from tests.support.served import ServedProcess

pytestmark = pytest.mark.processes

MODEL = "smollm2-embed"
FIRST, SECOND = ([pair[side] for pair in PARAPHRASES] for side in (0, 1))


def nearest(first: Any, second: Any) -> int:
    """Count the sentences whose paraphrase is the nearest one."""
    return int(((first @ second.T).argmax(1) == np.arange(len(first))).sum())


def test_most_sentences_are_nearest_to_their_own_paraphrase(aio: ServedProcess) -> None:
    answer = aio.client.embeddings.create(model=MODEL, input=FIRST + SECOND)
    vectors = np.array([row.embedding for row in answer.data])
    assert vectors.shape == (40, 576)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    first, second = vectors[:20], vectors[20:]
    words = TfidfVectorizer().fit(FIRST + SECOND)
    by_words = nearest(words.transform(FIRST).toarray(), words.transform(SECOND).toarray())
    assert nearest(first, second) >= 15 > by_words
    assert nearest(second, first) >= 15
    alone = aio.client.embeddings.create(model=MODEL, input=SECOND[3])
    np.testing.assert_allclose(alone.data[0].embedding, second[3], atol=1e-5)


def test_tokens_of_the_tokenise_endpoint_are_an_input(aio: ServedProcess) -> None:
    tokens = aio.client.post("/tokenize", cast_to=dict[str, Any], body={"model": "smollm2-int4", "prompt": FIRST[0]})[
        "tokens"
    ]
    by_tokens = aio.client.embeddings.create(model=MODEL, input=tokens)
    by_text = aio.client.embeddings.create(model=MODEL, input=FIRST[0])
    np.testing.assert_allclose(by_tokens.data[0].embedding, by_text.data[0].embedding, atol=1e-5)
    assert by_tokens.usage.prompt_tokens == len(tokens)


async def test_langchains_embeddings_rank_documents(aio: ServedProcess) -> None:
    model = OpenAIEmbeddings(
        base_url=f"{aio.url}/v1",
        api_key=SecretStr("unused"),
        model=MODEL,
        # It would split texts with OpenAI's tokeniser and send ids that mean nothing to another model.
        check_embedding_ctx_length=False,
    )
    documents = np.array(model.embed_documents(SECOND[:4]))
    query = np.array(await model.aembed_query(FIRST[2]))
    assert int((documents @ query).argmax()) == 2


def test_the_litellm_sdk_embeds(aio: ServedProcess) -> None:
    litellm = pytest.importorskip("litellm")
    answer = litellm.embedding(
        model=f"openai/{MODEL}", input=FIRST[:2], api_base=f"{aio.url}/v1", api_key="unused", encoding_format="float"
    )
    assert [len(row["embedding"]) for row in answer.data] == [576, 576]
