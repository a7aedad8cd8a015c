"""Text completions as the official client sees them."""

import json

import pytest

from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_prompt_is_continued_raw(gateway: RunningGateway) -> None:
    answer = await gateway.openai.completions.create(model="auto", prompt="Once upon a time")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == "Hello there, how are you?"
    assert answer.choices[0].finish_reason == "stop"
    request = gateway.tier(1).requests[0]
    assert (request.prompt, request.messages) == ("Once upon a time", None)


async def test_the_token_limit_defaults_to_sixteen_as_with_openai(gateway: RunningGateway) -> None:
    await gateway.openai.completions.create(model="auto", prompt="Once")
    assert gateway.tier(1).requests[0].max_tokens == 16


async def test_a_stream_of_text_ends_with_usage_and_done(gateway: RunningGateway) -> None:
    stream = await gateway.openai.completions.create(
        model="tier-1", prompt="Once", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello there, how are you?"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None] * 5 + ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 1


async def test_several_prompts_with_several_choices_are_numbered_prompt_by_prompt(gateway: RunningGateway) -> None:
    answer = await gateway.openai.completions.create(model="tier-1", prompt=["One two", "Three"], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {"Hello there, how are you?"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 20)


async def test_token_ids_go_to_the_named_model_as_they_are(gateway: RunningGateway) -> None:
    await gateway.openai.completions.create(model="smollm2-bf16", prompt=[5, 6, 7])
    await gateway.openai.completions.create(model="smollm2-bf16", prompt=[[1], [2, 3]])
    assert [request.prompt for request in gateway.tier(2).requests] == [[5, 6, 7], [1], [2, 3]]


async def test_log_probabilities_come_in_the_older_shape_with_offsets(gateway: RunningGateway) -> None:
    answer = await gateway.openai.completions.create(model="auto", prompt="Once", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello", " there,", " how", " are", " you?"]
    assert logprobs.text_offset == [0, 5, 12, 16, 20]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"Hello": -0.25, " other": -2.5}
    assert logprobs.token_logprobs == [-0.25] * 5


async def test_offsets_go_on_from_chunk_to_chunk(gateway: RunningGateway) -> None:
    answer = await gateway.http.post(
        "/v1/completions", json={"model": "auto", "prompt": "Once", "logprobs": 1, "stream": True}
    )
    chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line and "[DONE]" not in line]
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert offsets == [[0], [5], [12], [16], [20]]


async def test_one_failing_prompt_fails_the_request_and_stops_the_others(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at = 2
    answer = await gateway.http.post("/v1/completions", json={"model": "tier-1", "prompt": ["a", "b"]})
    assert answer.status_code == 500
    assert gateway.serving.service.in_flight == 0


async def test_the_best_choices_are_returned_best_first_and_all_are_billed(gateway: RunningGateway) -> None:
    gateway.tier(1).likelihoods = (-0.5, -0.1, -0.9, -0.2)
    answer = await gateway.openai.completions.create(model="tier-1", prompt=["One two", "Three"], n=2, best_of=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text.split("#")[1] for choice in answer.choices] == ["1", "3", "1", "3"]
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2 * 4 * 5)
    assert [request.n for request in gateway.tier(1).requests] == [4, 4]


async def test_the_best_choices_bring_the_log_probabilities_that_were_asked_for(gateway: RunningGateway) -> None:
    gateway.tier(1).likelihoods = (-0.5, -0.1)
    answer = await gateway.openai.completions.create(model="tier-1", prompt="One", best_of=2, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == [-0.1] * 5


async def test_best_of_equal_to_n_changes_nothing_and_may_be_streamed(gateway: RunningGateway) -> None:
    stream = await gateway.openai.completions.create(model="tier-1", prompt="One", n=2, best_of=2, stream=True)
    assert {chunk.choices[0].index async for chunk in stream} == {0, 1}
    assert gateway.tier(1).requests[0].sampling.logprobs is None


async def test_a_token_that_is_no_text_is_written_as_its_bytes(gateway: RunningGateway) -> None:
    gateway.tier(1).words = (b"\xf0\x9f", b"\x99\x82", "!")
    answer = await gateway.openai.completions.create(model="tier-1", prompt="One", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["bytes:\\xf0\\x9f", "bytes:\\x99\\x82", "!"]
    chat = await gateway.openai.chat.completions.create(
        model="tier-1", messages=[{"role": "user", "content": "Hi"}], logprobs=True
    )
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert [token.bytes for token in chat.choices[0].logprobs.content] == [[0xF0, 0x9F], [0x99, 0x82], [0x21]]


async def test_the_drawn_token_is_among_the_likeliest_ones_however_few(gateway: RunningGateway) -> None:
    answer = await gateway.openai.completions.create(model="tier-1", prompt="One", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"Hello": -0.25}
