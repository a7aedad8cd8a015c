"""A prompt that a server refuses as too long: each API says so in the words by which its clients make it shorter, and
`auto` goes on to a tier with a longer context."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.chained_tiers import BACKUP, HELLO, SECOND, Handler, broken, chained_tiers, wrong_request
from tests.support.app import RunningGateway
from tests.support.upstream import Call

CODE = "context_length_exceeded"
VLLM = "This model's maximum context length is 4096 tokens. However, your request has 9000 input tokens."
ANSWER_TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (1000 in the messages, "
    "4000 in the completion)."
)
UNCOUNTED = "Input is too long for requested model."


def refusing(message: str, status: int = 400, **more: Any) -> Handler:
    async def handler(call: Call) -> None:
        await call.reply(status, {"error": {"message": message, **more}})

    return handler


def said_in_stream(message: str) -> Handler:
    async def handler(call: Call) -> None:
        await call.begin()
        await call.event({"error": {"message": message, "code": 400}})

    return handler


async def ask(gateway: RunningGateway, api: str, model: str = "small", **fields: Any) -> httpx.Response:
    own = {"input": "Say hello."} if api == "responses" else {"messages": HELLO}
    limit = {"max_tokens": 99} if api == "messages" else {}
    path = "/v1/chat/completions" if api == "chat" else f"/v1/{api}"
    return await gateway.http.post(path, json={"model": model, **own, **limit, **fields})


@pytest.mark.parametrize("handler", [refusing(VLLM), refusing(VLLM, 422), said_in_stream(VLLM)])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_api_says_it_in_its_clients_words(tmp_path: Path, handler: Handler, stream: bool) -> None:
    async with chained_tiers(tmp_path) as (gateway, servers):
        servers.by_model["small"] = handler
        chat = await ask(gateway, "chat", stream=stream)
        error = chat.json()["error"]
        assert (chat.status_code, error["code"], error["param"]) == (400, CODE, "messages")
        assert error["message"].startswith(
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 9000 tokens."
        )
        message = await ask(gateway, "messages", stream=stream)
        error = message.json()["error"]
        assert (message.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["message"].startswith("prompt is too long: 9000 tokens > 4096 maximum")
        response = await ask(gateway, "responses", stream=stream)
        if not stream:
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, CODE, "input")
            return
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        assert response.status_code == 200
        assert [event["type"] for event in events] == ["response.created", "response.failed"]
        assert [event["sequence_number"] for event in events] == [0, 1]
        failed = events[1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", CODE)
        assert servers.asked == ["small"] * 3, "a pinned tier answers with its own error"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (ANSWER_TOO_LONG, "input length and `max_tokens` exceed context limit: 1000 + 4000 > 4096"),
        (UNCOUNTED, "prompt is too long (tier 'small'"),
    ],
)
async def test_what_the_server_does_not_count_is_not_made_up(tmp_path: Path, said: str, words: str) -> None:
    async with chained_tiers(tmp_path) as (gateway, servers):
        servers.by_model["small"] = refusing(said)
        message = (await ask(gateway, "messages")).json()["error"]["message"]
        assert words in message
        assert message.startswith("prompt is too long")
        assert (await ask(gateway, "chat")).json()["error"]["code"] == CODE


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("handler", [refusing(VLLM), said_in_stream(VLLM)])
async def test_auto_goes_on_to_the_next_tier_whose_context_is_longer(
    tmp_path: Path, handler: Handler, stream: bool
) -> None:
    lines = {"medium": "max_context = 8000", "large": "max_context = 1000000"}
    async with chained_tiers(tmp_path, **lines) as (gateway, servers):
        servers.by_model["small"] = handler
        answer = await ask(gateway, "chat", "auto", stream=stream)
        assert (answer.status_code, servers.asked) == (200, ["small", "large"]), "9,000 tokens do not fit 8,000"
        assert "I am large-model" in answer.text
        assert answer.headers["x-aio-fell-over-from"] == "tier-1"


async def test_a_refusal_for_its_length_is_not_the_one_failure_of_a_request(tmp_path: Path) -> None:
    lines = {"small": "max_context = 4096", "medium": "max_context = 16000", "large": "max_context = 1000000"}
    async with chained_tiers(tmp_path, **lines) as (gateway, servers):
        servers.by_model |= {"small": refusing(UNCOUNTED), "medium": refusing(UNCOUNTED)}
        assert (await ask(gateway, "chat", "auto")).status_code == 200
        assert servers.asked == ["small", "medium", "large"]
        servers.asked.clear()
        servers.by_model["medium"] = broken
        assert (await ask(gateway, "chat", "auto")).status_code == 200
        assert servers.asked == ["small", "medium", "large"]


async def test_a_tier_below_with_a_longer_context_takes_it_too(tmp_path: Path) -> None:
    lines = {"small": "max_context = 1000000", "medium": "max_context = 4096", "large": "max_context = 4096"}
    async with chained_tiers(tmp_path, **lines) as (gateway, servers):
        gateway.classifier.p_ok = (0.01, 0.01, 1.0)
        servers.by_model["large"] = refusing(UNCOUNTED)
        assert (await ask(gateway, "chat", "auto")).status_code == 200
        assert servers.asked == ["large", "small"]


async def test_where_no_context_is_longer_the_refusal_is_the_answer(tmp_path: Path) -> None:
    lines = dict.fromkeys(("small", "medium", "large"), "max_context = 4096")
    async with chained_tiers(tmp_path, **lines) as (gateway, servers):
        servers.by_model["small"] = refusing(UNCOUNTED)
        answer = await ask(gateway, "chat", "auto")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, CODE)
        assert servers.asked == ["small"]


async def test_a_chain_passes_over_contexts_that_are_too_short_as_well(tmp_path: Path) -> None:
    second = SECOND + "max_context = 1000000\n"
    small = 'max_context = 4096\nfallback = ["backup", "second"]'
    async with chained_tiers(tmp_path, BACKUP + "max_context = 4096\n" + second, small=small) as (gateway, servers):
        servers.by_model["small"] = refusing(VLLM)
        answer = await ask(gateway, "chat", "auto")
        assert (answer.status_code, servers.asked) == (200, ["small", "second"])
        assert "not backup: its context is too short as well" in answer.json()["x_aio"]["reason"]


@pytest.mark.parametrize("chain", ["", 'fallback = ["backup"]'])
async def test_what_a_tier_cannot_do_another_may(tmp_path: Path, chain: str) -> None:
    async with chained_tiers(tmp_path, small=chain) as (gateway, servers):
        servers.by_model["small"] = refusing("Function calling with a response mime type is unsupported")
        assert (await ask(gateway, "chat", "auto")).status_code == 200
        assert servers.asked == ["small", "backup" if chain else "medium"]
        servers.by_model["small"] = wrong_request
        assert (await ask(gateway, "chat", "auto")).status_code == 400


async def test_a_body_that_is_too_large_goes_to_any_other_tier(tmp_path: Path) -> None:
    lines = dict.fromkeys(("small", "medium", "large"), "max_context = 4096")
    async with chained_tiers(tmp_path, **lines) as (gateway, servers):
        servers.by_model["small"] = refusing("Request Entity Too Large", 413)
        assert (await ask(gateway, "chat", "auto")).status_code == 200
        assert servers.asked == ["small", "medium"]
