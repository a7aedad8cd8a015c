"""Whatever is wrong with a request, the answer is a 4xx in OpenAI's error envelope that names the parameter."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]
LONG_TEXT = " ".join(["word"] * 250)
LONG = [{"role": "user", "content": LONG_TEXT}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def check_envelope(answer: httpx.Response, status: int, param: str | None, code: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code


TOOL = {"type": "function", "function": {"name": "f"}}
CALLED = {"name": "f", "arguments": "{}"}

CHAT_CASES: list[tuple[dict[str, Any], str]] = [
    ({"messages": HELLO * 20_001}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 20_001}] * 2}, "messages"),
    (
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": CALLED}] * 40_001}
            ]
        },
        "messages",
    ),
    ({"tools": [TOOL] * 513}, "tools"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"modalities": ["audio"]}, "modalities"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_CASES, ids=lambda value: json.dumps(value)[:60])
async def test_a_bad_chat_field_is_named(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    answer = await gateway.http.post(CHAT, json={"model": "auto", "messages": HELLO} | fields)
    check_envelope(answer, 400, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not any(tier.requests for tier in gateway.tiers)


async def test_a_completion_without_a_suffix_of_its_own_is_refused_one(gateway: RunningGateway) -> None:
    answer = await gateway.http.post(TEXT, json={"model": "tier-1", "prompt": "Once", "suffix": "end"})
    check_envelope(answer, 400, "suffix")


@pytest.mark.parametrize(
    ("rest", "code"), [(b'"\xff\xfe"}', "invalid_utf8"), (b"[" * 100_000, "invalid")], ids=["no UTF-8", "deep"]
)
async def test_bytes_that_are_no_request_are_refused(gateway: RunningGateway, rest: bytes, code: str) -> None:
    body = b'{"model":"auto","messages":[{"role":"user","content":"x"}],"user":' + rest
    answer = await gateway.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.json()["error"]["code"].startswith(code)


async def test_deeply_nested_json_in_an_unused_field_is_refused_not_fatal(gateway: RunningGateway) -> None:
    nested = b"[" * 50_000 + b"]" * 50_000
    body = b'{"model":"auto","messages":[{"role":"user","content":"x"}],"tools":' + nested + b"}"
    answer = await gateway.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_model_that_is_not_served_is_404(gateway: RunningGateway) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await gateway.openai.chat.completions.create(model="gpt-9", messages=HELLO)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert "auto, tier-1" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.models.retrieve("gpt-9")


async def test_the_official_client_raises_bad_request_with_the_parameter(gateway: RunningGateway) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await gateway.openai.chat.completions.create(model="auto", messages=HELLO, temperature=7)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")


async def test_a_prompt_longer_than_every_context_is_refused_with_the_arithmetic(gateway: RunningGateway) -> None:
    messages = [{"role": "user", "content": "word " * 300}]
    answer = await gateway.http.post(CHAT, json={"model": "auto", "messages": messages})
    check_envelope(answer, 400, "messages", "context_length_exceeded")
    assert "304 prompt tokens" in answer.json()["error"]["message"]
    assert "256" in answer.json()["error"]["message"]
    answer = await gateway.http.post(TEXT, json={"model": "tier-1", "prompt": "word " * 300})
    check_envelope(answer, 400, "prompt", "context_length_exceeded")


async def test_a_prompt_must_leave_a_sixteenth_of_the_context_and_a_limit_beyond_it_is_cut(
    gateway: RunningGateway,
) -> None:
    for path, asked in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "Once"})):
        answer = await gateway.http.post(path, json={"model": "tier-1", "max_tokens": 32_000} | asked)
        assert answer.status_code == 200, answer.text
    for path, asked, param in ((CHAT, {"messages": LONG}, "messages"), (TEXT, {"prompt": LONG_TEXT}, "prompt")):
        answer = await gateway.http.post(path, json={"model": "tier-1", "max_tokens": 32_000} | asked)
        check_envelope(answer, 400, param, "context_length_exceeded")


async def test_token_ids_need_a_model_of_their_own(gateway: RunningGateway) -> None:
    check_envelope(await gateway.http.post(TEXT, json={"model": "auto", "prompt": [1, 2]}), 400, "model")


async def test_a_body_over_the_limit_is_413_announced_or_not(gateway: RunningGateway) -> None:
    body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "x" * (33 << 20)}]}).encode()
    headers = {"content-type": "application/json"}
    check_envelope(await gateway.http.post(CHAT, content=body, headers=headers), 413, None, "request_too_large")

    async def pieces() -> Any:
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    check_envelope(await gateway.http.post(CHAT, content=pieces(), headers=headers), 413, None, "request_too_large")


async def test_another_media_type_is_415(gateway: RunningGateway) -> None:
    check_envelope(await gateway.http.post(CHAT, data={"model": "auto"}), 415, None, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/requests/chatcmpl-unknown", 404),
    ],
)
async def test_wrong_paths_and_methods_get_the_envelope_too(
    gateway: RunningGateway, method: str, path: str, status: int
) -> None:
    answer = await gateway.http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_an_error_of_the_server_shows_no_details(gateway: RunningGateway) -> None:
    for tier in gateway.tiers:
        tier.fail_at, tier.error = 0, RuntimeError("secret path /etc/keys")
    answer = await gateway.http.post(CHAT, json={"model": "tier-4", "messages": HELLO})
    check_envelope(answer, 500, None)
    assert "secret" not in answer.text
