"""What callers may say of the length of answers and thoughts reaches the tier as they said it."""

import pytest

from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


async def test_effort_and_budget_of_a_thought_reach_the_tier(gateway: RunningGateway) -> None:
    chat = gateway.openai.chat.completions
    await chat.create(model="tier-4", messages=HELLO, reasoning_effort="low")
    await chat.create(model="tier-4", messages=HELLO, extra_body={"thinking_token_budget": 100})
    await chat.create(model="tier-4", messages=HELLO)
    asked = [(request.reasoning_effort, request.reasoning_budget) for request in gateway.tier(4).requests]
    assert asked == [("low", None), (None, 100), (None, None)]


async def test_reasoning_is_counted_and_given_apart_whole_and_streamed(gateway: RunningGateway) -> None:
    gateway.tier(4).reasoning = ("Think", " hard.")
    whole = await gateway.openai.chat.completions.create(model="tier-4", messages=HELLO)
    stream = await gateway.openai.chat.completions.create(
        model="tier-4", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thought = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert (whole.choices[0].message.model_extra or {})["reasoning_content"] == thought == "Think hard."
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens == 2
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details == whole.usage.completion_tokens_details


async def test_the_controls_of_serving_engines_reach_the_tier(gateway: RunningGateway) -> None:
    fields = {"min_tokens": 3, "ignore_eos": True, "stop_token_ids": [5, 6], "include_stop_str_in_output": True}
    await gateway.openai.chat.completions.create(
        model="tier-1", messages=HELLO, max_completion_tokens=9, stop=["a", "b"], extra_body=fields
    )
    await gateway.openai.completions.create(model="tier-1", prompt="Once", stop="a", max_tokens=9, extra_body=fields)
    first, second = gateway.tier(1).requests
    assert (first.stop, second.stop) == (("a", "b"), ("a",))
    for request in (first, second):
        sampling = request.sampling
        assert (sampling.min_tokens, sampling.ignore_eos, sampling.stop_token_ids) == (3, True, (5, 6))
        assert (request.include_stop, request.max_tokens) == (True, 9)


async def test_up_to_sixteen_choices_come_from_one_prompt_on_both_endpoints(gateway: RunningGateway) -> None:
    chat = await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO, n=16)
    text = await gateway.openai.completions.create(model="tier-1", prompt="Once", n=16)
    assert [choice.index for choice in chat.choices] == [choice.index for choice in text.choices] == list(range(16))


async def test_a_prompt_to_be_scored_reaches_the_tier_as_such(
    gateway: RunningGateway,
) -> None:
    await gateway.openai.completions.create(model="tier-1", prompt="Once", echo=True, max_tokens=0, logprobs=1)
    (request,) = gateway.tier(1).requests
    assert (request.echo, request.max_tokens, request.sampling.logprobs) == (True, 0, 1)
