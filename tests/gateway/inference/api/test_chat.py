"""Chat completions as the official client sees them."""

import pytest

from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


async def test_a_chat_answers_with_text_usage_and_a_finish_reason(gateway: RunningGateway) -> None:
    answer = await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    assert answer.choices[0].message.content == "Hello there, how are you?"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 5, 11)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


async def test_a_whole_answer_carries_the_decision_and_its_cost_in_headers(gateway: RunningGateway) -> None:
    raw = await gateway.openai.chat.completions.with_raw_response.create(model="tier-2", messages=HELLO)
    answer = raw.parse()
    assert raw.headers["x-aio-tier"] == "2"
    assert raw.headers["x-aio-model"] == answer.model == "smollm2-bf16"
    assert raw.headers["x-aio-decision-id"] == raw.headers["x-request-id"] == answer.id
    assert answer.id.startswith("chatcmpl-")
    assert float(raw.headers["x-aio-p-ok"]) == 0.999
    assert float(raw.headers["x-aio-overhead-ms"]) >= 0
    # 6 prompt tokens at $0.625 and 5 answer tokens at $1.875 per million, to the micro-dollar.
    assert raw.headers["x-aio-cost-usd"] == "0.000013125"


async def test_every_tier_and_every_catalogue_model_can_be_named(gateway: RunningGateway) -> None:
    names = [model.id async for model in await gateway.openai.models.list()]
    assert names == ["auto", "tier-1", "tier-2", "tier-3", "tier-4", "smollm2-int4", "smollm2-bf16", "smollm2-embed"]
    tiers = {}  # the last one only embeds
    for name in names[1:-1]:
        raw = await gateway.openai.chat.completions.with_raw_response.create(model=name, messages=HELLO)
        tiers[name] = raw.headers["x-aio-tier"]
    assert tiers == {
        "tier-1": "1", "tier-2": "2", "tier-3": "3", "tier-4": "4", "smollm2-int4": "1", "smollm2-bf16": "2",
    }  # fmt: skip


async def test_one_model_can_be_looked_up(gateway: RunningGateway) -> None:
    model = await gateway.openai.models.retrieve("tier-3")
    assert (model.id, model.object, model.owned_by) == ("tier-3", "model", "aio")


async def test_several_choices_come_back_under_their_own_index(gateway: RunningGateway) -> None:
    answer = await gateway.openai.chat.completions.create(model="auto", messages=HELLO, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"Hello there, how are you?"}
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


async def test_log_probabilities_come_in_the_chat_shape(gateway: RunningGateway) -> None:
    answer = await gateway.openai.chat.completions.create(model="auto", messages=HELLO, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(one.token for one in logprobs.content) == answer.choices[0].message.content
    assert logprobs.content[0].bytes == list(b"Hello")
    assert [(top.token, top.logprob) for top in logprobs.content[0].top_logprobs] == [
        ("Hello", -0.25),
        (" other", -2.5),
    ]


async def test_thoughts_go_to_reasoning_content_and_are_counted_apart(gateway: RunningGateway) -> None:
    gateway.tier(4).reasoning = ("First", " think.")
    answer = await gateway.openai.chat.completions.create(model="tier-4", messages=HELLO, logprobs=True)
    message = answer.choices[0].message
    assert message.content == "Hello there, how are you?"
    assert message.model_extra == {"reasoning_content": "First think.", "reasoning": "First think."}
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content) == 5


async def test_sampling_parameters_reach_the_tier(gateway: RunningGateway) -> None:
    await gateway.openai.chat.completions.create(
        model="tier-1",
        messages=HELLO,
        temperature=0.3,
        max_completion_tokens=9,
        logit_bias={"42": -100},
        stop=["END", "\n"],
        seed=7,
        service_tier="flex",
        user="someone",
        metadata={"run": "1"},
        frequency_penalty=0.5,
        extra_body={"top_k": 40, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 2, "ignore_eos": True},
    )
    request = gateway.tier(1).requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0.3, 40, 0.1, 7)
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.frequency_penalty) == (2, True, 0.5)
    assert sampling.repetition_penalty == 1.2
    assert sampling.logit_bias == {42: -100.0}
    assert (request.max_tokens, request.stop, request.priority) == (9, ("END", "\n"), 2)


async def test_what_the_caller_leaves_open_takes_the_tiers_defaults(gateway: RunningGateway) -> None:
    await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO, top_p=0.5)
    sampling = gateway.tier(1).requests[0].sampling
    defaults = gateway.serving.routing.served.spec(1).sampling
    assert sampling.temperature == defaults.temperature
    assert sampling.top_p == 0.5


async def test_content_parts_are_joined_and_developer_is_system(gateway: RunningGateway) -> None:
    await gateway.openai.chat.completions.create(
        model="tier-1",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]},
        ],
    )
    messages = gateway.tier(1).requests[0].messages
    assert messages is not None
    assert [(message.role, message.text) for message in messages] == [
        ("system", "Be brief."),
        ("user", "Say\nhello."),
    ]


async def test_an_answer_can_be_sent_back_as_history(gateway: RunningGateway) -> None:
    first = await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    history = [*HELLO, first.choices[0].message.model_dump(), {"role": "user", "content": "And now?"}]
    second = await gateway.openai.chat.completions.create(model="auto", messages=history)
    assert second.choices[0].finish_reason == "stop"
