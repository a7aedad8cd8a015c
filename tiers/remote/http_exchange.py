"""Headers and bodies of the HTTP exchanges with a remote server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx

from tiers.remote.http_transport import Reply
from tiers.tier import TraceHeaders

MAX_REST_BYTES = 64 * 1024
# The connection is reused if the server ends the stream this soon after its last event.
ENDING_SECONDS = 0.2


def pieces_of(reply: Reply | httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Compression is not requested, but decoded if a server uses it."""
    if "content-encoding" in reply.headers:
        return (reply.as_response() if isinstance(reply, Reply) else reply).aiter_bytes()
    stream = reply if isinstance(reply, Reply) else reply.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    return aiter(stream)


async def up_to(size: int, pieces: AsyncIterator[bytes]) -> bytes:
    """Return the body, or its first `size` bytes and a little more."""
    body = b""
    async for piece in pieces:
        body += piece
        if len(body) >= size:
            break
    return body


async def read_rest(reply: Reply | httpx.Response, pieces: AsyncIterator[bytes]) -> None:
    """Read what little may follow a stream's last event, so that the connection can be reused."""
    if isinstance(reply, Reply) and reply.is_whole:
        return
    with suppress(TimeoutError, httpx.TransportError, httpx.DecodingError):
        async with asyncio.timeout(ENDING_SECONDS):
            await up_to(MAX_REST_BYTES, pieces)


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
