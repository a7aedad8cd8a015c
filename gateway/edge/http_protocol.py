"""The server's HTTP protocol with limits on what a connection may cost before its request is admitted."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.base.errors import ApiError, shutting_down
from gateway.edge.client_paths import DEPLOYMENT, OLD_PATHS, served_path
from gateway.edge.head_bounds import MAX_HEADERS, HeadBounds, too_large, too_many_headers
from gateway.edge.proxies import is_authority
from gateway.edge.response_cycle import CLIENT_CONNECTION, HEAD, ResponseCycle, refusal_response

log = logging.getLogger(__name__)

STEADY_BYTES_PER_SECOND = 65_536
# Longer than load balancers keep idle connections (600 s at most), which otherwise send a request on one that is just
# being closed, and answers 502.
IDLE_SECONDS = 620
# A connection may be accepted a moment before a stop, with its first request on the way.
FIRST_REQUEST_SECONDS = 1.0
# Requests on one connection that wait behind an unfinished answer.
MAX_PIPELINED = 16
# Uncounted bytes of the lines around a chunk: its size, two line ends, and some more.
_CHUNK_LINES = 16


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on connections, on the arrival time of a request, and on request heads.

    An idle connection is closed after `IDLE_SECONDS`, or to make room: beyond `most` connections a new one takes the
    place of an idle one, and gets a 503 if there is none. A request must arrive within `patience` seconds of its
    connection or its first byte. While it arrives at `STEADY_BYTES_PER_SECOND` or faster, the deadline is extended by
    as much: a large file on a slow line. Most requests arrive in one piece and set no timer.

    A head may have `head_limit` bytes, including line ends and empty lines before it, its request line an eighth of
    them, one header a quarter, and `MAX_HEADERS` headers. Data is passed to the parser in pieces: of a head never more
    than is left of its limits, nor than a request line may have, so that no line exceeds its limit within a piece.
    Nothing beyond a limit is parsed, however a head is split into packets. A head that starts in mid-piece, behind the
    end of another request, is counted from the next piece on, and measured once it is parsed. A piece of a body has at
    most `head_limit` bytes. Chunk extensions and trailers may have as many bytes in addition to the chunks, two pieces
    more at most. An error response is sent after the answers to the requests before, and closes the connection.

    At a stop an idle connection stays for `timeout_keep_alive` of the configuration, as one without a request yet, but
    at least `FIRST_REQUEST_SECONDS`: a request may be on the way. Requests received until then are answered with
    `Connection: close`.
    """

    # Next to the attributes of uvicorn's class: together fewer than the 30 that CPython looks up fast.
    __slots__ = (
        "_arrived",
        "_arriving",
        "_bounds",
        "_deadline",
        "_ended",
        "_follows",
        "_framing",
        "_in_head",
        "_is_lost",
        "_last_answer",
        "_most",
        "_patience",
        "_refused",
        "_room",
        "_stops",
        "_watching",
    )

    def __init__(self, *arguments: Any, patience: float, most: int, head_limit: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._patience, self._most = patience, most
        self.timeout_keep_alive = IDLE_SECONDS
        self._bounds = HeadBounds(head_limit)
        # Whether a request has been received partly.
        self._arriving = False
        # Whether the last event of the parsed piece was the end of a request.
        self._ended = False
        self._deadline: asyncio.TimerHandle | None = None
        # Bytes since the deadline was set.
        self._arrived = 0
        self._in_head = True
        # How many bytes the parser may get at once.
        self._room = self._bounds.request_line
        # Whether the head started in mid-piece.
        self._follows = False
        # Bytes of a chunked body's lines beyond those of its chunks.
        self._framing = 0
        self._refused = False
        # Whether the server stops.
        self._stops = False
        self._last_answer: bytes | None = None
        # What is called when the client disconnects.
        self._watching: set[Callable[[], None]] = set()
        self._is_lost = False
        # As before every request: empty lines may precede the first one.
        self.url, self.headers = b"", []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most and not self._makes_room():
            self._refuse(ApiError(503, "Too many connections. Try again later.", code="too_many_connections"))
        else:
            self._set_deadline()

    def _makes_room(self) -> bool:
        """Close an idle connection, if there is one."""
        for other in self.connections:
            is_idle = isinstance(other, BoundedHttpProtocol) and other.timeout_keep_alive_task is not None
            if is_idle and not other.transport.is_closing():
                other.transport.close()
                return True
        return False

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if len(data) > self._room:
            self._parse_in_pieces(data)
        else:
            self._ended = False
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                if self._goes_on_after(upgrade):
                    self._parse_in_pieces(data[upgrade.args[0] :])
            except HttpParserError as error:
                self._stop(error)
            else:
                if not self._ended:
                    self._count(data, 0, len(data))
        if self._arriving:
            if self._deadline is None:
                self._set_deadline()
            self._arrived += len(data)

    def on_message_begin(self) -> None:
        """See httptools."""
        self._follows = self._ended
        self._ended = False
        self._arriving = True
        if self._stops:
            # From here on a deadline as that of any request.
            self._clear_deadline()
        # Not with every byte: empty lines between requests must not keep a connection open.
        self._unset_keepalive_if_required()
        HttpToolsProtocol.on_message_begin(self)

    def on_headers_complete(self) -> None:
        """See httptools. Raises `ApiError`, for `_stop`."""
        if len(self.headers) > MAX_HEADERS:
            raise too_many_headers()
        if self._follows:
            self._bounds.measure(self.url, self.headers)
        if self.parser.should_upgrade() and self._is_ignored_upgrade():
            # Read again without it.
            return
        hosts = [value for name, value in self.headers if name == b"host"]
        if hosts and (len(hosts) > 1 or not is_authority(hosts[0])):
            # RFC 9112, section 3.2.
            raise ApiError(400, "The request has no single valid Host header.", param="host", code="invalid_host")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ApiError(
                429,
                f"More than {MAX_PIPELINED} requests wait on this connection. Send the next one after an answer.",
                code="too_many_pipelined_requests",
            )
        self._complete_scope()
        if not (self.parser.should_upgrade() and self._should_upgrade()):
            self._begin_cycle()
        self._in_head = False
        self._room = self._bounds.head
        # The piece that ends the head does not count as lines of chunks.
        self._framing = -self._bounds.head
        if self._bounds.counted:
            self._bounds.forget()

    def _complete_scope(self) -> None:
        scope: Any = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = self.parser.get_http_version()
        url = parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = path = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        scope["extensions"] = {CLIENT_CONNECTION: self}
        if scope["method"] == "HEAD":
            scope["method"], scope["extensions"][HEAD] = "GET", True
        if not path.startswith("/v1/") or path.startswith(OLD_PATHS):
            self._find_endpoint(path)

    def _find_endpoint(self, path: str) -> None:
        """Lead a path that is not this server's own to the endpoint that the client means."""
        scope: Any = self.scope
        scope["path"], deployment = served_path(path)
        if deployment is not None:
            scope["extensions"][DEPLOYMENT] = deployment

    def _begin_cycle(self) -> None:
        before, is_old = self.cycle, self.scope["http_version"] == "1.0"
        self.cycle = ResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and not is_old,
            keep_alive=not self._stops and not is_old and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.cycle.loop = self.loop
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            # Pipelined requests wait.
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        # Once for these bytes, once for as many bytes of lines.
        self._framing -= 2 * len(body)
        HttpToolsProtocol.on_body(self, body)

    def on_chunk_header(self) -> None:
        # Trailers would become headers of the request, unseen by proxies.
        self.headers = []

    def on_chunk_complete(self) -> None:
        self._framing = max(self._framing - _CHUNK_LINES, -self._bounds.head)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and self._is_ignored_upgrade():
            return
        self._arriving = False
        self._ended = self._in_head = True
        self._room = self._bounds.request_line
        if self._deadline is not None:
            self._clear_deadline()
            if self.cycle is not None and self.cycle.response_complete:
                # Answered before its body was here.
                self._begin_idle()
                self._forget_request()
        HttpToolsProtocol.on_message_complete(self)

    def on_response_complete(self) -> None:
        """See uvicorn."""
        last = not self.pipeline
        super().on_response_complete()
        if self._arriving:
            # The next request has started, and the deadline belongs to it.
            self._unset_keepalive_if_required()
        elif last:
            self._forget_request()
        if last and self._last_answer is not None and not self.transport.is_closing():
            self.transport.write(self._last_answer)
            self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        """See uvicorn; from here on the connection belongs to another protocol."""
        if self.cycle is not None and not self.cycle.response_complete:
            # Its answer would be sent without flow control, between the frames of the WebSocket.
            message = "The connection becomes a WebSocket only once the requests before are answered."
            self._refuse(ApiError(400, message, code="pipelined_upgrade"))
            return
        if self._stops:
            self._refuse(shutting_down("The server is shutting down. Connect elsewhere."))
            return
        self._clear_deadline()
        super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        """See uvicorn, which would close on a client whose next request may be on the way."""
        self._stops = True
        self.timeout_keep_alive = self.config.timeout_keep_alive
        if self._arriving and self._in_head:
            return
        if not self.cycle:
            self._clear_deadline()
            seconds = max(self.timeout_keep_alive, FIRST_REQUEST_SECONDS)
            self._deadline = self.loop.call_later(seconds, self.transport.close)
        elif not self.cycle.response_started:
            self.cycle.keep_alive = False
        elif self.cycle.response_complete:
            self._begin_idle()

    def end_unfinished(self) -> bool:
        """End the request that is answered, with an error if possible. Returns whether there was one."""
        return isinstance(self.cycle, ResponseCycle) and self.cycle.end_unfinished()

    @property
    def is_ended(self) -> bool:
        """See `ClientConnection`."""
        return isinstance(self.cycle, ResponseCycle) and self.cycle.is_ended

    def _begin_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _forget_request(self) -> None:
        """Let go of the last request, whose scope has its body, perhaps megabytes, while the connection idles."""
        nothing: Any = {}
        self.scope = nothing
        if self.cycle is not None:
            self.cycle.scope = nothing

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._clear_deadline()
        super().connection_lost(exc)
        self._is_lost = True
        # They lead back to this object: their bodies would stay until a collection of garbage. What answers has its own
        # references.
        nothing: Any = None
        self.scope = self.cycle = nothing
        self.pipeline.clear()
        for gone in list(self._watching):
            gone()

    def watch(self, gone: Callable[[], None]) -> None:
        """See `ClientConnection`. Reads on, as uvicorn's `receive` does: the end of a connection that is not read would
        not be noticed."""
        self._watching.add(gone)
        self.flow.resume_reading()
        if self._is_lost:
            gone()

    def unwatch(self, gone: Callable[[], None]) -> None:
        self._watching.discard(gone)

    def _parse_in_pieces(self, data: bytes) -> None:
        start, view = 0, memoryview(data)
        while start < len(data) and not self._refused:
            end = min(start + self._room, len(data))
            self._ended = False
            try:
                self.parser.feed_data(view[start:end])
            except HttpParserUpgrade as upgrade:
                if not self._goes_on_after(upgrade):
                    return
                end = start + upgrade.args[0]
            except HttpParserError as error:
                self._stop(error)
                return
            if not self._ended:
                self._count(data, start, end)
            start = end

    def _stop(self, error: HttpParserError) -> None:
        """Act on the reason why the parser stopped."""
        # An exception of our callbacks is the context.
        refusal = error.__context__
        if not isinstance(refusal, ApiError):
            refusal = ApiError(400, "The request is not valid HTTP.", code="invalid_http")
        self._refuse(refusal)

    def _goes_on_after(self, upgrade: HttpParserUpgrade) -> bool:
        """Act on an upgrade that the client asks for; return whether the bytes behind the head are still HTTP/1.1.

        An upgrade that is not known is ignored (RFC 9110, section 7.8): Java's client asks for h2c with every first
        request. The parser has skipped the request's body, so a new one reads the head again, without `Upgrade`.
        """
        if self._should_upgrade():
            self.handle_websocket_upgrade()
            return False
        if not self._is_ignored_upgrade():
            log.debug("a tunnel was not made")
            return False
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))
        except HttpParserError as error:
            self._stop(error)
            return False
        return True

    def _is_ignored_upgrade(self) -> bool:
        return self.parser.should_upgrade() and not self._should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _count(self, data: bytes, start: int, end: int) -> None:
        """Count bytes parsed while the request continues; reject it if it must be too long."""
        if self._in_head and self._follows and not self._bounds.counted:
            self._bounds.begin_within()
        elif self._in_head:
            try:
                self._room = self._bounds.count(data, start, end, self.url, len(self.headers))
            except ApiError as error:
                self._refuse(error)
        else:
            self._framing += end - start
            if self._framing > self._bounds.head or len(self.headers) > MAX_HEADERS:
                allowed = f"{self._bounds.head} bytes (AIO_HEAD_LIMIT) and {MAX_HEADERS} trailers"
                self._refuse(too_large(f"Besides a body's chunks, {allowed} are allowed."))

    def _set_deadline(self) -> None:
        self._arrived = 0
        self._deadline = self.loop.call_later(self._patience, self._give_up)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._arriving and self._arrived >= STEADY_BYTES_PER_SECOND * self._patience:
            self._set_deadline()
            return
        self._deadline = None
        message = f"The request did not arrive within {self._patience:g} s."
        self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer without the application, after the answers to earlier requests, and close; nothing more is read."""
        self._refused, self._arriving, self._room = True, False, -1
        self._clear_deadline()
        # Otherwise an attacker could fill the log.
        log.debug("refused: %s", error.body.code)
        cycle = self.cycle
        waits = cycle is not None and not cycle.response_complete
        if cycle is not None and not self._in_head:
            # It is this request, and the application may already have it.
            waits = bool(self.pipeline) and self.pipeline[0][0] is cycle
            if waits:
                self.pipeline.popleft()
            elif cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        if waits:
            self._last_answer = refusal_response(error)
            # Other requests would resume it through `flow`.
            self.flow.read_paused = False
            self.transport.pause_reading()
        else:
            self.transport.write(refusal_response(error))
            self.transport.close()
