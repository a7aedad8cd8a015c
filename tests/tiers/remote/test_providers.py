"""Tiers on providers with an API of their own, Anthropic, Gemini, Bedrock: what is no recording, their start, their
credentials, and connections that end early."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.support.upstream import Call as Received
from tests.support.upstream import LoopbackServer
from tests.tiers.remote.provider_shapes import (
    EVENT_STREAM,
    anthropic_end,
    anthropic_start,
    anthropic_stream,
    anthropic_text,
    bedrock_end,
    bedrock_stream,
    bedrock_text,
    gemini_event,
    gemini_stream,
)
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.catalog.tier_spec import TierSpec
from tiers.errors import TierError, TierUnavailableError
from tiers.remote.answer_reader import READING_ON
from tiers.remote.remote_tier import RemoteTier

KEY = "sk-ant-very-secret"
KINDS = ("anthropic", "gemini", "bedrock")
OPENING = {
    "anthropic": anthropic_stream([anthropic_start(), *anthropic_text(0, "Hel")[:2]]),
    "gemini": gemini_stream([gemini_event({"text": "Hel"})]),
    "bedrock": bedrock_stream(bedrock_text("Hel")[:2]),
}


async def _opened(call: Received, kind: str) -> None:
    """Begin an answer with one word."""
    await call.begin(200, EVENT_STREAM if kind == "bedrock" else "text/event-stream")
    await call.send(OPENING[kind])


@asynccontextmanager
async def provider(
    kind: str, handler: Any, model: str = "claude-sonnet-5", **fields: Any
) -> AsyncIterator[tuple[RemoteTier, LoopbackServer]]:
    async with LoopbackServer(handler) as server:
        spec = _with_model(remote_spec(server.base_url, kind=kind, api_key_env="THE_KEY", **fields), model)
        tier = RemoteTier(spec, environ={"THE_KEY": KEY})
        yield tier, server
        await tier.close()


def _with_model(spec: TierSpec, model: str) -> TierSpec:
    assert spec.remote is not None
    return msgspec.structs.replace(spec, max_tokens=4000, remote=msgspec.structs.replace(spec.remote, model=model))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_drops_is_an_error_and_bills_what_was_said(kind: str) -> None:
    async with provider(kind, lambda call: _opened(call, kind)) as (tier, _):
        request = chat()
        with pytest.raises(TierError, match="ended before its choices were finished"):
            await collect(tier, request)
        assert request.meter.usage().completion_tokens >= 1


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_early_ends_the_http_request(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those that bill the whole answer are read to its end, or for so long.
    monkeypatch.setattr(READING_ON, "_seconds", 0.1)

    async def opening(call: Received) -> None:
        await _opened(call, kind)
        await asyncio.Event().wait()

    async with provider(kind, opening) as (tier, server):
        deltas = tier.generate(chat())
        assert (await anext(deltas)).text == "Hel"
        await deltas.aclose()
        async with asyncio.timeout(120):
            await server.disconnected.wait()


@pytest.mark.parametrize("kind", ["anthropic", "gemini"])
async def test_a_start_asks_for_the_model_once(kind: str) -> None:
    async with provider(kind, lambda call: _opened(call, kind)) as (tier, server):
        await tier.start()
        assert server.looks == ["/v1/models/claude-sonnet-5"]
        assert not server.calls

        async def lacking(call: Received) -> None:
            await call.reply(
                404, {"error": {"code": 404, "type": "not_found_error", "message": "model: claude-sonnet-5"}}
            )

        server.looked_at = lacking
        with pytest.raises(TierUnavailableError, match="has no model 'claude-sonnet-5'"):
            await tier.start()


async def test_a_request_to_bedrock_is_signed_with_the_credentials_that_aws_tools_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")

    async def answer(call: Received) -> None:
        await call.begin(200, EVENT_STREAM)
        await call.send(bedrock_stream([*bedrock_text("Hel", "lo"), *bedrock_end()]))

    async with LoopbackServer(answer) as server:
        tier = RemoteTier(_with_model(remote_spec(server.base_url, kind="bedrock"), "amazon.nova-pro-v1:0"))
        await tier.start()
        await collect(tier, chat())
        await tier.close()
        headers = server.calls[0].headers
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-central-1/bedrock/aws4_request" in headers["authorization"]
    assert headers["x-amz-security-token"] == "session"


async def test_bedrock_without_credentials_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pytest.importorskip("botocore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    tier = RemoteTier(remote_spec("http://127.0.0.1:9/v1", kind="bedrock"))
    with pytest.raises(TierUnavailableError, match="set AWS_BEARER_TOKEN_BEDROCK"):
        await tier.start()


async def test_a_missing_extra_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    tier = RemoteTier(remote_spec("http://127.0.0.1:9/v1", kind="bedrock"))
    with pytest.raises(TierUnavailableError, match=r"pip install 'aio-gateway\[providers\]'"):
        await tier.start()
    assert not tier.load().healthy


async def test_anthropic_names_the_stop_string_that_ended_an_answer() -> None:
    ended, stop = anthropic_end("stop_sequence")
    ended["delta"]["stop_sequence"] = "END"
    data = anthropic_stream([anthropic_start(), *anthropic_text(0, "So"), ended, stop])

    async def answer(call: Received) -> None:
        await call.begin()
        await call.send(data)

    async with provider("anthropic", answer) as (tier, _):
        (answer,), _ = await collect(tier, chat(stop=("END",)))
    assert (answer.finish_reason, answer.stop_sequence) == ("stop", "END")
