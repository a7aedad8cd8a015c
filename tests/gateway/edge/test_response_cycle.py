"""What a connection writes of a response, and in how many writes."""

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.edge.response_cycle import HEAD, ResponseCycle

LOG = logging.getLogger(__name__)
DATE = (b"date", b"today")


class Wire:
    """A transport that keeps each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Exchange:
    """One response on a wire; `ended` counts how often its end was reported."""

    def __init__(self, method: str = "GET", *, keep_alive: bool = True) -> None:
        self.wire, self.ended = Wire(), 0
        transport = cast(Any, self.wire)
        self.cycle = ResponseCycle(
            scope={"type": "http", "http_version": "1.1", "extensions": {HEAD: True} if method == "HEAD" else {}},
            transport=transport,
            flow=FlowControl(transport),
            logger=LOG,
            access_logger=LOG,
            access_log=False,
            default_headers=[DATE],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=self._end,
        )
        self.cycle.loop = asyncio.get_running_loop()

    def _end(self) -> None:
        self.ended += 1

    async def start(self, *headers: tuple[bytes, bytes], status: int = 200) -> None:
        await self.cycle.send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, body: bytes = b"", *, more: bool = False) -> None:
        await self.cycle.send({"type": "http.response.body", "body": body, "more_body": more})


@pytest.mark.asyncio
async def test_a_whole_response_is_one_write() -> None:
    given = Exchange()
    await given.start((b"Content-Length", b"2"))
    await given.body(b"ok")
    assert given.wire.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nok"]
    assert (given.ended, given.cycle.response_complete, given.wire.closed) == (1, True, False)
    await asyncio.sleep(0)
    assert len(given.wire.writes) == 1


@pytest.mark.asyncio
async def test_a_head_waits_for_no_body_beyond_the_turn_of_the_loop() -> None:
    given = Exchange()
    await given.start()
    assert given.wire.writes == []
    await asyncio.sleep(0)
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: chunked\r\n\r\n"
    assert given.wire.writes == [head]
    await given.body(b"12345678901234567", more=True)
    await given.body(b"", more=True)
    await asyncio.sleep(0)
    assert given.wire.writes == [head, b"11\r\n12345678901234567\r\n"]


@pytest.mark.asyncio
async def test_what_is_sent_within_a_turn_of_the_loop_is_one_write() -> None:
    given = Exchange()
    await given.start((b"transfer-encoding", b"chunked"))
    await given.body(b"a", more=True)
    await given.body(b"b", more=True)
    assert given.wire.writes == []
    await asyncio.sleep(0)
    assert [write.rpartition(b"\r\n\r\n")[2] for write in given.wire.writes] == [b"1\r\na\r\n1\r\nb\r\n"]
    await given.body(b"c", more=True)
    await given.body(b"end")
    assert given.wire.writes[1:] == [b"1\r\nc\r\n3\r\nend\r\n0\r\n\r\n"]
    await asyncio.sleep(0)
    assert len(given.wire.writes) == 2


@pytest.mark.asyncio
async def test_many_bytes_wait_for_no_turn() -> None:
    given = Exchange()
    await given.start()
    await given.body(b"a" * 70_000, more=True)
    assert len(given.wire.writes) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "status", "headers", "body", "written"),
    [
        ("HEAD", 200, [(b"content-length", b"9")], b"", b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 9\r\n\r\n"),
        ("HEAD", 200, [], b"left out", b"HTTP/1.1 200 OK\r\ndate: today\r\n\r\n"),
        ("GET", 204, [], b"", b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"),
        (
            "GET",
            200,
            [(b"transfer-encoding", b"Chunked")],
            b"a",
            b"HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ),
    ],
)
async def test_bodies_are_framed_as_the_method_and_the_head_say(
    method: str, status: int, headers: list[tuple[bytes, bytes]], body: bytes, written: bytes
) -> None:
    given = Exchange(method)
    await given.start(*headers, status=status)
    await given.body(body)
    assert given.wire.writes == [written]
    assert given.ended == 1


@pytest.mark.asyncio
async def test_the_connection_closes_when_either_side_says_so() -> None:
    asked, said = Exchange(keep_alive=False), Exchange()
    await asked.start((b"content-length", b"0"))
    await asked.body()
    await said.start((b"content-length", b"0"), (b"Connection", b"TE, Close"))
    await said.body()
    assert asked.wire.writes[0].endswith(b"connection: close\r\n\r\n")
    assert said.wire.writes[0].lower().count(b"connection:") == 1
    assert (asked.wire.closed, said.wire.closed) == (True, True)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "header",
    [(b"x-name", b"a\r\nset-cookie: b"), (b"x-name", b"\0"), (b"x name", b"a"), (b"x:", b"a"), (b"x\n", b"a")],
)
async def test_a_header_cannot_end_its_line(header: tuple[bytes, bytes]) -> None:
    given = Exchange()
    with pytest.raises(RuntimeError, match="invalid"):
        await given.start((b"content-length", b"0"), header)
    await given.cycle.send_500_response()
    assert [write[:26] for write in given.wire.writes] == [b"HTTP/1.1 500 Internal Serv"]


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"too long", b"x"])
async def test_a_body_of_another_length_than_announced_is_an_error(body: bytes) -> None:
    given = Exchange()
    await given.start((b"content-length", b"2"))
    with pytest.raises(RuntimeError, match="content-length"):
        await given.body(body)
    assert given.ended == 0


@pytest.mark.asyncio
async def test_events_in_a_wrong_order_are_errors() -> None:
    given = Exchange()
    with pytest.raises(RuntimeError, match="started with"):
        await given.body()
    await given.start((b"content-length", b"0"))
    with pytest.raises(RuntimeError, match="continued with"):
        await given.start()
    await given.body()
    with pytest.raises(RuntimeError, match="after the end"):
        await given.body()


@pytest.mark.asyncio
async def test_nothing_is_written_to_a_client_that_is_gone() -> None:
    given, closing = Exchange(), Exchange()
    given.cycle.disconnected = True
    await given.start()
    await given.body(b"a")
    await closing.start()
    closing.wire.close()
    await asyncio.sleep(0)
    assert given.wire.writes == closing.wire.writes == []
