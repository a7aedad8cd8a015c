"""Streamed chats: the event sequence, exactly as OpenAI's clients expect it."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.app import RunningGateway
from tiers.errors import TierError

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


async def events(gateway: RunningGateway, **fields: Any) -> list[str]:
    body = {"model": "auto", "messages": HELLO, "stream": True, **fields}
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("\n\n")
    blocks = answer.text[:-2].split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


async def test_a_stream_begins_with_the_role_and_ends_with_one_finish_reason_and_done(gateway: RunningGateway) -> None:
    *chunks, last = await events(gateway)
    assert last == "[DONE]"
    deltas = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in delta["delta"] for delta in deltas[1:])
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == "Hello there, how are you?"
    assert [delta["finish_reason"] for delta in deltas] == [None] * 6 + ["stop"]
    assert deltas[-1]["delta"] == {}


async def test_id_creation_time_and_model_are_constant_within_a_stream(gateway: RunningGateway) -> None:
    chunks = [json.loads(chunk) for chunk in (await events(gateway))[:-1]]
    for name in ("id", "created", "model", "object", "system_fingerprint"):
        assert len({chunk[name] for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_and_cost_come_last_if_asked_for(gateway: RunningGateway) -> None:
    *chunks, done = await events(gateway, stream_options={"include_usage": True})
    assert done == "[DONE]"
    *before, last = [json.loads(chunk) for chunk in chunks]
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 6
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 0}
    assert last["x_aio"]["tier"] == 1
    assert last["x_aio"]["cost_usd"] == 0.000002625
    assert last["x_aio"]["decision_id"] == last["id"]


async def test_the_official_client_reads_a_stream(gateway: RunningGateway) -> None:
    stream = await gateway.openai.chat.completions.create(
        model="tier-3", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello there, how are you?"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 11


async def test_a_stream_says_in_its_headers_who_answers(gateway: RunningGateway) -> None:
    raw = await gateway.openai.chat.completions.with_raw_response.create(model="tier-4", messages=HELLO, stream=True)
    assert raw.headers["x-aio-tier"] == "4"
    assert raw.headers["x-aio-model"] == "smollm2-bf16"
    assert "x-aio-cost-usd" not in raw.headers


async def test_every_choice_of_a_stream_has_its_role_text_and_finish_reason(gateway: RunningGateway) -> None:
    choices = [json.loads(chunk)["choices"][0] for chunk in (await events(gateway, n=2))[:-1]]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in own) == "Hello there, how are you?"
        assert sum(choice["finish_reason"] is not None for choice in own) == 1


async def test_thoughts_are_streamed_as_reasoning_content_before_the_answer(gateway: RunningGateway) -> None:
    gateway.tier(4).reasoning = ("Think", " hard.")
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in (await events(gateway, model="tier-4"))[:-1]]
    assert [delta for delta in deltas if "reasoning_content" in delta] == [
        {"reasoning_content": "Think", "reasoning": "Think"},
        {"reasoning_content": " hard.", "reasoning": " hard."},
    ]
    assert "content" in deltas[3]


async def test_log_probabilities_travel_with_their_piece_of_text(gateway: RunningGateway) -> None:
    choices = [json.loads(chunk)["choices"][0] for chunk in (await events(gateway, logprobs=True, top_logprobs=1))[:-1]]
    pieces = [choice for choice in choices if choice["logprobs"]]
    assert [choice["logprobs"]["content"][0]["token"] for choice in pieces] == [
        choice["delta"]["content"] for choice in pieces
    ]
    assert len(pieces) == 5


async def test_text_survives_json_and_utf8_unharmed(gateway: RunningGateway) -> None:
    gateway.tier(1).words = ('"quoted"\n', "naïve 🙂", "\x00\u2028", "data: [DONE]\n\n")
    chunks = (await events(gateway))[:-1]
    text = "".join(json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == '"quoted"\nnaïve 🙂\x00\u2028data: [DONE]\n\n'


async def test_a_piece_is_sent_while_the_next_one_is_awaited(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 2
    body = {"model": "tier-1", "messages": HELLO, "stream": True}
    async with asyncio.timeout(30), gateway.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = aiter(answer.aiter_lines())
        sent = [await anext(lines) for _ in range(6)]
        tier.go.set()
        rest = [line async for line in lines]
    assert [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in sent if line] == ["", "Hello", " there,"]
    assert rest[-2:] == ["data: [DONE]", ""]


async def test_a_failure_in_mid_stream_becomes_an_error_event_without_an_end_mark(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at = 2
    gateway.tier(1).error = TierError("upstream broke")
    *before, last = await events(gateway, model="tier-1")
    error = json.loads(last)["error"]
    assert (error["type"], error["param"]) == ("server_error", None)
    assert len(before) == 3
