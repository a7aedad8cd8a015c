"""A gateway over an OpenAI-shaped server and Anthropic: bills agree everywhere, and a broken provider stops nothing."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.base.settings import Settings
from gateway.runtime.cores import engine
from tests.gateway.walk import BOUNDED
from tests.polling import eventually
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import THINKING_AND_TOOLS, WHOLE_MESSAGE, anthropic_stream

KEY = "sk-ant-very-secret"
CATALOGUE = """
[[tiers]]
name = "small"
url = "{small}"
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.4, cached_input_usd_per_million = 0.025 }}

[[tiers]]
name = "claude"
provider = "anthropic"
model = "claude-sonnet-4-5"
url = "{claude}"

[tiers.price]
input_usd_per_million = 3.0
output_usd_per_million = 15.0
cached_input_usd_per_million = 0.3
cache_write_usd_per_million = 3.75
"""
# 10 of 150 prompt tokens are neither read from the cache (100) nor written into it (40); 42 are answered.
CLAUDE_USD = (10 * 3 + 100 * 0.3 + 40 * 3.75 + 42 * 15) / 1e6
SMALL_USD = (50 * 0.1 + 100 * 0.025 + 20 * 0.4) / 1e6


async def small(call: Call) -> None:
    counts = {"prompt_tokens": 150, "completion_tokens": 20, "total_tokens": 170}
    await call.say("Hello", usage=counts | {"prompt_tokens_details": {"cached_tokens": 100}})


async def claude(call: Call) -> None:
    if call.body["stream"]:
        await call.begin()
        await call.send(anthropic_stream(THINKING_AND_TOOLS))
    else:
        await call.reply(200, WHOLE_MESSAGE)


def serving(folder: Path, one: LoopbackServer, other: LoopbackServer, provider: str = "anthropic") -> Settings:
    path = folder / "catalog.toml"
    catalogue = CATALOGUE.replace('"anthropic"', f'"{provider}"')
    path.write_text(catalogue.format(small=one.base_url, claude=other.base_url))
    return Settings(data_dir=str(folder / "data"), catalog=str(path), monitor=False, drain_seconds=5)


async def ask(http: httpx.AsyncClient, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], **fields}
    return await http.post("/v1/chat/completions", json=body, headers={"x-aio-cache": "off"})


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


async def test_header_record_and_ledger_bill_cached_tokens_alike(tmp_path: Path) -> None:
    async with (
        LoopbackServer(small) as one,
        LoopbackServer(claude) as other,
        running_gateway(serving(tmp_path, one, other), scripted=False, protocol=BOUNDED) as gateway,
    ):
        spent = 0.0
        for model, usd in (("small", SMALL_USD), ("claude", CLAUDE_USD)):
            answer = await ask(gateway.http, model)
            assert answer.status_code == 200, answer.text
            assert float(answer.headers["x-aio-cost-usd"]) == pytest.approx(round(usd, 6), abs=1e-6)
            assert answer.json()["usage"]["prompt_tokens"] == 150
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 100
            spent += float(answer.headers["x-aio-cost-usd"])
            name = answer.headers["x-aio-decision-id"]
            record = await eventually(lambda name=name: found(gateway.http, name))  # type: ignore[misc]
            assert record["cost_usd"] == float(answer.headers["x-aio-cost-usd"])
        costs = await eventually(lambda: all_costs(gateway.http, 2))
        assert costs["total"]["spent"]["cost_usd"] == pytest.approx(spent)


async def found(http: httpx.AsyncClient, name: str) -> Any:
    answer = await http.get(f"/v1/requests/{name}")
    return answer.json() if answer.status_code == 200 else None


async def all_costs(http: httpx.AsyncClient, requests: int) -> Any:
    report = (await http.get("/admin/api/report")).json()["cost"]["costs"]
    return report if report["total"]["spent"]["requests"] == requests else None


async def test_claudes_thoughts_and_calls_reach_an_openai_client(tmp_path: Path) -> None:
    async with (
        LoopbackServer(small) as one,
        LoopbackServer(claude) as other,
        running_gateway(serving(tmp_path, one, other), scripted=False, protocol=BOUNDED) as gateway,
    ):
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
        now = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
        stream = await gateway.openai.chat.completions.create(
            model="claude",
            messages=[{"role": "user", "content": "Weather?"}],
            tools=[tool, now],  # type: ignore[list-item]
            stream=True,
            stream_options={"include_usage": True},
        )
        text, calls, usage = "", {}, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    have = calls.setdefault(call.index, ["", ""])
                    assert call.function is not None
                    have[0] += call.function.name or ""
                    have[1] += call.function.arguments or ""
        assert text == "I look it up: größe 🙂"
        assert list(calls.values()) == [["get_weather", '{"city": "San Jose"}'], ["now", "{}"]]
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 100


async def refuse(call: Call) -> None:
    await call.reply(401, {"type": "error", "error": {"type": "authentication_error", "message": f"not {KEY}"}})


async def page(call: Call) -> None:
    await call.begin(200, "text/html")
    await call.send(b"<html>Sign in</html>")


async def drop(call: Call) -> None:
    await call.begin(200, "application/json")
    await call.send(b'{"type": "message", "content": [{"type": "text", "te')


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [
        (refuse, 503, "answered 401: not [key] (check the key in ANTHROPIC_API_KEY)"),
        (page, 502, "answered text/html"),
        (drop, 502, "is not a message of Anthropic's"),
    ],
)
async def test_a_broken_provider_leaves_the_other_tiers_serving(
    tmp_path: Path, broken: Any, status: int, said: str
) -> None:
    async with (
        LoopbackServer(small) as one,
        LoopbackServer(broken) as other,
        running_gateway(serving(tmp_path, one, other), scripted=False, protocol=BOUNDED) as gateway,
    ):
        named = await ask(gateway.http, "claude")
        assert named.status_code == status, named.text
        assert said in named.json()["error"]["message"]
        assert KEY not in named.text
        answers = await asyncio.gather(*(ask(gateway.http, "auto") for _ in range(3)))
        assert [answer.headers["x-aio-tier"] for answer in answers] == ["1"] * 3
        assert all(answer.status_code == 200 for answer in answers)


async def test_without_the_extra_bedrock_is_down_with_the_command_and_the_rest_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    monkeypatch.setattr(engine, "FIRST_ANSWER_SECONDS", 1.0)
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"):
        monkeypatch.delenv(name, raising=False)
    async with (
        LoopbackServer(small) as one,
        running_gateway(serving(tmp_path, one, one, "bedrock"), scripted=False, protocol=BOUNDED) as gateway,
    ):

        async def answers() -> bool:
            return (await ask(gateway.http, "auto")).status_code == 200

        async def names_the_extra() -> bool:
            return "pip install 'aio-gateway[providers]'" in (await gateway.http.get("/health/ready")).text

        # On a busy machine the start may not have waited for either.
        await eventually(answers)
        await eventually(names_the_extra)
        assert await answers(), "while it is down"
