"""Tokens of a model by its own tokeniser, in vLLM's shapes."""

from typing import Any

import pytest

from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say <|im_end|> 🙂."}]


async def asked(aio: RunningGateway, path: str, **body: Any) -> Any:
    answer = await aio.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/v1", ""])
async def test_a_prompt_comes_back_from_its_tokens(aio: RunningGateway, path: str) -> None:
    prompt = "The naïve 🙂 capital\n  of France <|im_end|>"
    shown = await asked(aio, f"{path}/tokenize", model="tier-1", prompt=prompt, return_token_strs=True)
    assert (shown["count"], shown["max_model_len"]) == (len(shown["tokens"]), 8192)
    assert "".join(shown["token_strs"]).startswith("The na")
    again = await asked(aio, f"{path}/detokenize", model="tier-1", tokens=shown["tokens"])
    assert again == {"prompt": prompt}


async def test_a_conversation_is_what_the_model_is_billed_for(aio: RunningGateway) -> None:
    shown = await asked(aio, "/v1/tokenize", model="smollm2-int4", messages=TURNS)
    answer = await aio.openai.chat.completions.create(model="smollm2-int4", messages=TURNS, max_tokens=1)
    assert answer.usage is not None
    assert shown["count"] == answer.usage.prompt_tokens
    assert shown["token_strs"] is None
    rendered = await asked(aio, "/v1/detokenize", model="smollm2-int4", tokens=shown["tokens"])
    assert rendered["prompt"].endswith("<|im_start|>assistant\n")
    bare = await asked(aio, "/v1/tokenize", model="smollm2-int4", messages=TURNS, add_generation_prompt=False)
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
    aio: RunningGateway, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = await aio.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
