"""Refusals of servers: which parameter they name, in any provider's words, and what is learned from them."""

import json
from typing import Any

import msgspec
import pytest

from inference_core.protocol import SamplingParams
from tests.recordings.recording import files, recordings
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.dialects.refusals import REFUSAL_ROWS, lessons_in, refused_parameters
from tiers.dialects.server_error import parse_error, wait_in
from tiers.errors import CallerCredential, TierRequestError
from tiers.remote.refusals import LearnedRefusals, ServedModel
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest


def openai(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def test_a_long_text_names_no_parameter() -> None:
    data = json.dumps(openai("x" * 50_000)).encode()
    error = parse_error(data)
    assert refused_parameters(data, error.message, error.param, error.code) == frozenset()


def test_every_lesson_is_taught_by_some_recording() -> None:
    said = [words for file in files() for case in recordings(file) for words, _ in case.fields.get("refused", ())]
    bodies = [words.get("error", words) if isinstance(words, dict) else openai(words) for words in said]
    messages = [
        parse_error(json.dumps(body if isinstance(body, dict) else openai(body)).encode()).message for body in bodies
    ]
    taught = {name for message in messages for name in lessons_in(message, None, None)}
    # The first is what a second refusal of a format teaches, and the second is not a change of a body.
    assert {lesson.name for lesson in REFUSAL_ROWS.lessons} - taught == {"response_format.type", "chat/completions"}


COLD: GenerationRequest = chat(sampling=SamplingParams(temperature=0.2, top_p=0.9), whole=True)


async def reply_to(call: Call, *refused: str, status: int = 400) -> None:
    """Refuse the first of `refused` that a request has, else answer."""
    name = next((name for name in refused if name in call.body), None)
    if name is not None:
        await call.reply(status, openai(f"Unsupported parameter: '{name}'", name, "unsupported_parameter"))
        return
    await call.whole("Hi", {"prompt_tokens": 9, "completion_tokens": 1})


async def test_what_is_refused_is_left_out_named_and_remembered_per_model() -> None:
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
        (refusal,) = learned.listed()
        assert (refusal.tier, refusal.url, refusal.api) == (tier.name, server.base_url, "chat/completions")
        assert refusal.parameters == ["temperature", "top_p"]
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
    models = [ServedModel(f"t{n}", "u", "chat", "m") for n in range(3)]
    for model in models:
        learned.learn(model, frozenset({"seed"}))
    assert [learned.at(model) for model in models] == [frozenset(), {"seed"}, {"seed"}]
    now = 86_401.0
    assert learned.at(models[2]) == frozenset()
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


async def test_a_client_that_leaves_choices_asked_one_by_one_frees_their_connections_at_once() -> None:
    async def endless(call: Call) -> None:
        if call.body.get("n", 1) > 1:
            await call.reply(400, {"error": {"message": "Invalid n value (currently only n = 1 is supported)"}})
            return
        await call.begin()
        await call.chunk("Hi")
        await server.disconnected.wait()

    async with LoopbackServer(endless) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai"), refusals=LearnedRefusals())
        answers = tier.generate(chat(n=2))
        async for delta in answers:
            if delta.text:
                break
        await answers.aclose()
        assert tier.load().running == 0
        await server.disconnected.wait()
        await tier.close()
