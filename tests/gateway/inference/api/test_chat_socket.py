"""Chats over a WebSocket, through a client library: frames, several at a time, cancelling, keys, slow readers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.base.settings import Settings
from gateway.inference.api import chat_socket
from gateway.tenancy.keys.key_secrets import new_key
from tests.support.app import RunningGateway, running_gateway
from tiers.errors import TierError

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]
CHAT = {"model": "tier-1", "messages": HELLO}
SAID = "Hello there, how are you?"


@asynccontextmanager
async def opened(gateway: RunningGateway, **options: Any) -> AsyncIterator[ClientConnection]:
    url = gateway.url.replace("http://", "ws://") + "/v1/chat/completions/ws"
    async with connect(url, **options) as socket:
        yield socket


async def ask(socket: ClientConnection, **fields: Any) -> None:
    await socket.send(json.dumps(CHAT | fields))


async def frame(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())


async def answer(socket: ClientConnection) -> list[Any]:
    """Frames to the end of a chat."""
    frames = [await frame(socket)]
    while "choices" in frames[-1]:
        frames.append(await frame(socket))
    return frames


def text(frames: list[Any]) -> str:
    deltas = [choice["delta"] for one in frames for choice in one.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_the_frames_are_the_chunks_of_a_stream_over_http(gateway: RunningGateway) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    lines = (await gateway.http.post("/v1/chat/completions", json=body)).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    async with opened(gateway) as socket:
        await socket.send(json.dumps(body))
        *chunks, end = await answer(socket)
    for one in (*events, *chunks):
        one["id"] = one["created"] = ""
        if "x_aio" in one:
            one["x_aio"] |= {"decision_id": "", "overhead_ms": 0, "latency_ms": 0, "ttft_ms": 0}
    assert chunks == events
    assert text(chunks) == SAID
    assert (end["status"], end["usage"], end["x_aio"]["tier"]) == ("completed", chunks[-1]["usage"], 1)


async def test_chats_follow_one_another_on_one_connection_and_are_recorded(gateway: RunningGateway) -> None:
    async with opened(gateway) as socket:
        ids = []
        for _ in range(3):
            await ask(socket)
            *chunks, end = await answer(socket)
            assert text(chunks) == SAID
            ids.append(end["id"])
    assert len(set(ids)) == 3
    await gateway.serving.records.recorded(ids[-1])  # type: ignore[attr-defined]
    record = await gateway.serving.records.find(ids[-1])
    assert record is not None
    assert (record.stream, record.answer) == (True, SAID)


async def test_named_chats_run_at_a_time_and_every_frame_says_whose_it_is(gateway: RunningGateway) -> None:
    gateway.tier(1).hold_at = 2
    async with opened(gateway) as socket:
        await ask(socket, request="slow")
        await gateway.tier(1).holding.wait()
        await ask(socket, request="fast", model="tier-2")
        frames: dict[str, list[Any]] = {"slow": [], "fast": []}
        while not frames["fast"] or "choices" in frames["fast"][-1]:
            one = await frame(socket)
            frames[one["request"]].append(one)
        assert text(frames["fast"]) == SAID
        gateway.tier(1).go.set()
        frames["slow"] += await answer(socket)
    assert text(frames["slow"]) == SAID


async def test_a_cancelled_chat_is_freed_and_says_what_it_used_while_the_connection_goes_on(
    gateway: RunningGateway,
) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 2
    async with opened(gateway) as socket:
        await ask(socket, request="a")
        await tier.holding.wait()
        await socket.send(json.dumps({"type": "cancel", "request": "a"}))
        async with asyncio.timeout(30):
            *chunks, end = await answer(socket)
        assert tier.closed_early == 1
        assert text(chunks) == "Hello there,"
        assert (end["status"], end["usage"]["completion_tokens"], end["request"]) == ("cancelled", 2, "a")
        tier.reset()
        await ask(socket, request="a")
        assert text(await answer(socket)) == SAID


async def test_a_chat_that_is_cancelled_in_the_same_breath_still_says_so(gateway: RunningGateway) -> None:
    gateway.tier(1).hold_at = 0
    async with opened(gateway) as socket:
        await ask(socket)
        await socket.send('{"type": "cancel"}')
        assert (await frame(socket))["status"] == "cancelled"
    await gateway.serving.service.idle()


async def test_a_disconnect_frees_all_running_work(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 1
    async with opened(gateway) as socket:
        for name in "abc":
            await ask(socket, request=name)
        while len(tier.requests) < 3:  # noqa: ASYNC110 - the tier has no event for the third
            await asyncio.sleep(0)
        socket.transport.abort()
        await gateway.serving.service.idle()
    assert tier.closed_early == 3


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ('{"type": "dance"}', "type"),
        (json.dumps(CHAT | {"temperature": 9}), "temperature"),
        (json.dumps(CHAT | {"stream": False}), "stream"),
        (json.dumps({"model": "tier-1"}), "messages"),
        (json.dumps(CHAT | {"model": "gpt-9"}), "model"),
        (json.dumps(CHAT | {"request": 7}), "request"),
    ],
)
async def test_a_wrong_message_gets_an_error_and_the_next_one_an_answer(
    gateway: RunningGateway, message: str, param: str | None
) -> None:
    async with opened(gateway) as socket:
        await socket.send(message)
        error = (await frame(socket))["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        await ask(socket)
        assert text(await answer(socket)) == SAID


async def test_names_are_used_once_at_a_time_and_there_are_so_many_at_most(gateway: RunningGateway) -> None:
    gateway.tier(1).hold_at = 0
    async with opened(gateway) as socket:
        for name in range(8):
            await ask(socket, request=str(name))
        await ask(socket, request="3")
        refused = await frame(socket)
        assert (refused["request"], refused["error"]["param"]) == ("3", "request")
        await ask(socket, request="9")
        refused = await frame(socket)
        assert (refused["request"], refused["error"]["code"]) == ("9", "too_many_chats")
        assert refused["error"]["type"] == "rate_limit_error"


async def test_a_tier_that_fails_half_way_ends_its_chat_with_an_error(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at, gateway.tier(1).error = 2, TierError("upstream broke")
    async with opened(gateway) as socket:
        await ask(socket, request="a")
        *chunks, last = await answer(socket)
    assert text(chunks) == "Hello there,"
    assert (last["request"], last["error"]["type"]) == ("a", "server_error")


async def test_the_headers_of_the_handshake_steer_its_chats(gateway: RunningGateway) -> None:
    async with opened(gateway, additional_headers={"x-aio-min-tier": "3"}) as socket:
        await ask(socket, model="auto")
        assert (await answer(socket))[-1]["x_aio"]["tier"] == 3


async def test_a_page_of_somebody_else_may_not_connect(gateway: RunningGateway) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with opened(gateway, origin="https://evil.example"):
            pass
    assert caught.value.response.status_code == 403
    async with opened(gateway, origin=gateway.url) as socket:
        await ask(socket)
        assert text(await answer(socket)) == SAID


async def test_a_socket_of_responses_is_refused_as_codex_reads_it(gateway: RunningGateway) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"{gateway.url.replace('http', 'ws')}/v1/responses"):
            pass
    assert caught.value.response.status_code == 426
    assert "over HTTP" in json.loads(caught.value.response.body or b"")["error"]["message"]


async def test_keys_come_in_the_header_or_as_the_first_message(settings: Settings) -> None:
    key, digest = new_key()
    keyed = Settings(data_dir=settings.data_dir, monitor=False, api_keys=f"team={digest}")
    async with running_gateway(keyed) as gateway:
        async with opened(gateway, additional_headers={"authorization": f"Bearer {key}"}) as socket:
            await ask(socket)
            assert text(await answer(socket)) == SAID
        async with opened(gateway) as socket:
            await socket.send(json.dumps({"type": "authorize", "api_key": key}))
            await ask(socket)
            end = (await answer(socket))[-1]
        await gateway.serving.records.recorded(end["id"])  # type: ignore[attr-defined]
        record = await gateway.serving.records.find(end["id"])
        assert record is not None
        assert record.key_id == "team"
        with pytest.raises(InvalidStatus) as caught:
            async with opened(gateway, additional_headers={"authorization": "Bearer wrong"}):
                pass
        assert caught.value.response.status_code == 401
        assert json.loads(caught.value.response.body or b"")["error"]["code"] == "invalid_api_key"
        for first in (json.dumps({"type": "authorize", "api_key": "wrong"}), json.dumps(CHAT)):
            async with opened(gateway) as socket:
                await socket.send(first)
                assert "error" in await frame(socket)
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 1008
        assert len(gateway.tier(1).requests) == 2


@pytest.mark.parametrize(
    "first",
    [b"{}", b"\xff", json.dumps({"type": "authorize", "api_key": "k"}).encode(), "7", "[]", "null", "[" * 15_000,
     *(json.dumps({"type": kind, "api_key": key}) for kind, key in (
         ("authorize", 7), ("authorize", None), ("authorize", ["k"]), (7, "k"), (None, "k"), ({}, {}), ("chat", "k"),
         ("authorize", "\u20ac"), ("authorize", "\ud800"), ("authorize", "a\r\nb: c"), ("authorize", "")))],
)  # fmt: skip
async def test_a_first_message_of_a_wrong_type_is_answered_with_an_error(
    settings: Settings, first: str | bytes
) -> None:
    _, digest = new_key()
    keyed = Settings(data_dir=settings.data_dir, monitor=False, api_keys=f"team={digest}")
    async with running_gateway(keyed) as gateway, opened(gateway) as socket:
        await socket.send(first)
        assert (await frame(socket))["error"]["message"]
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1008


async def test_before_the_key_a_connection_may_send_little_and_behind_it_as_much_as_any(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, digest = new_key()
    keyed = Settings(data_dir=settings.data_dir, monitor=False, api_keys=f"team={digest}")
    async with running_gateway(keyed) as gateway:
        async with opened(gateway) as socket:
            await socket.send(json.dumps({"type": "authorize", "api_key": key}))
            await socket.send(json.dumps(CHAT) + " " * 300_000)
            assert (await answer(socket))[-1]["status"] == "completed"
        monkeypatch.setattr(chat_socket, "KEY_SECONDS", 0.5)
        async with opened(gateway) as socket:
            # It goes nowhere: only a little of it is read.
            with pytest.raises(ConnectionClosed):
                await socket.send("x" * 15_000_000)
            assert "No key came" in (await frame(socket))["error"]["message"]
            assert len(gateway.tier(1).requests) == 1


async def test_a_reader_who_pauses_holds_its_own_chats_only_and_is_given_up_in_the_end(settings: Settings) -> None:
    impatient = Settings(data_dir=settings.data_dir, monitor=False, drain_seconds=5, stalled_reader_seconds=0.3)
    async with running_gateway(impatient) as gateway:
        tier = gateway.tier(1)
        tier.words = ("x" * 65_536,) * 2048
        async with opened(gateway, max_queue=1) as socket:
            await ask(socket)
            other = await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO)
            assert other.choices[0].message.content == SAID
            # Later the client's own ping would end the connection.
            async with asyncio.timeout(15):
                await tier.ended.wait()
            assert tier.closed_early == 1
            socket.transport.abort()
