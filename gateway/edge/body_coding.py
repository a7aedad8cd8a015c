"""Bodies of requests in gzip, deflate or zstd, decoded piece by piece, so that the route's limit holds for what they
become."""

import asyncio
import io
import zlib
from typing import Any, Protocol

from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.types import Receive

from gateway.base.errors import ApiError, bad_request

CODINGS = ("gzip", "deflate", "zstd")
_ALLOWED = ", ".join(CODINGS)
PIECE_BYTES = 1 << 20
# The first piece is decoded where it is asked for: most bodies are no longer. Further ones are decoded on a thread.
_FIRST_BYTES = 1 << 17
_READ_BYTES = 1 << 16
# RFC 8878 asks for 8 MiB; a compressor that knows the length may take all of it as its window.
_MOST_WINDOW = 1 << 25
_GZIP, _ZLIB, _BARE = 31, 15, -15


class Source(Protocol):
    """What pieces are read from."""

    def read(self, most: int, /) -> bytes:
        """Return up to `most` bytes; none at the end."""


class DecodedBody:
    """An ASGI `receive` whose messages have the body that `receive` brings in `coding` (RFC 9110, section 8.4).

    It raises `ApiError`: 415 for a coding that this server does not know, 400 for a body that is none, and
    `RequestEntityTooLarge` for one of more than `most` bytes before it is decoded. The reader bounds what it becomes.
    """

    def __init__(self, receive: Receive, coding: str, most: int) -> None:
        self._receive, self._most = receive, most
        self._coding = coding.strip().lower().removeprefix("x-")
        self._source: Source | None = None
        self._ended = False

    async def __call__(self) -> Any:
        """See ASGI."""
        if self._ended:
            return await self._receive()
        if self._source is None:
            if self._coding not in CODINGS:
                raise ApiError(
                    415,
                    f"Unsupported Content-Encoding {self._coding[:64]!r}: allowed is one of {_ALLOWED}.",
                    headers={"accept-encoding": _ALLOWED},
                )
            body = await self._whole()
            if body is None:
                self._ended = True
                return {"type": "http.disconnect"}
            self._source = _source_of(body, self._coding)
            piece = self._piece(_FIRST_BYTES)
        else:
            piece = await asyncio.to_thread(self._piece, PIECE_BYTES)
        self._ended = not piece
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def _whole(self) -> bytes | None:
        """The body as it is sent; None if the client leaves before its end."""
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message: Any = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most:
                raise RequestEntityTooLarge
            more = message.get("more_body", False)
        return b"".join(parts)

    def _piece(self, most: int) -> bytes:
        try:
            return b"" if self._source is None else self._source.read(most)
        except (zlib.error, EOFError, ValueError) as error:
            raise bad_request(
                f"The body is not valid {self._coding}, as its Content-Encoding says: {error}.",
                None,
                "invalid_encoding",
            ) from None


class _Inflated:
    """Reads gzip, of one member or several, zlib or bare deflate, which some clients send in zlib's place."""

    def __init__(self, source: Source, window_bits: int) -> None:
        self._source, self._window_bits = source, window_bits
        self._stream = zlib.decompressobj(window_bits)
        self._waiting = b""

    def read(self, most: int, /) -> bytes:
        """See `Source`. Raises `zlib.error`, and `EOFError` for a stream that is cut off."""
        while True:
            coded = self._waiting or self._source.read(_READ_BYTES)
            if self._stream.eof:
                if not coded:
                    return b""
                if self._window_bits != _GZIP:
                    raise EOFError("there is more behind its end")
                self._stream = zlib.decompressobj(self._window_bits)
            decoded = self._stream.decompress(coded, most)
            self._waiting = self._stream.unused_data or self._stream.unconsumed_tail
            if decoded:
                return decoded
            if not coded and not self._stream.eof:
                raise EOFError("it ends too early")


class _Zstandard:
    """Reads zstd, of one frame or several."""

    def __init__(self, source: io.BytesIO) -> None:
        # Imported with the first such body.
        import zstandard

        self._failure = zstandard.ZstdError
        decoder = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        self._reader = decoder.stream_reader(source, read_size=_READ_BYTES, read_across_frames=True)

    def read(self, most: int, /) -> bytes:
        """See `Source`. Raises `ValueError`."""
        try:
            return self._reader.read(most)
        except self._failure as error:
            raise ValueError(str(error)) from None


def _source_of(body: bytes, coding: str) -> Source:
    """Return what reads the body; an empty one is empty in every coding."""
    source = io.BytesIO(body)
    if not body:
        return source
    if coding == "zstd":
        return _Zstandard(source)
    if coding == "gzip":
        return _Inflated(source, _GZIP)
    is_zlib = body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return _Inflated(source, _ZLIB if is_zlib else _BARE)
