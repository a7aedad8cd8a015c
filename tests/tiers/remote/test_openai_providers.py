"""Providers with OpenAI's API, Azure among them: their headers, fields, counts and refusals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from inference_core.protocol import Grammar, SamplingParams
from tests.support.upstream import Call as Received
from tests.support.upstream import LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.conversation import Call, Opaque, Turn, media
from tiers.errors import TierAnswerError, TierRequestError, TierUnavailableError
from tiers.remote.remote_tier import RemoteTier

KEY = "azure-secret"
RESPONSE = {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]}
COUNTS = {"prompt_tokens": 150, "completion_tokens": 4, "total_tokens": 160}
USAGE = COUNTS | {"prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 40}}


async def hello(call: Received) -> None:
    await call.say("Hello", usage=USAGE)


@asynccontextmanager
async def provider(kind: str, handler: Any = hello) -> AsyncIterator[tuple[RemoteTier, LoopbackServer]]:
    async with LoopbackServer(handler) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind=kind, api_key_env="THE_KEY"), environ={"THE_KEY": KEY})
        yield tier, server
        await tier.close()


async def test_azure_takes_its_key_in_its_own_header() -> None:
    async with provider("azure") as (tier, server):
        await tier.start()
        await collect(tier, chat())
        assert server.calls[0].headers["api-key"] == KEY
        assert "authorization" not in server.calls[0].headers
        assert server.looks == ["/v1/models"]


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"suffix": "return x"}, "suffix"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "modalities"),
    ],
)
async def test_what_makes_another_answer_goes_to_servers_that_have_it_and_to_no_other(extra: Any, name: str) -> None:
    request = chat(extra=extra)
    async with LoopbackServer(hello) as server:
        for provider_name, takes in (("openai", True), ("openrouter", name == "modalities"), ("groq", False)):
            spec = remote_spec(server.base_url, kind="openai-provider")
            tier = RemoteTier(msgspec.structs.replace(spec, provider=provider_name))
            refused = tier.refusal(request)
            assert (refused is None) == takes
            if refused is None:
                await collect(tier, request)
                assert server.calls[-1].body.items() >= extra.items()
            else:
                assert refused.param == name
            await tier.close()


@pytest.mark.parametrize(("model", "is_marked"), [("anthropic/claude-sonnet-5", True), ("openai/gpt-5", False)])
async def test_marks_of_a_cache_reach_claude_at_openrouter(model: str, is_marked: bool) -> None:
    block = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral"}}
    marked = [Opaque("messages", msgspec.json.encode(block), "text")]
    turns = [Turn.of(role, "Long.", opaque=marked, cache_mark=True) for role in ("system", *["user"] * 5)]
    async with LoopbackServer(hello) as server:
        spec = remote_spec(server.base_url, kind="openai-provider", model=model)
        tier = RemoteTier(msgspec.structs.replace(spec, provider="openrouter"))
        await collect(tier, msgspec.structs.replace(chat(), messages=turns))
        await tier.close()
    sent = [turn["content"] for turn in server.calls[0].body["messages"]]
    # Anthropic takes four.
    assert sent == ["Long."] * 2 + [[block]] * 4 if is_marked else ["Long."] * 6


async def test_defaults_of_the_api_are_not_sent_because_reasoning_models_refuse_them() -> None:
    async with provider("openai-provider") as (tier, server):
        await collect(tier, chat(sampling=SamplingParams(temperature=1.0, top_p=1.0)))
        await collect(tier, chat(sampling=SamplingParams(temperature=0.2, top_p=1.0)))
        first, second = (call.body for call in server.calls)
    assert not first.keys() & {"temperature", "top_p"}
    assert second["temperature"] == 0.2
    assert "top_p" not in second


async def test_cached_written_and_reasoning_tokens_are_counted() -> None:
    async with provider("openai-provider") as (tier, _):
        _, usage = await collect(tier, chat())
    # xAI counts reasoning in the total alone.
    assert (usage.prompt_tokens, usage.completion_tokens) == (150, 10)
    assert (usage.cached_tokens, usage.cache_write_tokens) == (100, 40)


def refusal(param: str, code: str) -> dict[str, Any]:
    message = f"Unsupported value: '{param}' does not support 0.2 with this model."
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


async def test_what_a_model_refuses_is_left_out_once_and_from_then_on() -> None:
    async def picky(call: Received) -> None:
        if "temperature" in call.body:
            await call.reply(400, refusal("temperature", "unsupported_value"))
        else:
            await hello(call)

    async with provider("openai-provider", picky) as (tier, server):
        cold = chat(sampling=SamplingParams(temperature=0.2))
        for _ in range(2):
            (answer,), _ = await collect(tier, cold)
            assert answer.text == "Hello"
        assert ["temperature" in call.body for call in server.calls] == [True, False, False]


@pytest.mark.parametrize(("param", "code"), [("messages", "unsupported_value"), ("temperature", "invalid_value")])
async def test_another_refusal_is_the_callers(param: str, code: str) -> None:
    async def refuse(call: Received) -> None:
        await call.reply(400, refusal(param, code))

    async with provider("openai-provider", refuse) as (tier, server):
        with pytest.raises(TierRequestError):
            await collect(tier, chat(sampling=SamplingParams(temperature=0.2)))
        assert len(server.calls) == 1


async def test_a_deployment_that_azure_lacks_makes_the_tier_unavailable() -> None:
    async def lacking(call: Received) -> None:
        await call.reply(404, {"error": {"code": "DeploymentNotFound", "message": "The deployment does not exist."}})

    async with provider("azure", lacking) as (tier, _):
        with pytest.raises(TierUnavailableError, match="The deployment does not exist"):
            await collect(tier, chat())


async def test_a_grammar_of_vllm_is_refused() -> None:
    async with provider("openai-provider") as (tier, _):
        with pytest.raises(TierRequestError, match="response_format alone"):
            await collect(tier, chat(sampling=SamplingParams(grammar=Grammar(kind="regex", text="a+"))))


def given(**item: Any) -> Turn:
    block = Opaque("responses", msgspec.json.encode(item), item["type"])
    parts = [part for part in item.get("content", []) if part["type"] == "input_file"]
    files = [media("file", {"file_data": part["file_url"]}) for part in parts]
    return Turn.of("user" if files else "assistant", files, opaque=[block])


PDF_ITEM = {"type": "message", "role": "user", "content": [{"type": "input_file", "file_url": "https://a.b/c.pdf"}]}


@pytest.mark.parametrize(
    ("turn", "item"),
    [
        (Turn.of("user", [media("file", {"file_data": "https://a.b/c.pdf"})]), PDF_ITEM),
        (given(**PDF_ITEM), PDF_ITEM),
        (given(type="web_search_call"), {"type": "web_search_call"}),
        (
            Turn.of("tool", [media("file", {"file_data": "https://a.b/c"})], call_id="c1"),
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_file", "file_url": "https://a.b/c"}],
            },
        ),
    ],
)
async def test_what_no_chat_can_say_reaches_openai_by_the_responses_api(turn: Turn, item: dict[str, Any]) -> None:
    async with LoopbackServer(lambda call: call.reply(200, RESPONSE)) as server:
        tier = RemoteTier(
            remote_spec(server.base_url, kind="openai-provider", api_key_env="K", responses="needed"),
            environ={"K": "k"},
        )
        asked = chat(whole=True)
        called = Turn.of("assistant", calls=(Call(id="c1", name="f", arguments="{}"),))
        turns = [called, turn] if turn.role == "tool" else [turn]
        await collect(tier, msgspec.structs.replace(asked, messages=[*turns, *(asked.messages or ())]))
        await tier.close()
    (call,) = server.calls
    assert call.path.endswith("/responses")
    assert item in call.body["input"]


@pytest.mark.parametrize(("limit", "path"), [(1, "chat/completions"), (16, "responses")])
async def test_a_limit_below_that_of_the_responses_api_is_sent_as_a_chat(limit: int, path: str) -> None:
    async def either(call: Received) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "length"}
        await call.reply(200, RESPONSE if call.path.endswith("/responses") else {"choices": [choice]})

    async with LoopbackServer(either) as server:
        spec = remote_spec(server.base_url, kind="openai-provider", api_key_env="K", responses="always")
        tier = RemoteTier(spec, environ={"K": "k"})
        request = chat(whole=True, max_tokens=limit, sampling=SamplingParams(temperature=1.0))
        await collect(tier, request)
        await tier.close()
    assert server.calls[0].path.endswith(path)


async def test_a_response_with_neither_output_nor_counts_is_no_answer() -> None:
    async def say_the_end(call: Call) -> None:
        await call.begin()
        await call.event({"type": "response.completed", "response": {"status": "completed"}})

    async with LoopbackServer(say_the_end) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai-provider", responses="always"))
        with pytest.raises(TierAnswerError):
            await collect(tier, chat())
        await tier.close()
