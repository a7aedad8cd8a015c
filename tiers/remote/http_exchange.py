"""Headers and bodies of the HTTP exchanges with a server elsewhere, which is a stranger: every body has a bound."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx

from tiers.remote.http_connection import READ_BYTES
from tiers.remote.http_transport import Reply
from tiers.remote.sse import BOM
from tiers.tier import TraceHeaders

MAX_REST_BYTES = 64 * 1024
# The connection is reused if the server ends the stream this soon after its last event.
ENDING_SECONDS = 0.2
IDENTITY = {"accept-encoding": "identity"}
"""Header of requests whose answer `pieces_of` or `bounded_answer` reads."""
_JSON_STARTS = (b"{", b"[")
_ZIPPED = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class RefusedBodyError(httpx.DecodingError):
    """A body is larger than its bound, or in an encoding that was not asked for and is not read."""


def pieces_of(reply: Reply | httpx.Response, deadline: float | None = None) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises `RefusedBodyError`, `httpx.TransportError`.

    Compression is not requested. One layer of gzip or deflate is decoded if a server uses it, in pieces of at most
    `READ_BYTES`, so that a reader who counts them stops in time; any other encoding is refused. `deadline`: in the
    loop's time; a `Reply` keeps its own.
    """
    stream = reply if isinstance(reply, Reply) else reply.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    pieces = aiter(stream) if deadline is None or stream is reply else _until(deadline, aiter(stream))
    encoding = reply.headers.get("content-encoding")
    if encoding is None or encoding.strip().lower() in ("", "identity"):
        return pieces
    return _unzipped(pieces, encoding.strip().lower())


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


async def _unzipped(pieces: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    if encoding not in _ZIPPED:
        raise RefusedBodyError(f"the answer is encoded as {encoding[:40]!r}, which was not asked for")
    unzip = zlib.decompressobj(_ZIPPED[encoding])
    try:
        async for piece in pieces:
            while piece and not unzip.eof:
                if data := unzip.decompress(piece, READ_BYTES):
                    yield data
                piece = unzip.unconsumed_tail
    except zlib.error as error:
        raise RefusedBodyError(f"the answer is not {encoding}: {error}") from error


async def up_to(size: int, pieces: AsyncIterator[bytes]) -> bytes:
    """Return the body, or its first `size` bytes and a little more."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) >= size:
            break
    return bytes(body)


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
    client: httpx.AsyncClient, request: httpx.Request, most: int, seconds: float
) -> tuple[httpx.Response, bytes]:
    """Send `request`, and return the answer's head and its body of at most `most` bytes, all within `seconds`.

    For every server that may be a stranger. Raises `RefusedBodyError` and other errors of `httpx.HTTPError`.
    """
    request.headers.update(IDENTITY)
    request.extensions["timeout"] = httpx.Timeout(seconds).as_dict()
    try:
        async with asyncio.timeout(seconds):
            response = await client.send(request, stream=True)
            try:
                body = await up_to(most + 1, pieces_of(response))
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
