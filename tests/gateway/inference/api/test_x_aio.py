"""Every reply of every format says how it came about: whole or streamed, made, kept or broken (SPEC GW-10)."""

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from tests.gateway.inference.api.test_chat_socket import answer, ask, opened
from tests.support.app import RunningGateway
from tiers.errors import TierError
from tiers.tier import AnswerEnd, Delta, GenerationRequest, Usage

pytestmark = pytest.mark.asyncio(loop_scope="module")
Text = Annotated[str, Meta(min_length=1)]
Milliseconds = Annotated[float, Meta(ge=0)]
USAGE = {"include_usage": True}
ASKS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Say hello."}]},
    "completions": {"prompt": "Say hello."},
    "responses": {"input": "Say hello."},
    "messages": {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 50},
}


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What GW-10 lists and text and usage do not say; none of it may be missing or null."""

    decision_id: Text
    tier: int
    model: Text
    cost_usd: Annotated[float, Meta(ge=0)]
    latency_ms: Annotated[float, Meta(gt=0)]
    ttft_ms: Annotated[float, Meta(gt=0)]
    overhead_ms: Milliseconds
    classifier: Text
    reason: Text
    cache: str | None


async def reply(gateway: RunningGateway, path: str, *, stream: bool) -> dict[str, Any]:
    """The body, or the event of the stream that has `x_aio`."""
    options = {"stream_options": USAGE} if stream and path.endswith("completions") else {}
    body = {"model": "tier-1", "temperature": 0, "stream": stream, **ASKS[path], **options}
    found = await gateway.http.post(f"/v1/{path}", json=body)
    assert found.status_code == 200, found.text
    await gateway.serving.service.idle()
    if not stream:
        return dict(found.json())
    data = [line.removeprefix("data: ") for line in found.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in data]
    (last,) = [event for event in events if "x_aio" in event.get("response", event)]
    return dict(last.get("response", last))


def told(body: dict[str, Any]) -> Told:
    found = msgspec.convert(body["x_aio"], Told)
    assert found.ttft_ms <= found.latency_ms
    assert (found.tier, found.model) == (1, "smollm2-int4")
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ASKS)
async def test_an_answer_and_its_hit_say_how_they_came_about(gateway: RunningGateway, path: str, stream: bool) -> None:
    made, kept = [await reply(gateway, path, stream=stream) for _ in range(2)]

    assert (told(made).cache, told(kept).cache) == ("miss", "hit")
    assert (told(made).cost_usd > 0, told(kept).cost_usd) == (True, 0)
    assert made["usage"] == kept["usage"]
    assert told(made).classifier == gateway.classifier.version
    assert told(made).ttft_ms < told(made).latency_ms


@pytest.mark.parametrize("path", ASKS)
async def test_a_stream_that_breaks_says_how_its_beginning_came_about(gateway: RunningGateway, path: str) -> None:
    gateway.tier(1).fail_at, gateway.tier(1).error = 2, TierError("upstream broke")

    broken = await reply(gateway, path, stream=True)

    assert "error" in broken
    assert told(broken).cost_usd > 0
    used = broken["usage"]
    assert used.get("completion_tokens", used.get("output_tokens")) == 2


async def test_the_first_text_of_an_answer_that_came_in_one_piece_came_at_its_end(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def in_one_piece(request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="Hello.", finish_reason="stop", at_once=True)
        yield Delta(end=AnswerEnd(usage=Usage(prompt_tokens=3, completion_tokens=2)), at_once=True)

    monkeypatch.setattr(gateway.tier(1), "generate", in_one_piece)

    found = told(await reply(gateway, "chat/completions", stream=False))

    assert found.ttft_ms == found.latency_ms


async def test_a_chat_of_a_socket_that_breaks_says_how_its_beginning_came_about(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at, gateway.tier(1).error = 2, TierError("upstream broke")

    async with opened(gateway) as socket:
        await ask(socket)
        broken = (await answer(socket))[-1]

    assert told(broken).cost_usd > 0
    assert broken["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_reply_says_why_its_thought_ended_early(gateway: RunningGateway, stream: bool) -> None:
    gateway.tier(1).thought_end = "confidence"
    ended = await reply(gateway, "chat/completions", stream=stream)
    assert ended["x_aio"]["thought_end"] == "confidence"
