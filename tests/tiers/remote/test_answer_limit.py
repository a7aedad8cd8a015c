"""The limit of an answer: the caller's, else what the model's maker publishes, else what the context leaves."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from inference_core.protocol import SamplingParams
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import WHOLE_MESSAGE
from tests.tiers.tier_world import remote_spec
from tiers.conversation import Turn
from tiers.dialects.server_models import ServerModel, parse_models
from tiers.errors import TierContextError, TierRequestError
from tiers.remote.refusals import LearnedRefusals
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest, answer_limit

MOST = 64


@pytest.mark.parametrize(
    ("requested", "published", "prompt", "limit"),
    [
        (None, None, 96, 4000),
        (None, 1000, 96, 1000),
        (None, 8000, 96, 4000),
        (7, 1000, 96, 7),
        (32_000, 1000, 96, 4000),
        (None, None, 9000, 1),
        (5, None, 4096, 1),
    ],
)
def test_a_limit_is_the_callers_else_the_published_one_and_at_most_the_room(
    requested: int | None, published: int | None, prompt: int, limit: int
) -> None:
    assert answer_limit(requested, published, 4096, prompt) == limit


@pytest.mark.parametrize(
    ("entry", "most"),
    [
        ({"id": "m"}, None),
        ({"id": "m", "max_output_tokens": 8000}, 8000),
        ({"id": "m", "max_completion_tokens": 9000, "context_window": 10_000}, 9000),
        ({"id": "m", "top_provider": {"max_completion_tokens": 7000}}, 7000),
        ({"id": "m", "top_provider": {"max_completion_tokens": None}}, None),
        ({"id": "m", "max_output_tokens": True}, None),
        ({"id": "m", "max_output_tokens": 10**30}, None),
    ],
)
def test_a_server_tells_how_long_its_models_answers_may_be(entry: dict[str, Any], most: int | None) -> None:
    models = parse_models(200, msgspec.json.encode({"data": [entry]}))
    assert models == [ServerModel("m", entry.get("context_window"), most)]


def asking(**fields: Any) -> GenerationRequest:
    turn = Turn.of("user", "Hello")
    return GenerationRequest(request_id="r", sampling=SamplingParams(), messages=[turn], whole=True, **fields)


async def claude(call: Call) -> None:
    if (asked := call.body["max_tokens"]) > MOST:
        message = f"max_tokens: {asked} > {MOST}, which is the maximum allowed number of output tokens for claude"
        error = {"type": "invalid_request_error", "message": message}
        await call.reply(400, {"type": "error", "error": error})
    else:
        await call.reply(200, WHOLE_MESSAGE)


async def described(call: Call) -> None:
    await call.reply(200, {"type": "model", "id": "m", "max_input_tokens": 1000, "max_tokens": MOST})


async def answered(tier: RemoteTier, request: GenerationRequest) -> None:
    async with aclosing(tier.generate(request)) as deltas:  # type: ignore[type-var]
        async for _ in deltas:
            pass


def unbounded(url: str) -> RemoteTier:
    return RemoteTier(
        msgspec.structs.replace(remote_spec(url, kind="anthropic"), max_tokens=0, default_max_tokens=None)
    )


async def test_a_maximum_that_a_refusal_tells_is_kept_to_from_then_on() -> None:
    async with LoopbackServer(claude) as server:
        tier = unbounded(server.base_url)
        first, second = asking(), asking(max_tokens=1000)
        await answered(tier, first)
        await answered(tier, second)
        sent = [call.body["max_tokens"] for call in server.calls]
        assert sent[0] == tier.max_context - tier.count_prompt_tokens(first)
        assert sent[1:] == [MOST, MOST]
        assert (first.sent.max_tokens, second.sent.max_tokens) == (MOST, MOST)
        await tier.close()


async def test_a_maximum_that_the_server_publishes_needs_no_refusal() -> None:
    async with LoopbackServer(claude) as server:
        server.looked_at = described
        tier = unbounded(server.base_url)
        await tier.start()
        await answered(tier, asking())
        assert [call.body["max_tokens"] for call in server.calls] == [MOST]
        await tier.close()


async def test_another_refusal_is_not_tried_again() -> None:
    async def refusing(call: Call) -> None:
        error = {"type": "invalid_request_error", "message": "max_tokens: 9 > 9, which is the maximum allowed"}
        await call.reply(400, {"type": "error", "error": error})

    async with LoopbackServer(refusing) as server:
        tier = unbounded(server.base_url)
        with pytest.raises(TierRequestError):
            await answered(tier, asking(max_tokens=9))
        assert len(server.calls) == 1
        await tier.close()


CONTEXT, PROMPT = 1000, 60
"""Of a server; its template adds much to what the prompt is estimated at."""
REFUSED: dict[str, Callable[[int], str]] = {
    "with the counts": lambda asked: (
        f"This model's maximum context length is {CONTEXT} tokens. However, you requested {PROMPT + asked} tokens "
        f"({PROMPT} in the messages, {asked} in the completion)."
    ),
    "with those of tools": lambda asked: (
        f"This model's maximum context length is {CONTEXT} tokens. However, you requested {PROMPT + asked} tokens "
        f"({PROMPT - 50} in the messages, 50 in the functions, and {asked} in the completion)."
    ),
    "with the sum": lambda asked: (
        f"The input and maximum output tokens ({PROMPT + asked}) exceeded this model context window limit ({CONTEXT})."
    ),
    "with a prompt that was not read on": lambda asked: (
        f"This model's maximum context length is {CONTEXT} tokens. However, you requested {asked} output tokens and "
        f"your prompt contains at least {CONTEXT - asked + 1} input tokens, for a total of at least {CONTEXT + 1}."
    ),
    "with the context alone": lambda asked: (
        f"max_tokens={asked} cannot be greater than max_model_len=max_total_tokens={CONTEXT}."
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
@pytest.mark.parametrize("asked", [500_000, CONTEXT - PROMPT + 5])
async def test_a_limit_that_does_not_fit_is_lowered_as_the_server_says_and_the_next_one_at_once(
    said: str, asked: int
) -> None:
    async def refusing(call: Call) -> None:
        if (limit := call.body["max_tokens"]) > CONTEXT - PROMPT:
            await call.reply(400, {"error": {"message": REFUSED[said](limit), "type": "BadRequestError"}})
        else:
            await call.say("Hi")

    async with LoopbackServer(refusing) as server:
        tier = RemoteTier(remote_spec(server.base_url, max_context=9000), refusals=LearnedRefusals())
        request = asking(max_tokens=asked)
        await answered(tier, request)
        assert len(server.calls) <= 3
        # Much of what is left is asked for.
        assert CONTEXT - 3 * PROMPT < (request.sent.max_tokens or 0) <= CONTEXT - PROMPT
        server.calls.clear()
        await answered(tier, asking(max_tokens=500_000))
        await answered(tier, asking(max_tokens=9))
        assert [call.body["max_tokens"] <= CONTEXT - PROMPT for call in server.calls] == [True, True]
        assert server.calls[-1].body["max_tokens"] == 9
        await tier.close()


async def test_a_prompt_that_does_not_fit_with_any_limit_is_refused_once() -> None:
    async def refusing(call: Call) -> None:
        words = f"This model's maximum context length is {CONTEXT} tokens. However, you requested 1500 tokens "
        words += "(1100 in the messages, 400 in the completion)."
        await call.reply(400, {"error": {"message": words}})

    async with LoopbackServer(refusing) as server:
        tier = RemoteTier(remote_spec(server.base_url, max_context=9000), refusals=LearnedRefusals())
        with pytest.raises(TierContextError):
            await answered(tier, asking(max_tokens=400))
        assert len(server.calls) == 1
        await tier.close()
