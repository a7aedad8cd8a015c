"""A strict answer that is not valid is made again once, and is never sent as complete."""

from typing import Any

import openai
import pytest

from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway
from tiers.conversation import ToolCallDelta
from tiers.errors import InvalidAnswerError

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
BODY: dict[str, Any] = {
    "model": "tier-1",
    "messages": [{"role": "user", "content": "How old is Ada?"}],
    "seed": 5,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}},
}
GOOD, BAD = ('{"age":', " 3}"), ('{"age":', ' "x"}')


async def test_a_whole_answer_is_made_again_with_another_seed_and_both_are_billed(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words, tier.later_words = BAD, GOOD
    answer = await gateway.http.post("/v1/chat/completions", json=BODY)
    assert answer.json()["choices"][0]["message"]["content"] == '{"age": 3}'
    first, second = (request.sampling.seed for request in tier.requests)
    assert (first, second) == (5, 4)
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert [(attempt.tier, attempt.status) for attempt in record.attempts] == [(1, "error"), (1, "ok")]
    assert all(attempt.cost_usd > 0 for attempt in record.attempts)
    assert record.cost_usd == pytest.approx(sum(attempt.cost_usd for attempt in record.attempts))


async def test_an_answer_that_is_invalid_twice_is_an_error_that_names_the_keyword(gateway: RunningGateway) -> None:
    gateway.tier(1).words = BAD
    answer = await gateway.http.post("/v1/chat/completions", json=BODY)
    assert answer.status_code == 502
    assert "response_format.json_schema.schema" in answer.json()["error"]["message"]
    assert "keyword 'type'" in answer.json()["error"]["message"]
    assert len(gateway.tier(1).requests) == 2


async def test_a_stream_ends_with_an_error_event_and_not_with_stop(gateway: RunningGateway) -> None:
    gateway.tier(1).words = BAD
    stream = await gateway.openai.chat.completions.create(**BODY, stream=True)
    pieces = [await anext(stream) for _ in range(3)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == '{"age": "x"}'
    with pytest.raises(openai.APIError, match="keyword 'type'"):
        await anext(stream)
    assert len(gateway.tier(1).requests) == 1


async def test_a_model_here_leaves_the_answer_that_could_not_end_valid(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.fail_at, tier.error = 1, InvalidAnswerError("$.age does not hold for the keyword 'type'")
    tier.error.token_ids = (7, 8)
    answer = await gateway.http.post("/v1/chat/completions", json=BODY)
    assert answer.status_code == 502
    first, second = (request.sampling.grammar for request in tier.requests)
    assert first is not None
    assert second is not None
    assert (first.avoid, second.avoid) == ((), (7, 8))


async def test_a_strict_tools_call_is_made_again(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words, tier.calls = (), (ToolCallDelta(index=0, id="call_1", name="f", arguments="{}"),)
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
    body = {name: BODY[name] for name in ("model", "messages")} | {"tools": [tool]}
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 502
    assert "tools[0].function.parameters" in answer.json()["error"]["message"]
    assert len(tier.requests) == 2
