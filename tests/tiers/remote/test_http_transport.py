"""The transport of remote tiers against servers that cut, keep, drop and stall connections, over real sockets."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from tiers.remote import http_transport
from tiers.remote.http_exchange import pieces_of, up_to
from tiers.remote.http_transport import HttpTransport

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello"
ZIPPED = gzip.compress(b"hello", mtime=0)
COMPRESSED = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (len(ZIPPED), ZIPPED)
ANNOUNCED = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + WHOLE


class Upstream:
    """A server of raw bytes; `connections` counts those that it took."""

    def __init__(self, transport: HttpTransport, url: str) -> None:
        self.transport, self.url = transport, url
        self.connections = 0

    async def post(self, body: bytes = b"{}") -> httpx.Response:
        timeout = {"connect": 120.0, "read": 120.0}
        request = httpx.Request("POST", self.url, content=body, extensions={"timeout": timeout})
        return await self.transport.handle_async_request(request)

    async def text(self) -> bytes:
        response = await self.post()
        assert isinstance(response.stream, httpx.AsyncByteStream)
        body = b"".join([piece async for piece in response.stream])
        await response.aclose()
        return body


@asynccontextmanager
async def upstream(serve: Serve) -> AsyncIterator[Upstream]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.connections += 1
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x"
    transport = HttpTransport(httpx.URL(url))
    here = Upstream(transport, url)
    try:
        yield here
    finally:
        await transport.aclose()
        server.close()


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


def soon() -> float:
    """The deadline of an exchange that is not late."""
    return asyncio.get_running_loop().time() + 60


def answering(raw: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(raw)

    return serve


@pytest.mark.parametrize("raw", [WHOLE, CHUNKED, ANNOUNCED])
async def test_a_connection_serves_one_request_after_another(raw: bytes) -> None:
    async with upstream(answering(raw)) as server:
        assert [await server.text() for _ in range(3)] == [b"hello"] * 3
        assert server.connections == 1


@pytest.mark.parametrize("raw", [WHOLE, CHUNKED, COMPRESSED], ids=["plain", "chunked", "compressed"])
async def test_a_body_is_read_without_its_compression_by_this_transport_and_through_httpx(raw: bytes) -> None:
    async with upstream(answering(raw)) as server:
        reply = await server.transport.send(b"POST /v1/x HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", 60.0, 60.0, soon())
        assert await up_to(100, pieces_of(reply)) == b"hello"
        assert reply.is_whole
        await reply.aclose()
        response = await server.post()
        assert await up_to(100, pieces_of(response)) == b"hello"
        await response.aclose()
        assert server.connections == 1


async def test_headers_of_one_name_are_joined_whatever_its_case() -> None:
    raw = b"HTTP/1.1 200 OK\r\nX-Part: a\r\nContent-Length: 0\r\nx-part: b\r\n\r\n"
    async with upstream(answering(raw)) as server:
        reply = await server.transport.send(b"POST /v1/x HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 60.0, 60.0, soon())
        assert reply.headers == {"x-part": "a, b", "content-length": "0"}
        await reply.aclose()


@pytest.mark.parametrize("raw", [WHOLE, CHUNKED, ANNOUNCED])
async def test_an_answer_means_the_same_however_its_bytes_are_cut(raw: bytes) -> None:
    async def byte_by_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        for byte in raw:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with upstream(byte_by_byte) as server:
        assert await server.text() == b"hello"


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(UNTIL_CLOSED)

    async with upstream(serve) as server:
        assert [await server.text() for _ in range(2)] == [b"hello"] * 2
        assert server.connections == 2


@pytest.mark.parametrize("raw", [WHOLE[:-1], CHUNKED[:-5], b"HTTP/1.1 200 OK\r\nconten", b"", b"hello?\r\n\r\n"])
async def test_an_answer_that_breaks_off_or_is_no_http_is_an_error_and_not_an_answer(raw: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(raw)

    async with upstream(serve) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await server.text()
        assert server.connections == 1


async def test_a_request_on_a_dropped_persistent_connection_is_sent_again_once() -> None:
    seen: list[bytes] = []

    async def one_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await request_of(reader))
        writer.write(WHOLE)
        await reader.readexactly(1)  # the next request has started: too late for this connection

    async with upstream(one_each) as server:
        assert [await server.text() for _ in range(3)] == [b"hello"] * 3
        assert server.connections == len(seen) == 3


async def test_an_answer_left_in_the_middle_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED[:-5])
        assert await reader.read() == b""
        gone.set()

    async with upstream(endless) as server:
        response = await server.post()
        await response.aclose()
        await asyncio.wait_for(gone.wait(), 120)


async def test_unrequested_bytes_end_a_connection() -> None:
    async with upstream(answering(WHOLE + WHOLE)) as server:
        assert await server.text() == b"hello"
        assert await server.text() == b"hello"
        assert server.connections == 2


async def test_a_reader_who_is_slow_makes_the_server_wait() -> None:
    size, written = 64 * 2**20, 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(bytes(2**20))
            await writer.drain()
            written += 2**20

    async with upstream(flood) as server:
        response = await server.post()
        assert isinstance(response.stream, httpx.AsyncByteStream)
        pieces = aiter(response.stream)
        read = len(await anext(pieces))
        for _ in range(100):  # turns of the loop without a reader
            await asyncio.sleep(0.001)
        assert written < size // 2
        async for piece in pieces:
            read += len(piece)
        assert read == size
        await response.aclose()


async def test_silence_is_given_up_after_the_read_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with upstream(silent) as server:
        # Connecting has time enough on a busy machine; the request is sent, and nothing comes.
        with pytest.raises(httpx.ReadTimeout):
            await server.transport.send(b"POST /v1/x HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 60.0, 0.05, soon())


async def test_more_connections_than_allowed_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "MAX_CONNECTIONS", 1)
    async with upstream(answering(WHOLE)) as server:
        response = await server.post()
        with pytest.raises(httpx.PoolTimeout):
            await server.post()
        await response.aclose()
