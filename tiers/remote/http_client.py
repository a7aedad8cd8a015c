"""Requests to one server elsewhere: their heads, their signatures and their time limits."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import httpx

from tiers.remote.http_exchange import headers_of, pieces_of, trace_headers, up_to
from tiers.remote.http_transport import HttpTransport, Reply, head_bytes, header_lines, request_bytes
from tiers.tier import TraceHeaders

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
        """Close its connections. Idempotent."""
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
