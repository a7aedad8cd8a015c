"""Whatever is wrong with a request, the answer is a 4xx in OpenAI's error envelope that names the parameter."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.running_gateway import RunningGateway

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
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
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
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].tool_call_id"),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls[0].function",
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": CALLED}]}]},
        "messages[0].tool_calls",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]},
        "messages[0].content[0].image_url",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]},
        "messages[0].content[1].input_audio",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": "ten"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"stop": [*"abcdefghijklmnopq"]}, "stop"),
    ({"stop": 3}, "stop"),
    ({"seed": 2**70}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"word": 1}}, "logit_bias"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
    ({"priority": 9}, "priority"),
    ({"service_tier": "platinum"}, "service_tier"),
    ({"stream": "yes"}, "stream"),
    ({"tools": [{"type": "browser", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
    ({"tools": [TOOL, TOOL | {"function": {"name": "f", "strict": True}}]}, "tools[1].function.name"),
    (
        {"tools": [TOOL, {"type": "function", "function": {"name": "g", "parameters": {"type": "array"}}}]},
        "tools[1].function.parameters",
    ),
    ({"tools": [TOOL] * 513}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name",
    ),
    ({"functions": [{"name": "two words"}]}, "functions[0].name"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "tool_choice.function.name"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "text", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"colour": "red"}}, "structured_outputs"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
    ),
    ({"modalities": ["audio"]}, "modalities"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ({"include_stop_str_in_output": 2}, "include_stop_str_in_output"),
    ({"metadata": "a"}, "metadata"),
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_CASES, ids=lambda value: json.dumps(value)[:60])
async def test_a_bad_chat_field_is_named(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    answer = await gateway.http.post(CHAT, json={"model": "auto", "messages": HELLO} | fields)
    check_envelope(answer, 400, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not any(tier.requests for tier in gateway.tiers)


COMPLETION_CASES: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[-1]]}, "prompt[0][0]"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"echo": "yes"}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 3, "stream": True}, "best_of"),
    ({"best_of": 17}, "best_of"),
    ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ({"logprobs": 6}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"min_tokens": 17}, "min_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), COMPLETION_CASES, ids=lambda value: json.dumps(value)[:60])
async def test_a_bad_completion_field_is_named(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    answer = await gateway.http.post(TEXT, json={"model": "tier-1", "prompt": "Once"} | fields)
    check_envelope(answer, 400, param)


@pytest.mark.parametrize("name", ["model", "messages"])
async def test_a_missing_field_is_named(gateway: RunningGateway, name: str) -> None:
    body = {"model": "auto", "messages": HELLO}
    del body[name]
    check_envelope(await gateway.http.post(CHAT, json=body), 400, name, "missing_required_parameter")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"model": "auto", "messages": [}', "invalid_json"),
        (b'{"model": "auto", "temperature": NaN}', "invalid_json"),
        (b"[1, 2]", "invalid_value"),
        (b'"hello"', "invalid_value"),
        (b'{"model": "auto", "messages": [{"role": "user", "content": "\xff\xfe"}]}', "invalid_utf8"),
        (b'{"model":"auto","messages":[{"role":"user","content":"x"}],"metadata":' + b"[" * 100_000, "invalid"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_body_that_is_no_request_is_refused(gateway: RunningGateway, body: bytes, code: str) -> None:
    answer = await gateway.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"].startswith(code)


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


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-aio-quality", "1.5"),
        ("x-aio-quality", "high"),
        ("x-aio-min-tier", "5"),
        ("x-aio-min-tier", "2.5"),
        ("x-aio-max-cost", "-1"),
        ("x-aio-max-cost", "nan"),
        ("x-aio-deadline-ms", "0"),
        ("x-aio-conversation", "a b"),
        ("x-aio-slo", "soon"),
        ("x-aio-consent", "everyone"),
        ("x-aio-private", "perhaps"),
        ("x-aio-cache", "sometimes"),
        ("x-aio-agree", "perhaps"),
        ("x-aio-may-wait", "1"),
    ],
)
async def test_a_bad_aio_header_is_named(gateway: RunningGateway, header: str, value: str) -> None:
    answer = await gateway.http.post(CHAT, json={"model": "auto", "messages": HELLO}, headers={header: value})
    check_envelope(answer, 400, header)


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
