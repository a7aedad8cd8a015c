"""What a refusal teaches holds for the tenant that got it, until another one, or AIO itself, gets the same refusal; a
bad value is the caller's own; and what words alone say of a server is not believed of one tenant."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inference_core.protocol import SamplingParams
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.catalog import EmbeddingSpec
from tiers.conversation import Tool, Tooling
from tiers.errors import TierBusyError, TierCapabilityError, TierKeyError, TierRequestError, TierUnavailableError
from tiers.remote.embedding_client import EmbeddingClient, EmbeddingCounter
from tiers.remote.refusals import LearnedRefusals, ServedModel
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import REPLAYED, GenerationRequest

Body = dict[str, Any]
LIMIT = "max_tokens: 900 > 500, which is the maximum allowed number of output tokens"


def error(message: str, param: str | None = None, code: str | None = None) -> Body:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def refusing(holds: Callable[[Body], Any], said: Body, status: int = 400) -> Callable[[Call], Any]:
    async def play(call: Call) -> None:
        if holds(call.body):
            await call.reply(status, said)
        elif call.path.endswith("/embeddings"):
            listed = [{"index": index, "embedding": [1.0]} for index in range(len(call.body["input"]))]
            await call.reply(200, {"data": listed, "usage": {"prompt_tokens": 9}})
        elif call.body.get("n", 1) > 1:
            choices = [{"index": index, "message": {"content": "Hi"}, "finish_reason": "stop"} for index in range(2)]
            await call.reply(200, {"object": "chat.completion", "choices": choices})
        else:
            await call.say("Hi")

    return play


@asynccontextmanager
async def asked(handler: Any, **spec: Any) -> AsyncIterator[tuple[RemoteTier, LoopbackServer, LearnedRefusals]]:
    learned = LearnedRefusals()
    async with LoopbackServer(handler) as server:
        tier = RemoteTier(remote_spec(server.base_url, **({"kind": "openai"} | spec)), refusals=learned)
        yield tier, server, learned
        await tier.close()


def asking(tenant: str, **fields: Any) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.2, seed=7)
    return chat(**({"salt": tenant, "whole": True, "max_tokens": 900, "sampling": sampling} | fields))


TAUGHT: dict[str, tuple[Callable[[Body], Any], Body, Body]] = {
    "a parameter": (lambda body: "temperature" in body, error("No", "temperature", "unsupported_parameter"), {}),
    "a limit": (lambda body: (body.get("max_tokens") or body["max_completion_tokens"]) > 500, error(LIMIT), {}),
    "choices": (lambda body: body.get("n", 1) > 1, error("Invalid n value (only n = 1 is supported)"), {"n": 2}),
    "stop": (lambda body: "stop" in body, error("'stop' is not supported with this model"), {"stop": ("END",)}),
}  # fmt: skip


@pytest.mark.parametrize("name", TAUGHT)
@pytest.mark.parametrize("second", ["two", ""])
async def test_a_lesson_is_one_tenants_until_a_second_one_or_aio_itself_gets_it(name: str, second: str) -> None:
    holds, said, fields = TAUGHT[name]
    async with asked(refusing(holds, said)) as (tier, server, _):

        async def refused(tenant: str) -> int:
            before = len(server.calls)
            answers, _ = await collect(tier, asking(tenant, **fields))
            assert {answer.text for answer in answers} == {"Hi"}
            return sum(bool(holds(call.body)) for call in server.calls[before:])

        assert [await refused(tenant) for tenant in ("one", "one", second, "three", "four")] == [1, 0, 1, 0, 0]


async def test_another_refusal_of_the_same_confirms_nothing() -> None:
    codes = iter(["unsupported_parameter", "unknown_parameter", "unsupported_parameter"])

    async def play(call: Call) -> None:
        if "temperature" in call.body:
            await call.reply(400, error("No", "temperature", next(codes)))
        else:
            await call.say("Hi")

    async with asked(play) as (tier, server, learned):
        for tenant in ("one", "two"):
            await collect(tier, asking(tenant))
        (served,) = learned.known
        assert learned.at(served, "three") == frozenset()
        await collect(tier, asking("three"))
        assert learned.at(served, "four") == {"temperature"}
        assert len(server.calls) == 6


async def test_a_callers_words_that_are_sent_once_more_confirm_nothing() -> None:
    async with asked(refusing(*TAUGHT["a parameter"][:2])) as (tier, _, learned):
        for tenant in ("one", REPLAYED, f"{REPLAYED}/one"):
            await collect(tier, asking(tenant))
        (served,) = learned.known
        assert learned.at(served, "one") == {"temperature"}
        assert learned.at(served, "two") == frozenset()


async def test_what_a_choice_of_providers_refuses_teaches_nothing() -> None:
    said = error("No endpoints found that can handle the requested parameters.")
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}}
    holds = lambda body: body.get("response_format", {}).get("type") == "json_schema"  # noqa: E731
    async with asked(refusing(holds, said, 404)) as (tier, _, learned):
        await collect(tier, asking("one", extra={"provider": {"order": ["x"]}}, **form))
        assert learned.listed() == []
        await collect(tier, asking("one", **form))
        assert learned.listed() != []


VALUES = [
    error("Invalid 'seed': seed must be less than or equal to 2147483647.", "seed", "integer_above_max_value"),
    error("seed: Input should be less than or equal to 2147483647"),
    error("top_k must be at most 100.", "top_k"),
    error("it has a topK value of 60 but the supported range is from 1 (inclusive) to 41 (exclusive)."),
    error("Invalid 'metadata': string too long. Expected a string with maximum length 200.", "metadata",
          "string_above_max_length"),
    error("'metadata' is not allowed to have more than 16 keys", "metadata"),
    error("Input should be a valid string", "metadata.user"),
    error("Invalid 'prompt_cache_key': string too long.", "prompt_cache_key", "string_above_max_length"),
    error("thinking.type: unknown variant `x`, expected `enabled` or `disabled` at line 1 column 120"),
    error("provider.order: Expected array, received string", "provider.order"),
    error("Invalid type for 'temperature': expected a number", "temperature", "invalid_type"),
    {"detail": [{"type": "less_than_equal", "loc": ["body", "seed"], "msg": "Input should be less than or equal to 9",
                 "input": {"type": "extra_forbidden", "loc": ["body", "seed"]}}]},
]  # fmt: skip


@pytest.mark.parametrize("said", VALUES)
async def test_a_bad_value_is_the_callers_and_teaches_nothing(said: Body) -> None:
    async with asked(refusing(lambda body: body["messages"][0]["content"] == "bad", said)) as (tier, server, learned):
        passed = {"metadata": {"a": "b"}, "prompt_cache_key": "k"}
        for _ in range(2):
            with pytest.raises(TierRequestError):
                await collect(tier, asking("one", text="bad", passed=passed))
        await collect(tier, asking("one", passed=passed))
        assert len(server.calls) == 3
        assert server.calls[2].body | passed | {"seed": 7} == server.calls[2].body
        assert learned.listed() == []
        assert tier.load().healthy


async def test_a_value_that_one_model_lacks_is_left_out_of_this_request_alone() -> None:
    said = error("Unsupported value: 'low' is not supported with the 'm' model.", "verbosity", "unsupported_value")
    async with asked(refusing(lambda body: body.get("verbosity") == "low", said)) as (tier, server, learned):
        await collect(tier, asking("one", passed={"verbosity": "low"}))
        await collect(tier, asking("one", passed={"verbosity": "high"}))
        assert [call.body.get("verbosity") for call in server.calls] == ["low", None, "high"]
        assert learned.listed() == []


WORDED = [
    ("openai", "Insufficient balance. Please recharge.", TierKeyError),
    ("openai", "Rate limit exceeded, too many requests.", TierBusyError),
    ("openai", "Incorrect API key provided.", TierKeyError),
    ("openai", "The model m does not exist.", TierUnavailableError),
    ("anthropic", "Your credit balance is too low to access the API.", TierKeyError),
    ("gemini", "API key not valid. Please pass a valid API key.", TierKeyError),
]


@pytest.mark.parametrize(("kind", "words", "means"), WORDED)
async def test_words_alone_take_a_tier_from_all_once_a_second_tenant_gets_them_too(
    kind: str, words: str, means: type[TierUnavailableError]
) -> None:
    """Until then the next tier is asked for the first one."""
    async with asked(refusing(lambda _: True, error(words)), kind=kind) as (tier, _, _):
        for tenant, request_id in (("one", "a key"), ("one", "another key"), (f"{REPLAYED}/one", "a check of it")):
            with pytest.raises(TierCapabilityError, match=words[:20]):
                await collect(tier, asking(tenant, request_id=request_id, sampling=SamplingParams(temperature=1.0)))
            assert tier.load().healthy
        with pytest.raises(means):
            await collect(tier, asking("two", sampling=SamplingParams(temperature=1.0)))
        assert not tier.load().healthy


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429])
async def test_a_status_takes_it_from_all_at_once(status: int) -> None:
    async with asked(refusing(lambda _: True, error("No"), status)) as (tier, _, _):
        with pytest.raises(TierUnavailableError):
            await collect(tier, asking("one"))
        assert not tier.load().healthy


@pytest.mark.parametrize(
    "code", ["insufficient_quota", "rate_limit_exceeded", "model_decommissioned", "invalid_api_key"]
)
async def test_so_does_a_code(code: str) -> None:
    async with asked(refusing(lambda _: True, error("No", code=code))) as (tier, _, _):
        with pytest.raises(TierUnavailableError):
            await collect(tier, asking("one"))
        assert not tier.load().healthy


@pytest.mark.parametrize("words", [words for kind, words, _ in WORDED if kind == "openai"] + [LIMIT])
@pytest.mark.parametrize("streamed", [True, False])
async def test_what_is_repeated_says_nothing_of_the_server_also_to_aio_itself(words: str, streamed: bool) -> None:
    """In a refusal, and in an error within a stream."""

    async def play(call: Call) -> None:
        said = error(f"could not read {call.body['messages'][0]['content']!r} as a text", code="bad")
        if streamed:
            await call.begin()
            await call.event(said)
        else:
            await call.reply(400, said)

    async with asked(play) as (tier, server, learned):
        with pytest.raises(Exception, match="could not read") as raised:
            await collect(tier, asking("", text=words, whole=not streamed))
        assert not isinstance(raised.value, TierUnavailableError | TierCapabilityError)
        assert tier.load().healthy
        assert len(server.calls) == 1
        assert learned.listed() == []


async def test_no_caller_hides_by_its_own_words_that_a_status_is_about_the_request() -> None:
    words = "This model is only supported in v1/responses."
    async with asked(refusing(lambda _: True, error(words), 404)) as (tier, _, _):
        with pytest.raises(TierCapabilityError):
            await collect(tier, asking("one", stop=(words,)))
        assert tier.load().healthy


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("whole", [False, True])
async def test_an_answer_ends_at_its_stop_string_also_where_the_server_ignores_it(whole: bool, include: bool) -> None:
    async with asked(lambda call: call.say("{} E", "ND tail", usage={"prompt_tokens": 3, "completion_tokens": 4})) as (
        tier,
        server,
        _,
    ):
        (answer,), usage = await collect(tier, asking("one", stop=("END",), whole=whole, include_stop=include))
        assert (answer.text, answer.finish_reason) == ("{} END" if include else "{} ", "stop")
        assert server.calls[0].body["stop"] == ["END"]
        (answer,), usage = await collect(tier, asking("one", stop=("other",), whole=whole, max_tokens=50))
        assert answer.text.replace(" ", "") == "{}ENDtail"
        assert usage.completion_tokens == 4


def test_an_operator_sees_for_which_tenants_it_holds() -> None:
    learned = LearnedRefusals()
    served = ServedModel("t", "u", "chat", "m")
    learned.learn(served, {"seed"}, "one", "400 x")
    learned.learn(served, {"top_p"}, "one", "400 x")
    learned.learn(served, {"top_p"}, "two", "400 x")
    assert [(refusal.parameters, refusal.tenants) for refusal in learned.listed()] == [(["top_p"], 0), (["seed"], 1)]


def test_what_one_tenant_is_refused_is_bounded() -> None:
    learned = LearnedRefusals(most=3)
    for number in range(9):
        served = ServedModel(f"t{number}", "u", "chat", "m")
        for name in range(40):
            learned.learn(served, {f"p{name}-{index}" for index in range(20)}, "one", str(name))
    assert len(learned.known) == 3
    assert all(len(refusals) <= 256 for refusals in learned.known.values())


async def test_embeddings_learn_by_tenant_too() -> None:
    """That a server knows only numbers, and how many texts it takes at a time."""
    many = refusing(lambda body: len(body["input"]) > 2, error("batch size must be at most 2"))

    async def play(call: Call) -> None:
        if "encoding_format" in call.body:
            await call.reply(400, error("Unknown field", "encoding_format", "unknown_parameter"))
        else:
            await many(call)

    async with LoopbackServer(play) as server:
        spec = EmbeddingSpec(name="e", url=server.base_url, model="m", input_usd_per_million=1.0)
        client = EmbeddingClient(spec, LearnedRefusals())

        async def calls_of(tenant: str) -> int:
            before = len(server.calls)
            await client.embed(["a", "b", "c"], {"encoding_format": "float"}, EmbeddingCounter(), tenant)
            return len(server.calls) - before

        # One with each refusal, and two with the parts.
        assert [await calls_of(tenant) for tenant in ("one", "one", "two", "three")] == [4, 2, 4, 2]
        await client.close()


TOO_MANY = (
    "Invalid 'tools': array too long. Expected an array with maximum length 2, but got an array with length 3 instead.",
    "'tools' : maximum number of items is 2",
    "* tools[0].function_declarations: [FIELD_INVALID] At most 2 function declarations can be specified.",
    "tools: List should have at most 2 items after validation, not 3",
    "Number of tools (3) exceeds the maximum of 2",
    "Too many tools: 3 > 2",
    "You can provide at most 2 tools.",
    "The maximum number of tools is 2",
    "Value at 'toolConfig.tools' failed to satisfy constraint: Member must have length less than or equal to 2",
)


def with_tools(tenant: str, count: int) -> GenerationRequest:
    return asking(tenant, tooling=Tooling(tools=tuple(Tool(name=f"tool_{index}") for index in range(count))))


@pytest.mark.parametrize("words", TOO_MANY)
async def test_more_tools_than_a_server_takes_are_another_tiers_and_known_of_the_tenant(words: str) -> None:
    async with asked(refusing(lambda body: len(body["tools"]) > 2, error(words))) as (tier, server, _):
        with pytest.raises(TierCapabilityError, match=re.escape(words)):
            await collect(tier, with_tools("one", 3))
        assert len(server.calls) == 1
        told = [tier.learned_refusal(with_tools(*case)) for case in (("one", 3), ("one", 2), ("two", 3))]
        assert [refusal is not None for refusal in told] == [True, False, False]
        await collect(tier, with_tools("one", 2))


async def test_what_is_refused_of_fewer_tools_than_the_words_tell_is_not_kept() -> None:
    words = "tools: List should have at most 5 items after validation"
    async with asked(refusing(lambda body: True, error(words))) as (tier, _, learned):
        with pytest.raises(TierRequestError):
            await collect(tier, with_tools("one", 3))
        assert learned.listed() == []
