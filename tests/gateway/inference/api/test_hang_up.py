"""A caller who disconnects pays for what was generated until then, even without reported usage or tokens."""

import asyncio
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from gateway.base.settings import Settings
from quality.records.record import Record
from tests.gateway.inference.api.test_disconnects import only_record, post
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.scripted_tier import ScriptedTier
from tests.support.served import UNCACHED
from tiers.catalog.pricing import cost_usd
from tiers.tier import Usage

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Say hello."}]
CHAT_BODY = {"model": "tier-1", "messages": HELLO}
COMPLETION_BODY = {"model": "tier-1", "prompt": "Once"}


def drawn(tier: ScriptedTier) -> int:
    return sum(request.meter.usage().completion_tokens for request in tier.requests)


def assert_charged(gateway: RunningGateway, record: Record, prompt: int, completion: int) -> None:
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion)
    assert (record.prompt_tokens, record.completion_tokens) == (prompt, completion)
    assert record.cost_usd == cost_usd(gateway.serving.routing.served.spec(record.tier), usage) > 0


@pytest.mark.parametrize(
    ("path", "body", "script", "prompt", "completion"),
    [
        (CHAT, CHAT_BODY | {"stream": True}, {"hold_at": 3}, 6, 3),
        (CHAT, CHAT_BODY | {"stream": True}, {"hold_at": 0, "reasoning": ("a", "b", "c", "d")}, 6, 4),
        (CHAT, CHAT_BODY, {"hold_at": 4}, 6, 4),
        (CHAT, CHAT_BODY | {"n": 2, "stream": True}, {"hold_at": 3}, 6, 6),
        (CHAT, CHAT_BODY | {"stream": True}, {"hold_at": 0}, 6, 0),
        (COMPLETION, COMPLETION_BODY | {"best_of": 3}, {"hold_at": 4}, 1, 12),
        (COMPLETION, COMPLETION_BODY | {"prompt": ["a", "b", "c"], "stream": True}, {"hold_at": 2}, 3, 6),
    ],
    ids=["stream", "thoughts", "whole", "choices", "prefill", "best of", "prompts"],
)
async def test_who_hangs_up_pays_for_what_a_tier_generated_without_telling_tokens(
    gateway: RunningGateway, path: str, body: dict[str, Any], script: dict[str, Any], prompt: int, completion: int
) -> None:
    tier = gateway.tier(1)
    tier.tells_token_ids = False
    for name, value in script.items():
        setattr(tier, name, value)
    _, writer = await post(gateway, path, body)
    await tier.holding.wait()
    await eventually(lambda: drawn(tier) == completion)
    writer.close()
    await tier.ended.wait()
    record = await only_record(gateway, tier.requests[0].request_id.removesuffix("-0"))
    assert (record.status, [attempt.status for attempt in record.attempts]) == ("aborted", ["aborted"])
    assert_charged(gateway, record, prompt, completion)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failed_attempt_is_charged_for_what_it_generated(gateway: RunningGateway, stream: bool) -> None:
    tier = gateway.tier(1)
    tier.tells_token_ids, tier.fail_at = False, 3
    await gateway.http.post(CHAT, json=CHAT_BODY | {"stream": stream}, headers=UNCACHED)
    record = await only_record(gateway, tier.requests[0].request_id)
    spec = gateway.serving.routing.served.spec(1)
    assert record.attempts[0].status == "error"
    assert record.attempts[0].cost_usd == cost_usd(spec, Usage(prompt_tokens=6, completion_tokens=3))


@pytest.mark.parametrize("cached", [True, False], ids=["shared", "alone"])
@pytest.mark.parametrize("again", ["cancel", "close"])
async def test_a_chat_that_is_cancelled_again_while_its_work_is_being_stopped_is_recorded_and_charged(
    gateway: RunningGateway, again: str, cached: bool
) -> None:
    tier = gateway.tier(1)
    tier.hold_at, tier.slow_close = 0, asyncio.Event()
    stopped = tier.slow_close
    headers = {} if cached else UNCACHED
    async with connect(gateway.url.replace("http://", "ws://") + CHAT + "/ws", additional_headers=headers) as chats:
        await chats.send(json.dumps(CHAT_BODY | {"temperature": 0}))
        await tier.holding.wait()
        await chats.send('{"type": "cancel"}')
        await tier.closing.wait()
        if again == "cancel":
            await chats.send('{"type": "cancel"}')
            assert json.loads(await chats.recv())["status"] == "cancelled"
    record = await only_record(gateway, tier.requests[0].request_id)
    assert record.status == "aborted"
    assert_charged(gateway, record, 6, 0)
    stopped.set()
    await tier.ended.wait()


async def test_a_stream_whose_first_byte_could_never_be_sent_is_closed_with_its_connection(tmp_path: Path) -> None:
    """A large answer that is not read blocks the comment that keeps the next stream of its connection open."""
    settings = Settings(data_dir=str(tmp_path), monitor=False, drain_seconds=5, keep_alive_seconds=0.01)
    async with running_gateway(settings) as gateway:
        first, second = gateway.tier(1), gateway.tier(2)
        first.words, second.hold_at = ("x" * 65_536,) * 256, 0
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(request(CHAT_BODY) + request(CHAT_BODY | {"model": "tier-2", "stream": True}))
            await second.holding.wait()
            await eventually(is_speaking)
            second.go.set()
            await eventually(lambda: drawn(second) > 0)
        await gateway.serving.service.idle()
        await only_record(gateway, second.requests[0].request_id)


def is_speaking() -> bool:
    """Whether a comment that keeps a connection open is being sent."""
    return any("KeepAlive._send_comment" in repr(task) for task in asyncio.all_tasks())


def request(body: dict[str, Any]) -> bytes:
    payload = json.dumps(body).encode()
    headers = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    head = f"POST {CHAT} HTTP/1.1\r\n{headers}\r\n\r\n"
    return head.encode() + payload
