"""Frames of the core's socket: four bytes of length, most significant first, then MessagePack."""

import struct
from collections.abc import Iterator
from typing import Any

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
