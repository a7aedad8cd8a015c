"""Frames of the core's socket: four bytes of length, most significant first, then MessagePack; and beats.

Beats detect a silent peer, even behind a proxy that still acknowledges. TCP keepalive reaches only the next kernel,
which may be a proxy's, so both ends send their own beats.
"""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any, cast

import msgspec

MAX_FRAME_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """A frame is longer than allowed or does not hold what it should; the connection cannot go on."""


class FrameWriter:
    """Encodes values into frames of at most `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._encoder = msgspec.msgpack.Encoder()

    def frame(self, value: Any) -> bytes:
        """The frame of `value`. Raises `FrameError`."""
        frame = bytearray(_LENGTH.size)
        self._encoder.encode_into(value, frame, _LENGTH.size)
        size = len(frame) - _LENGTH.size
        if size > self._max_bytes:
            raise FrameError(f"a frame of {size} bytes is over the limit of {self._max_bytes}")
        _LENGTH.pack_into(frame, 0, size)
        return bytes(frame)


class FrameReader:
    """Cuts a byte stream into frames and decodes each as `kind`; keeps at most one incomplete frame."""

    def __init__(self, kind: Any, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Values of the frames that `data` completes. Raises `FrameError`, after which the reader is spent."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._buffer, start)
                if size > self._max_bytes:
                    raise FrameError(f"a frame of {size} bytes is over the limit of {self._max_bytes}")
                end = start + _LENGTH.size + size
                if len(self._buffer) < end:
                    break
                body = bytes(memoryview(self._buffer)[start + _LENGTH.size : end])
                start = end
                yield self._decoded(body)
        finally:
            del self._buffer[:start]

    def _decoded(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"a frame does not hold {self._decoder.type}: {error}") from error


SILENT_SECONDS = 10.0
"""Seconds without a sign of the peer after which the connection is lost."""
LOCAL_SILENT_SECONDS = 15.0
"""The same for a core on this machine, which may be short of processor time but not of packets."""
_BEATS = 5
_BEAT = FrameWriter().frame([])


class Beats(asyncio.Protocol):
    """Passes a connection on to `protocol`, which reads frames of lists, and sends beats: empty lists."""

    def __init__(self, protocol: asyncio.Protocol, silent_seconds: float = SILENT_SECONDS) -> None:
        self._protocol = protocol
        self._silent_seconds = silent_seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._wait()
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._protocol.connection_lost(error)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._silent_seconds / _BEATS, self._beat)

    def _beat(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_BEAT)
        self._wait()


class Heartbeat(Beats):
    """Ends the connection of a silent peer.

    Silence is counted in this end's own beats, so that a blocked event loop does not count as the peer's silence.
    """

    def __init__(self, protocol: asyncio.Protocol, silent_seconds: float = SILENT_SECONDS) -> None:
        super().__init__(protocol, silent_seconds)
        self._unheard = 0
        self._silence: TimeoutError | None = None

    def data_received(self, data: bytes) -> None:
        self._unheard = 0
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error or self._silence)

    def _beat(self) -> None:
        self._unheard += 1
        if self._unheard == _BEATS:
            self._silence = TimeoutError(f"nothing was heard for {self._silent_seconds:g} s")
            self._transport.abort()
            return
        super()._beat()


class LocalHeartbeat(Heartbeat):
    """To a core on this machine, which may still start: it counts as silent only once a beat of it was heard."""

    def __init__(self, protocol: asyncio.Protocol, silent_seconds: float = LOCAL_SILENT_SECONDS) -> None:
        super().__init__(protocol, silent_seconds)
        self._has_beaten = False

    def data_received(self, data: bytes) -> None:
        self._has_beaten = self._has_beaten or _BEAT in data
        super().data_received(data)

    def _beat(self) -> None:
        if not self._has_beaten:
            self._unheard = 0
        super()._beat()
