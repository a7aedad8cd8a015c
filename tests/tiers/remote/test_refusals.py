"""Refusals of servers: which parameter they name, in any provider's words, and what is learned from them."""

import json
from typing import Any

import msgspec
import pytest

from inference_core.protocol import SamplingParams
from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.errors import CallerCredential, TierRequestError
from tiers.remote.openai_format import parse_error, wait_in
from tiers.remote.refusals import LearnedRefusals, Place, refused_parameters
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest


def openai(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def extra(*loc: str) -> dict[str, Any]:
    return {"type": "extra_forbidden", "loc": ["body", *loc], "msg": "Extra inputs are not permitted", "input": 1}


AS_SUCH: list[tuple[str, dict[str, Any], set[str]]] = [
    ("OpenAI", openai("Unsupported parameter: 'top_p' is not supported with this model.", "top_p",
                      "unsupported_parameter"), {"top_p"}),
    ("OpenAI, default alone", openai("Unsupported value: 'temperature' does not support 0.2 with this model. Only the "
                                     "default (1) value is supported.", "temperature", "unsupported_value"),
     {"temperature"}),
    ("OpenAI, limit", openai("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                             "'max_completion_tokens' instead.", "max_tokens", "unsupported_parameter"),
     {"max_tokens"}),
    ("Azure", openai("Unrecognized request argument supplied: parallel_tool_calls"), {"parallel_tool_calls"}),
    ("Anthropic", {"type": "error", "error": {"type": "invalid_request_error",
                                              "message": "`temperature` is deprecated for this model."}},
     {"temperature"}),
    ("Anthropic, both", {"type": "error", "error": {"message": "`temperature` and `top_p` cannot both be specified for "
                                                    "this model. Please use only one."}}, {"top_p"}),
    ("Anthropic, extra", {"type": "error", "error": {"message": "output_config.effort: Extra inputs are not "
                                                     "permitted"}}, {"reasoning_effort"}),
    ("Anthropic, effort", {"type": "error", "error": {"message": "This model does not support the effort parameter."}},
     {"reasoning_effort"}),
    ("Mistral", {"object": "error", "message": {"detail": [extra("parallel_tool_calls")]}, "code": None},
     {"parallel_tool_calls"}),
    ("FastAPI", {"detail": [extra("seed"), extra("presence_penalty")]}, {"seed", "presence_penalty"}),
    ("vLLM", {"object": "error", "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'min_p'), 'msg': 'Extra "
              "inputs are not permitted', 'input': 0.1}]", "code": 400}, {"min_p"}),
    ("Gemini", {"error": {"code": 400, "message": 'Invalid JSON payload received. Unknown name "topK" at '
                          "'generation_config': Cannot find field.", "status": "INVALID_ARGUMENT"}}, {"top_k"}),
    ("Gemini, penalties", {"error": {"code": 400, "message": "Penalty is not enabled for models/gemini-2.5"}},
     {"presence_penalty", "frequency_penalty"}),
    ("Bedrock", {"message": "This model doesn't support the topP field. Remove topP and try again."}, {"top_p"}),
    ("Bedrock, key", {"message": "Malformed input request: #: extraneous key [top_k] is not permitted"}, {"top_k"}),
    ("xAI", {"error": "Argument not supported on this model: presencePenalty"}, {"presence_penalty"}),
    ("Groq", openai("'reasoning_effort' is not supported with this model"), {"reasoning_effort"}),
    ("Groq, property", openai("property 'logit_bias' is unsupported"), {"logit_bias"}),
    ("Moonshot", openai("invalid temperature: only 1 is allowed for this model"), {"temperature"}),
    ("Anthropic, edits", {"error": {"message": "context_management: Extra inputs are not permitted"}},
     {"context_management"}),
    ("LM Studio", {"error": "'response_format.type' must be 'json_schema' or 'text'"}, {"response_format"}),
    ("others, extra", openai("Extra inputs are not permitted, field: 'seed', value: 1"), {"seed"}),
    ("others, schema", openai("Additional properties are not allowed ('seed' was unexpected)"), {"seed"}),
    ("store, Mistral", {"detail": [extra("store")]}, {"store"}),
    ("store, Cerebras", openai("body.store: property 'body.store' is unsupported"), {"store"}),
    ("TGI", {"error": "unknown field `stream_options`, expected one of `model`, `messages`"}, {"stream_options"}),
]  # fmt: skip
OTHERWISE: list[tuple[str, dict[str, Any]]] = [
    ("a value out of range", openai("temperature: range: 0..1")),
    ("a value that must be", openai("'temperature' is not supported: must be at most 1")),
    ("a value of several", openai("Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. "
                                  "Supported values are: 'low' and 'high'.", "reasoning_effort", "unsupported_value")),
    ("a wrong type", openai("Invalid type for 'temperature': expected a number", "temperature", "invalid_type")),
    ("a Pydantic value", {"detail": [{"type": "less_than_equal", "loc": ["body", "temperature"],
                                      "msg": "Input should be less than or equal to 2"}]}),
    ("tools", openai("Unsupported parameter: 'tools' is not supported with this model.", "tools",
                     "unsupported_parameter")),
    ("a format", openai("'response_format' is not supported with this model")),
    ("safety", openai("Unrecognized request argument supplied: safety_identifier")),
    ("a field of a message", {"detail": [extra("messages", "temperature")]}),
    ("a long text", openai("x" * 50_000)),
]  # fmt: skip


def named(body: dict[str, Any]) -> frozenset[str]:
    data = json.dumps(body).encode()
    error = parse_error(data)
    return refused_parameters(data, error.message, error.param, error.code)


@pytest.mark.parametrize(("body", "names"), [pytest.param(*row[1:], id=row[0]) for row in AS_SUCH])
def test_a_parameter_that_is_refused_as_such_is_known_in_any_wording(body: dict[str, Any], names: set[str]) -> None:
    assert named(body) == names


@pytest.mark.parametrize("body", [pytest.param(row[1], id=row[0]) for row in OTHERWISE])
def test_a_refused_value_or_what_an_answer_needs_is_none_of_them(body: dict[str, Any]) -> None:
    assert named(body) == frozenset()


COLD: GenerationRequest = chat(sampling=SamplingParams(temperature=0.2, top_p=0.9), whole=True)


async def reply_to(call: Call, *refused: str, status: int = 400) -> None:
    """Refuse the first of `refused` that a request has, else answer."""
    name = next((name for name in refused if name in call.body), None)
    if name is not None:
        await call.reply(status, openai(f"Unsupported parameter: '{name}'", name, "unsupported_parameter"))
        return
    await call.whole("Hi", {"prompt_tokens": 9, "completion_tokens": 1})


async def test_what_is_refused_is_left_out_named_and_remembered_per_place() -> None:
    learned = LearnedRefusals()
    async with LoopbackServer(lambda call: reply_to(call, "temperature", "top_p", status=422)) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="vllm"), refusals=learned)
        for _ in range(2):
            (answer,), _ = await collect(tier, COLD)
            assert answer.text == "Hi"
        assert COLD.sent.dropped == ("temperature", "top_p")
        assert [sorted(call.body.keys() & {"temperature", "top_p"}) for call in server.calls] == [
            ["temperature", "top_p"], ["top_p"], [], [],
        ]  # fmt: skip
        (known,) = learned.listed()
        assert (known.tier, known.url, known.api) == (tier.name, server.base_url, "chat/completions")
        assert known.parameters == ["temperature", "top_p"]
        learned.forget(tier.name)
        await collect(tier, COLD)
        assert "temperature" in server.calls[4].body
        await tier.close()


async def test_a_limit_is_sent_by_its_other_name() -> None:
    async with LoopbackServer(lambda call: reply_to(call, "max_tokens")) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai"), refusals=LearnedRefusals())
        request = chat(whole=True)
        await collect(tier, request)
        assert server.calls[1].body["max_completion_tokens"] == 12
        assert request.sent.changed == ("max_tokens",)
        await tier.close()


async def test_any_json_object_is_asked_for_by_a_schema_where_that_is_refused() -> None:
    async def lm_studio(call: Call) -> None:
        if call.body["response_format"]["type"] == "json_object":
            await call.reply(400, {"error": "'response_format.type' must be 'json_schema' or 'text'"})
            return
        await reply_to(call)

    async with LoopbackServer(lm_studio) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai"), refusals=LearnedRefusals())
        request = msgspec.structs.replace(chat(whole=True), response_format={"type": "json_object"})
        await collect(tier, request)
        assert server.calls[1].body["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert request.sent.changed == ("response_format",)
        await tier.close()


async def test_nothing_is_learned_from_a_retry_that_fails() -> None:
    learned = LearnedRefusals()

    async def refuse(call: Call) -> None:
        name = "temperature" if "temperature" in call.body else "tools"
        await call.reply(400, openai(f"Unsupported parameter: '{name}'", name, "unsupported_parameter"))

    async with LoopbackServer(refuse) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai"), refusals=learned)
        with pytest.raises(TierRequestError):
            await collect(tier, COLD)
        assert len(server.calls) == 2
        assert learned.listed() == []
        await tier.close()


async def test_nothing_is_learned_under_a_callers_own_credential() -> None:
    learned = LearnedRefusals()
    async with LoopbackServer(lambda call: reply_to(call, "temperature")) as server:
        spec = remote_spec(server.base_url, kind="openai-provider", credentials="caller")
        tier = RemoteTier(spec, refusals=learned)
        (answer,), _ = await collect(tier, chat(sampling=COLD.sampling, whole=True, credential=CallerCredential("own")))
        assert answer.text == "Hi"
        assert learned.listed() == []
        await tier.close()


def test_refusals_are_forgotten_after_a_day_and_bounded() -> None:
    now = 0.0
    learned = LearnedRefusals(most=2, clock=lambda: now)
    places = [Place(f"t{n}", "u", "chat", "m") for n in range(3)]
    for place in places:
        learned.learn(place, frozenset({"seed"}))
    assert [learned.at(place) for place in places] == [frozenset(), {"seed"}, {"seed"}]
    now = 86_401.0
    assert learned.at(places[2]) == frozenset()
    assert learned.listed() == []


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("Please try again in 1m2.5s.", 62.5),
        ("Retry after 20 seconds", 20.0),
        ("Please wait 2 minutes, then retry.", 120.0),
        ("try again in about 1 hour", 300.0),
        ("Please retry in 350 ms", 0.35),
        ("The limit resets in 1 min 5 sec", 65.0),
        ("Please try again in 5 attempts", None),
        ("Please wait before trying again.", None),
    ],
)
def test_waits_are_read_in_any_words(said: str, seconds: float | None) -> None:
    assert wait_in(said) == seconds
