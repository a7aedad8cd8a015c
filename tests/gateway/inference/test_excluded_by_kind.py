"""Tiers whose servers cannot serve a request are ruled out before the decision; a wire says what it cannot."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call
from tests.tiers.remote.provider_shapes import WHOLE_MESSAGE

CATALOG = """
name = "kinds"

[[tiers]]
name = "bedrock"
provider = "bedrock"
model = "us.anthropic.claude-sonnet-5-v1:0"
url = "{url}"
capabilities = {{ vision = true, json_schema = true }}
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.1 }}

[[tiers]]
name = "claude"
provider = "anthropic"
model = "claude-sonnet-5"
url = "{url}"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 1.0 }}

[[tiers]]
name = "open"
url = "{url}"
model = "m"
capabilities = {{ vision = true }}
price = {{ input_usd_per_million = 10.0, output_usd_per_million = 10.0 }}
"""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


async def answer(call: Call) -> None:
    if call.path.endswith("/chat/completions"):
        await call.say("Hello")
    elif call.path.endswith("/completions"):
        await call.reply(200, {"choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]})
    elif call.path.endswith("/messages"):
        await call.reply(200, WHOLE_MESSAGE)
    else:
        message = {"role": "assistant", "content": [{"text": "Hello"}]}
        await call.reply(200, {"output": {"message": message}, "stopReason": "end_turn"})


@pytest_asyncio.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningGateway]:
    for key in ("ANTHROPIC_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.setenv(key, "sk-test")
    async with gateway_of(tmp_path, CATALOG, answer, protocol="httptools") as running:
        yield running


# The path, the fields, the least tier that can serve them, and the parameter that a refusal of Claude names.
ASKED: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, HELLO | {"response_format": {"type": "json_object"}}, "2", ""),
    (CHAT, HELLO | {"structured_outputs": {"json_object": True}}, "3", "structured_outputs"),
    (CHAT, HELLO | {"response_format": SCHEMA}, "2", ""),
    (CHAT, HELLO | {"logit_bias": {"5": 1.0}}, "3", "logit_bias"),
    (CHAT, HELLO | {"logprobs": True}, "3", "logprobs"),
    (CHAT, HELLO | {"include_stop_str_in_output": True}, "3", "include_stop_str_in_output"),
    (CHAT, HELLO | {"structured_outputs": {"regex": "[ab]"}}, "3", "structured_outputs"),
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "2", ""),
    (CHAT, HELLO | {"n": 2, "seed": 5, "frequency_penalty": 1.0, "stop": ["END"]}, "1", ""),
    (TEXT, {"prompt": "Once"}, "3", "prompt"),
]


async def test_a_request_goes_to_a_tier_whose_server_can_serve_it(gateway: RunningGateway) -> None:
    for path, fields, least, param in ASKED:
        routed = await gateway.http.post(path, json={"model": "auto"} | fields)
        assert routed.status_code == 200, f"{fields}: {routed.text}"
        assert routed.headers["x-aio-tier"] >= least, fields
        pinned = await gateway.http.post(path, json={"model": "claude"} | fields)
        if not param:
            assert pinned.status_code == 200, f"{fields}: {pinned.text}"
            continue
        error = pinned.json()["error"]
        assert (pinned.status_code, error["param"]) == (400, param), fields
        assert "supported by tier-3 (open)" in error["message"], fields


async def test_the_decision_says_what_a_server_cannot(gateway: RunningGateway) -> None:
    form = {"structured_outputs": {"json_object": True}}
    plan = await gateway.http.post(CHAT, json={"model": "auto"} | HELLO | form)
    found = await gateway.http.get(f"/v1/requests/{plan.headers['x-aio-decision-id']}")
    reason = found.json()["decision"]["reason"]
    assert "not tier 1: response_format: Bedrock's Converse has no structured output" in reason
    assert "not tier 2: structured_outputs: Anthropic takes a json_schema, not any JSON object" in reason


async def test_what_no_tier_can_is_a_400_with_its_parameter(gateway: RunningGateway) -> None:
    refused = await gateway.http.post(TEXT, json={"model": "auto", "prompt": "Once", "echo": True})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, "echo", "unsupported_parameter")
    assert "no other tier of the catalogue does it either" in error["message"]
