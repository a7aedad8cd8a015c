"""A caller who hangs up, at whatever moment, frees the tier's work at once and leaves an aborted record."""

import asyncio
import json
from typing import Any

import pytest
import pytest_asyncio

from gateway.edge.response_cycle import CLIENT_CONNECTION, DisconnectWatch
from quality.records.record import Record
from tests.gateway.walk import BOUNDED
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[None, BOUNDED], ids=["by a task", "by the protocol"]
)
async def module_gateway(request: pytest.FixtureRequest, module_app: StartApp) -> RunningGateway:
    """A gateway whose server notices disconnects in one of two ways."""
    return await module_app(protocol=request.param)


async def post(
    gateway: RunningGateway, path: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    payload = json.dumps(body).encode()
    kind = "Content-Type: application/json"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    await writer.drain()
    return reader, writer


async def only_record(gateway: RunningGateway, request_id: str) -> Record:
    """The record, once the answer has ended and its record is durable."""
    await gateway.serving.service.idle()
    ledger = gateway.serving.records
    await ledger.recorded(request_id)  # type: ignore[attr-defined]
    record = await ledger.find(request_id)
    assert record is not None
    return record


async def test_a_stream_whose_reader_leaves_is_closed_at_once(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 2
    body = {"model": "tier-1", "messages": HELLO, "stream": True}
    reader, writer = await post(gateway, "/v1/chat/completions", body)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b'" there,"')
    await tier.holding.wait()
    writer.close()
    async with asyncio.timeout(30):
        await tier.ended.wait()
    assert tier.closed_early == 1
    request_id = head.lower().split(b"x-aio-decision-id: ")[1].split(b"\r\n")[0].decode()
    record = await only_record(gateway, request_id)
    assert (record.status, record.http_status, record.answer) == ("aborted", 200, "Hello there,")
    assert (record.prompt_tokens, record.completion_tokens) == (6, 2)
    assert record.cost_usd > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_leaves_before_the_first_byte_stops_the_work(gateway: RunningGateway, stream: bool) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 0
    _, writer = await post(gateway, "/v1/chat/completions", {"model": "tier-1", "messages": HELLO, "stream": stream})
    await tier.holding.wait()
    writer.close()
    await tier.ended.wait()
    assert tier.closed_early == 1


async def test_a_caller_who_leaves_a_whole_answer_half_way_stops_the_work(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 3
    _, writer = await post(gateway, "/v1/completions", {"model": "tier-1", "prompt": "Once"})
    await tier.holding.wait()
    writer.close()
    await tier.ended.wait()
    record = await only_record(gateway, tier.requests[0].request_id)
    assert (record.status, record.http_status) == ("aborted", 499)
    assert record.attempts[0].status == "aborted"


async def test_all_prompts_of_a_request_stop_when_the_caller_leaves(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 1
    _, writer = await post(gateway, "/v1/completions", {"model": "tier-1", "prompt": ["a", "b", "c"], "stream": True})
    await tier.holding.wait()
    writer.close()
    await tier.ended.wait()
    await gateway.serving.service.idle()
    assert tier.closed_early == len({request.request_id for request in tier.requests}) == 3


async def test_a_reader_that_does_not_read_stops_neither_others_nor_its_own_release(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words = ("x" * 65_536,) * 2048
    body = {"model": "tier-1", "messages": HELLO, "stream": True}
    reader, writer = await post(gateway, "/v1/chat/completions", body)
    await reader.readuntil(b"\r\n\r\n")
    other = await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO)
    assert other.choices[0].finish_reason == "stop"
    assert not tier.ended.is_set()
    writer.transport.abort()
    await tier.ended.wait()
    assert tier.closed_early == 1


async def test_a_client_that_left_before_it_was_watched_stops_the_work() -> None:
    class Lost:
        def watch(self, gone: Any) -> None:
            gone()

        def unwatch(self, gone: Any) -> None:
            pass

    async def never() -> Any:
        raise AssertionError("no task watches")

    scope: Any = {"extensions": {CLIENT_CONNECTION: Lost()}}

    async def served() -> bool:
        watch = DisconnectWatch(scope, never)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            return watch.is_reason(error)
        return False

    assert await asyncio.create_task(served())
