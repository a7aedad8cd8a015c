"""Streams that start late, and slow readers: comments keep the connection open, and readers do not delay each other."""

import asyncio
import json

import pytest

from gateway.edge.response_cycle import StallWatch
from tests.gateway.inference.api.test_disconnects import post
from tests.polling import eventually
from tests.support.app import StartApp
from tiers.errors import TierError, TierUnavailableError

HELLO = [{"role": "user", "content": "Say hello."}]
STREAM = {"model": "tier-1", "messages": HELLO, "stream": True}
COMMENT = b": keep-alive\n\n"


async def test_comments_are_sent_until_the_first_token_and_clients_skip_them(app: StartApp) -> None:
    gateway = await app(keep_alive_seconds=0.02)
    tier = gateway.tier(1)
    tier.hold_at = 0
    reader, writer = await post(gateway, "/v1/chat/completions", STREAM)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"x-aio-decision-id: chatcmpl-" in head
    for _ in range(2):
        await reader.readuntil(COMMENT)
    tier.go.set()
    rest = await reader.readuntil(b"[DONE]\n\n")
    assert b'"role":"assistant"' in rest
    writer.close()
    tier.go.clear()
    asking = asyncio.create_task(gateway.openai.chat.completions.create(model="tier-1", messages=HELLO, stream=True))
    stream = await asking
    tier.go.set()
    said = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(said) == "Hello there, how are you?"


@pytest.mark.parametrize(
    ("path", "body", "comment"),
    [
        ("/v1/chat/completions", STREAM, COMMENT),
        ("/v1/responses", {"model": "tier-1", "input": "Say hello.", "stream": True}, COMMENT),
        ("/v1/messages", STREAM | {"max_tokens": 99}, b"event: ping\n"),
    ],
)
async def test_they_go_on_while_a_later_token_is_awaited(
    path: str, body: dict[str, object], comment: bytes, app: StartApp
) -> None:
    gateway = await app(keep_alive_seconds=0.02)
    tier = gateway.tier(1)
    tier.hold_at = 2
    reader, writer = await post(gateway, path, body)
    await reader.readuntil(b"Hello")
    for _ in range(3):
        await reader.readuntil(comment)
    tier.go.set()
    rest = await reader.readuntil(b"0\r\n\r\n")
    assert b"you?" in rest
    assert not [line for line in rest.split(b"\n") if line.startswith(b"data: {") and not line.endswith(b"}")]
    writer.close()


async def test_a_caller_who_leaves_between_tokens_stops_the_work_and_the_comments(app: StartApp) -> None:
    gateway = await app(keep_alive_seconds=0.02)
    tier = gateway.tier(1)
    tier.hold_at = 2
    reader, writer = await post(gateway, "/v1/chat/completions", STREAM)
    await reader.readuntil(b"Hello")
    await reader.readuntil(COMMENT)
    assert keep_alive_timers()
    writer.close()
    await tier.ended.wait()
    assert tier.closed_early == 1
    await eventually(lambda: not keep_alive_timers())


def keep_alive_timers() -> list[asyncio.TimerHandle]:
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [timer for timer in scheduled if "KeepAlive" in repr(timer) and not timer.cancelled()]


async def test_a_tier_that_fails_after_the_comments_is_an_error_event(app: StartApp) -> None:
    gateway = await app(keep_alive_seconds=0.02)
    tier = gateway.tier(4)
    tier.hold_at = tier.fail_at = 0
    tier.error = TierUnavailableError("gone")
    reader, _ = await post(gateway, "/v1/chat/completions", STREAM | {"model": "tier-4"})
    await reader.readuntil(COMMENT)
    tier.go.set()
    event = await reader.readuntil(b'"code":"tier_unavailable"}}\n\n')
    assert json.loads(event[event.index(b"data: ") + 6 :])["error"]["type"] == "server_error"


async def test_a_caller_who_leaves_after_the_comments_stops_the_work(app: StartApp) -> None:
    gateway = await app(keep_alive_seconds=0.02)
    tier = gateway.tier(1)
    tier.hold_at = 0
    reader, writer = await post(gateway, "/v1/chat/completions", STREAM)
    await reader.readuntil(COMMENT)
    writer.close()
    await tier.ended.wait()
    assert tier.closed_early == 1


async def test_without_a_wait_there_is_no_comment_and_errors_keep_their_status(app: StartApp) -> None:
    gateway = await app()
    answer = await gateway.http.post("/v1/chat/completions", json=STREAM)
    assert "keep-alive" not in answer.text
    gateway.tier(1).fail_at, gateway.tier(1).error = 0, TierError("broken")
    assert (await gateway.http.post("/v1/chat/completions", json=STREAM)).status_code == 500


async def test_a_reader_of_single_bytes_is_served_while_others_are_answered_whole(app: StartApp) -> None:
    gateway = await app()
    tier = gateway.tier(1)
    tier.words = tuple(f"word{place} " for place in range(40_000))
    reader, writer = await post(gateway, "/v1/chat/completions", STREAM)
    slow = b""
    for _ in range(100):
        slow += await reader.readexactly(1)
        other = await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO)
        assert other.choices[0].message.content == "Hello there, how are you?"
    assert slow.startswith(b"HTTP/1.1 200")
    assert not tier.ended.is_set()
    writer.transport.abort()
    await tier.ended.wait()


async def test_who_reads_nothing_is_given_up_and_recorded_as_gone(app: StartApp) -> None:
    gateway = await app(stalled_reader_seconds=0.2)
    tier = gateway.tier(1)
    tier.words = ("x" * 65_536,) * 2048
    reader, writer = await post(gateway, "/v1/chat/completions", STREAM)
    await reader.readuntil(b"\r\n\r\n")
    await tier.ended.wait()
    await gateway.serving.service.idle()
    assert tier.closed_early == 1
    writer.transport.abort()


async def test_a_slow_tier_is_not_taken_for_a_slow_reader(app: StartApp, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[StallWatch] = []
    look = StallWatch._look

    def counted(watch: StallWatch) -> None:
        look(watch)
        looks.append(watch)

    monkeypatch.setattr(StallWatch, "_look", counted)
    gateway = await app(stalled_reader_seconds=0.05)
    tier = gateway.tier(1)
    tier.hold_at = 2
    asking = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=STREAM))
    await tier.holding.wait()
    await eventually(lambda: len(looks) == 3 or asking.done())
    tier.go.set()
    assert (await asking).text.endswith("[DONE]\n\n")
