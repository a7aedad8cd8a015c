"""Repeated and scored prompts through the official client, on the laptop's tiers over a core of hash models."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import BadRequestError

from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = "The cat sat on the mat, naïve 𓂀 as ever, and looked at the wall for a very long time indeed."


async def complete(aio: RunningGateway, **fields: Any) -> Any:
    fields = {"model": "tier-1", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "echo": True} | fields
    return await aio.openai.completions.create(**fields)


async def test_the_prompt_stands_in_front_of_every_answer(aio: RunningGateway) -> None:
    plain = await complete(aio, echo=False)
    answer = await complete(aio, n=2)
    assert [choice.text for choice in answer.choices] == [PROMPT + plain.choices[0].text] * 2
    assert answer.usage.completion_tokens == 2 * plain.usage.completion_tokens


async def test_a_prompt_alone_is_scored_as_evaluation_harnesses_ask_for_it(aio: RunningGateway) -> None:
    answer = await complete(aio, max_tokens=0, logprobs=1)
    choice, logprobs = answer.choices[0], answer.choices[0].logprobs
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert answer.usage.completion_tokens == 0
    assert len(logprobs.tokens) == answer.usage.prompt_tokens
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert len(set(logprobs.token_logprobs[1:])) > 10


async def test_every_token_is_found_where_its_offset_says(aio: RunningGateway) -> None:
    choice = (await complete(aio, logprobs=0)).choices[0]
    logprobs = choice.logprobs
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset : offset + len(token)] == token
    # The hieroglyph is several tokens, which together are one character.
    assert any(token.startswith("bytes:") for token in logprobs.tokens)


async def test_scores_do_not_depend_on_what_follows_or_on_the_cache(aio: RunningGateway) -> None:
    alone = await complete(aio, max_tokens=0, logprobs=0)
    followed = await complete(aio, max_tokens=3, logprobs=0)
    again = await complete(aio, max_tokens=0, logprobs=0)
    scores = alone.choices[0].logprobs.token_logprobs
    assert followed.choices[0].logprobs.token_logprobs[: len(scores)] == scores
    assert again.choices[0].logprobs == alone.choices[0].logprobs
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    assert len(followed.choices[0].logprobs.tokens) == len(scores) + 3


async def test_a_stream_says_what_the_whole_answer_says(aio: RunningGateway) -> None:
    whole = (await complete(aio, logprobs=1)).choices[0]
    chunks = [chunk async for chunk in await complete(aio, logprobs=1, stream=True)]
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert said[0].text == PROMPT
    assert "".join(choice.text for choice in said) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [part for choice in said if choice.logprobs for part in getattr(choice.logprobs, name)]
        assert parts == getattr(whole.logprobs, name), name


async def test_token_ids_are_repeated_as_text_and_scored_prompt_by_prompt(aio: RunningGateway) -> None:
    scored = (await complete(aio, prompt=[[504, 2644], [3725, 314, 260]], max_tokens=0, logprobs=0)).choices
    assert [len(choice.logprobs.tokens) for choice in scored] == [2, 3]
    assert ["".join(choice.logprobs.tokens) for choice in scored] == [choice.text for choice in scored]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(module_app: StartApp) -> RunningGateway:
    """The laptop's tiers with a short context."""
    return await module_app(core=partial(laptop_hash_core, max_context=512), scripted=False)


@pytest.mark.parametrize("logprobs", [0, None])
async def test_a_prompt_that_fills_the_context_is_repeated_and_scored(
    narrow: RunningGateway, logprobs: int | None
) -> None:
    aio, context = narrow, narrow.serving.routing.served.tier(1).max_context
    assert context == 512
    ids = [504 + number % 3000 for number in range(context)]
    answer = await complete(aio, prompt=ids, max_tokens=0, logprobs=logprobs)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (context, 0)
    assert logprobs is None or len(answer.choices[0].logprobs.token_logprobs) == context
    for fields in ({"max_tokens": 1}, {"max_tokens": 0, "prompt": [*ids, 504]}):
        with pytest.raises(BadRequestError, match="context"):
            await complete(aio, **{"prompt": ids, "logprobs": logprobs} | fields)


async def test_tokens_of_a_chat_are_the_answer_by_their_bytes_and_not_by_their_texts(aio: RunningGateway) -> None:
    messages: Any = [{"role": "user", "content": "Draw."}]
    asked = {"model": "tier-1", "messages": messages, "logprobs": True, "top_logprobs": 2, "seed": 3, "temperature": 1}
    choice = (await aio.openai.chat.completions.create(**asked, max_tokens=200)).choices[0]  # type: ignore[call-overload]
    tokens = choice.logprobs.content
    assert b"".join(bytes(one.bytes) for one in tokens).decode(errors="replace") == choice.message.content
    assert all(bytes(one.bytes).decode(errors="replace") == one.token for one in tokens)
    assert any("\ufffd" in one.token for one in tokens), "no token here was part of a character"
    page = Path(__file__).parents[4] / "docs" / "gateway.md"
    assert "In a chat, its `token` has U+FFFD (`\\ufffd`)" in page.read_text()


async def test_a_prompt_of_one_token_has_no_score(aio: RunningGateway) -> None:
    choice = (await complete(aio, prompt=[504], max_tokens=0, logprobs=0)).choices[0]
    assert choice.logprobs.token_logprobs == [None]


async def test_nothing_is_computed_for_a_prompt_that_is_only_repeated(aio: RunningGateway) -> None:
    answer = await complete(aio, prompt="Never heard of before.", max_tokens=0)
    assert answer.choices[0].text == "Never heard of before."
    again = await complete(aio, prompt="Never heard of before. " * 8, max_tokens=0)
    later = await complete(aio, prompt="Never heard of before. " * 8, max_tokens=1)
    assert again.usage.prompt_tokens == later.usage.prompt_tokens
    assert later.usage.prompt_tokens_details.cached_tokens == 0


async def test_stop_strings_are_looked_for_in_the_answer_alone(aio: RunningGateway) -> None:
    answer = await complete(aio, stop=["cat"])
    assert answer.choices[0].text.startswith(PROMPT)
    assert answer.usage.completion_tokens == 4


async def test_the_best_of_repeated_prompts_are_recognised_by_their_answers(aio: RunningGateway) -> None:
    answer = await complete(aio, best_of=3, n=2, temperature=1, seed=1)
    assert all(choice.text.startswith(PROMPT) for choice in answer.choices)
    assert answer.usage.completion_tokens == 12


async def test_the_record_keeps_the_answer_without_the_prompt(aio: RunningGateway) -> None:
    answer = await complete(aio)

    async def recorded() -> Any:
        found = await aio.http.get(f"/v1/requests/{answer.id}")
        return found.json() if found.status_code == 200 else None

    record = await eventually(recorded)
    assert PROMPT + record["answer"] == answer.choices[0].text


LONG = PROMPT * 150
LONG_IDS = list(range(1000, 4000))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": LONG, "n": 16, "logprobs": 5}, "prompt"),
        ({"prompt": [LONG_IDS] * 16, "logprobs": 5}, "prompt"),
        ({"prompt": ["word " * 20_000] * 3, "n": 16}, "echo"),
        ({"prompt": [LONG_IDS] * 64, "n": 2}, "echo"),
        ({"prompt": "Hi", "n": 16, "logprobs": 5, "max_tokens": 2000}, "logprobs"),
        ({"prompt": ["Hi"] * 64, "best_of": 16, "n": 1, "logprobs": 5, "max_tokens": 50}, "logprobs"),
    ],
    ids=["choices", "prompts", "text", "tokens", "drawn", "best of"],
)
async def test_an_answer_many_times_as_large_as_its_request_is_refused(
    aio: RunningGateway, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "tier-1", "max_tokens": 0, "echo": True} | fields
    answer = await aio.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text[:300]


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 1000}])
async def test_choices_of_a_chat_may_have_so_many_log_probabilities_together(
    aio: RunningGateway, limit: dict[str, int]
) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    body = {"model": "tier-1", "messages": hello, "n": 16, "logprobs": True, "top_logprobs": 20} | limit
    answer = await aio.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs"), answer.text[:300]


async def test_a_long_prompt_is_scored_once_in_an_answer_no_larger_than_a_request_may_be(aio: RunningGateway) -> None:
    fields = {"prompt": LONG, "echo": True, "max_tokens": 0, "logprobs": 5, "n": 2, "model": "tier-1"}
    answer = await aio.http.post("/v1/completions", json=fields)
    assert answer.status_code == 200, answer.text[:300]
    first, second = answer.json()["choices"]
    assert len(first["logprobs"]["tokens"]) > 3000
    assert first["logprobs"] == second["logprobs"]
    assert len(answer.content) < aio.serving.settings.body_limit
