"""HTTP exchanges with a server elsewhere, which is a stranger: every body has a bound.

Headers and bodies, and the client of one server: heads, signatures and time limits of its requests.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress

import httpx
import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.dialects.event_stream import BOM
from tiers.remote.http_connection import READ_BYTES
from tiers.remote.http_transport import HttpTransport, Reply, head_bytes, header_lines, request_bytes
from tiers.tier import TraceHeaders

MAX_REST_BYTES = 64 * 1024
# The connection is reused if the server ends the stream this soon after its last event.
ENDING_SECONDS = 0.2
IDENTITY = {"accept-encoding": "identity"}
"""Header of requests whose answer `pieces_of` or `bounded_answer` reads."""
_JSON_STARTS = (b"{", b"[")
_NO_CODINGS = ("", "identity", "none", "utf-8", "utf8", "chunked")
# How JSON, events and pages begin, and nothing that is compressed but deflate without its header.
_PLAIN = (b"{", b"[", b":", b"<", b"d", b"e")
_ZIPPED = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class RefusedBodyError(httpx.DecodingError):
    """A body is larger than its bound, or in an encoding that was not asked for and is not read."""


def pieces_of(
    reply: Reply | httpx.Response, deadline: float | None = None, *, lenient: bool = False
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises `RefusedBodyError`, `httpx.TransportError`.

    Compression is not requested. One layer of gzip or deflate, of one member or several, is decoded if a server uses
    it, in pieces of at most `READ_BYTES`, so that a reader who counts them stops in time; other encodings are refused.
    `deadline`: in the loop's time; a `Reply` keeps its own. `lenient`: a server may say of a plain body that it is
    encoded, as behind a proxy that has decoded it.
    """
    stream = reply if isinstance(reply, Reply) else reply.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    pieces = aiter(stream) if deadline is None or stream is reply else _until(deadline, aiter(stream))
    encoding = reply.headers.get("content-encoding")
    if encoding is None or (coding := encoding.strip().lower()) in (_NO_CODINGS if lenient else _NO_CODINGS[:2]):
        return pieces
    return _unzipped(pieces, coding, lenient=lenient)


async def _until(deadline: float, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise httpx.ReadTimeout("the whole answer takes too long") from None
        yield piece


async def _unzipped(pieces: AsyncIterator[bytes], encoding: str, *, lenient: bool) -> AsyncIterator[bytes]:
    if encoding not in _ZIPPED:
        raise RefusedBodyError(f"the answer is encoded as {encoding[:40]!r}, which was not asked for")
    first, bits = await anext(pieces, b""), _ZIPPED[encoding]
    if lenient and first[:1] in _PLAIN and first.isascii():
        async for piece in preceded(first, pieces):
            yield piece
        return
    if bits == zlib.MAX_WBITS and first and first[0] & 15 != zlib.DEFLATED:
        # Without the header that RFC 9110 wants.
        bits = -bits
    unzip = zlib.decompressobj(bits)
    try:
        async for piece in preceded(first, pieces):
            while piece:
                if data := unzip.decompress(piece, READ_BYTES):
                    yield data
                piece = unzip.unconsumed_tail
                if unzip.eof:
                    # Several members, one for each event.
                    piece, unzip = unzip.unused_data.lstrip(b"\0"), zlib.decompressobj(bits)
    except zlib.error as error:
        raise RefusedBodyError(f"the answer is not {encoding}: {error}") from error


async def preceded(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a body of which the `first` was read already."""
    yield first
    async for piece in pieces:
        yield piece


async def up_to(size: int, pieces: AsyncIterator[bytes], *, lenient: bool = False) -> bytes:
    """Return the body, or its first `size` bytes and a little more. `lenient`: JSON that is whole is one, whatever its
    server says of its length."""
    body = bytearray()
    try:
        async for piece in pieces:
            body += piece
            if len(body) >= size:
                break
    except httpx.RemoteProtocolError:
        if not (lenient and _is_json(body)):
            raise
    return bytes(body)


def _is_json(body: bytearray) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except JSON_ERRORS:
        return False
    return True


def is_whole(start: bytes) -> bool:
    """Return whether an answer that starts so is JSON in one piece, and not a stream of events, whatever its type."""
    return start.removeprefix(BOM).lstrip()[:1] in _JSON_STARTS


async def lines_of(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    """Yield the lines of a body without their ends. Raises `RefusedBodyError` for one of more than `most` bytes."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > most:
            raise RefusedBodyError(f"a line has more than {most:,} bytes")
    if rest:
        yield rest


async def read_rest(reply: Reply | httpx.Response, pieces: AsyncIterator[bytes]) -> None:
    """Read what little may follow a stream's last event, so that the connection can be reused."""
    if isinstance(reply, Reply) and reply.is_whole:
        return
    with suppress(TimeoutError, httpx.TransportError, httpx.DecodingError):
        async with asyncio.timeout(ENDING_SECONDS):
            await up_to(MAX_REST_BYTES, pieces)


async def bounded_answer(
    client: httpx.AsyncClient, request: httpx.Request, most: int, seconds: float, *, lenient: bool = False
) -> tuple[httpx.Response, bytes]:
    """Send `request`, and return the answer's head and its body of at most `most` bytes, all within `seconds`.

    For every server that may be a stranger; `lenient`: one whose answer decides nothing here, read as by `pieces_of`
    and `up_to`. Raises `RefusedBodyError` and other errors of `httpx.HTTPError`.
    """
    request.headers.update(IDENTITY)
    request.extensions["timeout"] = httpx.Timeout(seconds).as_dict()
    try:
        async with asyncio.timeout(seconds):
            response = await client.send(request, stream=True)
            try:
                body = await up_to(most + 1, pieces_of(response, lenient=lenient), lenient=lenient)
            finally:
                await response.aclose()
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no whole answer within {seconds:g} s") from error
    if len(body) > most:
        raise RefusedBodyError(f"the answer has more than {most:,} bytes")
    return response, body


def headers_of(base: httpx.URL, key_headers: list[tuple[bytes, bytes]]) -> httpx.Headers:
    """Return the headers of every request to the server at `base`."""
    headers = [
        (b"host", base.netloc),
        (b"accept", b"text/event-stream, application/json"),
        (b"accept-encoding", b"identity"),
        (b"content-type", b"application/json"),
    ]
    return httpx.Headers(headers + key_headers)


def trace_headers(trace: TraceHeaders) -> list[tuple[bytes, bytes]]:
    """Return the headers that pass the caller's trace on."""
    headers = [(b"traceparent", trace.traceparent.encode("ascii"))]
    return [*headers, (b"tracestate", trace.tracestate.encode("ascii"))] if trace.tracestate else headers


HeaderLines = Sequence[tuple[bytes, bytes]]


class HttpClient:
    """Sends requests to the server at `base_url`; the first one makes the transport, by `connect`. `sign`: blocks, and
    returns the headers that sign a request; None where nothing is signed. Belongs to one event loop; `close` it."""

    def __init__(
        self,
        base_url: str,
        key_headers: list[tuple[bytes, bytes]],
        connect_seconds: float,
        connect: Callable[[httpx.URL], httpx.AsyncBaseTransport],
        sign: Callable[[httpx.Request], list[tuple[bytes, bytes]]] | None,
    ) -> None:
        self._base = httpx.URL(base_url.rstrip("/") + "/")
        self._headers = headers_of(self._base, key_headers)
        self._connect_seconds, self._connect, self._sign = connect_seconds, connect, sign
        # Request lines and constant headers by method and path.
        self._heads: dict[tuple[str, str], bytes] = {}
        self._transport: httpx.AsyncBaseTransport | None = None

    async def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def get(self, path: str, seconds: float, most: int) -> tuple[Reply | httpx.Response, bytes]:
        """Return a page's head, and its first `most` bytes and a little more, all within `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        response = await self.send("GET", path, b"", seconds, deadline)
        async with aclosing(response):
            return response, await up_to(most, pieces_of(response, deadline))

    async def send(
        self,
        method: str,
        path: str,
        body: bytes,
        seconds: float,
        deadline: float,
        trace: TraceHeaders | None = None,
        more: HeaderLines = (),
    ) -> Reply | httpx.Response:
        """Send a request, with `more` headers, and return the head of the answer; each wait is at most `seconds`, and
        all end by `deadline`, in the loop's time."""
        if self._transport is None:
            self._transport = self._connect(self._base)
        connect, transport = self._connect_seconds, self._transport
        if isinstance(transport, HttpTransport) and self._sign is None:
            return await transport.send(self._raw(method, path, body, trace, more), connect, seconds, deadline)
        async with asyncio.timeout_at(deadline):
            request = await self._request(method, path, body, trace, more)
            if isinstance(transport, HttpTransport):
                return await transport.send(request_bytes(request), connect, seconds, deadline)
            timeout = {"connect": connect, "read": seconds, "write": seconds, "pool": connect}
            request.extensions["timeout"] = timeout
            return await transport.handle_async_request(request)

    async def _request(
        self, method: str, path: str, body: bytes, trace: TraceHeaders | None, more: HeaderLines
    ) -> httpx.Request:
        """Return a request as httpx's, signed where the server demands it."""
        # As a stream, so that httpx looks for no further headers, which are known here.
        stream = httpx.ByteStream(body)
        request = httpx.Request(method, self._base.join(path), headers=self._headers, stream=stream)
        if method == "POST":
            request.headers["Content-Length"] = str(len(body))
        if trace is not None:
            request.headers.update(trace_headers(trace))
        if more:
            request.headers.update(more)
        if self._sign is not None:
            # On a thread: temporary credentials are renewed there.
            request.headers.update(await asyncio.to_thread(self._sign, request))
        return request

    def _raw(self, method: str, path: str, body: bytes, trace: TraceHeaders | None, more: HeaderLines) -> bytes:
        """Return a request as bytes for the wire."""
        head = self._heads.get((method, path))
        if head is None:
            head = self._heads[method, path] = head_bytes(method, self._base.join(path), self._headers.raw)
        if method == "POST":
            head += b"content-length: %d\r\n" % len(body)
        if trace is not None:
            head += header_lines(trace_headers(trace))
        if more:
            head += header_lines(more)
        return head + b"\r\n" + body
