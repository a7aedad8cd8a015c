"""Tokens of a model by its own tokeniser, in vLLM's shapes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.gateway.running_gateway import RunningGateway, laptop_hash_core, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say <|im_end|> 🙂."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def laptop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False)
    async with running_gateway(settings, core=laptop_hash_core(settings), scripted=False) as running:
        yield running


async def asked(laptop: RunningGateway, path: str, **body: Any) -> Any:
    answer = await laptop.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/v1", ""])
async def test_a_prompt_comes_back_from_its_tokens(laptop: RunningGateway, path: str) -> None:
    prompt = "The naïve 🙂 capital\n  of France <|im_end|>"
    shown = await asked(laptop, f"{path}/tokenize", model="tier-1", prompt=prompt, return_token_strs=True)
    assert (shown["count"], shown["max_model_len"]) == (len(shown["tokens"]), 8192)
    assert "".join(shown["token_strs"]).startswith("The na")
    again = await asked(laptop, f"{path}/detokenize", model="tier-1", tokens=shown["tokens"])
    assert again == {"prompt": prompt}


async def test_a_conversation_is_what_the_model_is_billed_for(laptop: RunningGateway) -> None:
    shown = await asked(laptop, "/v1/tokenize", model="smollm2-int4", messages=TURNS)
    answer = await laptop.openai.chat.completions.create(model="smollm2-int4", messages=TURNS, max_tokens=1)
    assert answer.usage is not None
    assert shown["count"] == answer.usage.prompt_tokens
    assert shown["token_strs"] is None
    rendered = await asked(laptop, "/v1/detokenize", model="smollm2-int4", tokens=shown["tokens"])
    assert rendered["prompt"].endswith("<|im_start|>assistant\n")
    bare = await asked(laptop, "/v1/tokenize", model="smollm2-int4", messages=TURNS, add_generation_prompt=False)
    assert shown["tokens"][: bare["count"]] == bare["tokens"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/tokenize", {"model": "auto", "prompt": "x"}, 400, "model"),
        ("/v1/tokenize", {"model": "gpt-9", "prompt": "x"}, 404, "model"),
        ("/v1/tokenize", {"model": "tier-1"}, 400, "prompt"),
        ("/v1/tokenize", {"model": "tier-1", "prompt": "x", "messages": TURNS}, 400, "prompt"),
        ("/v1/tokenize", {"model": "tier-1", "messages": []}, 400, "messages"),
        ("/v1/detokenize", {"model": "tier-1", "tokens": [49_152]}, 400, "tokens"),
        ("/v1/detokenize", {"model": "tier-1", "tokens": [-1]}, 400, "tokens[0]"),
    ],
)
async def test_what_cannot_be_tokenised_is_refused_by_name(
    laptop: RunningGateway, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = await laptop.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
