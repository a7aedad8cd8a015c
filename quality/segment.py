"""A journal segment: a file of length- and checksum-framed payloads whose torn tail can be told from its records.

A frame is `<u32 length> <u32 crc> payload`, little-endian; the checksum covers length and payload, so that a
tail of zeros, which some file systems leave after a power failure, is no valid (empty) frame.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<II")
HEADER_BYTES = _HEADER.size
SEGMENT_SUFFIX = ".journal"


class Location(NamedTuple):
    """Where a payload lies: `offset` is its first byte in `segment`, `length` its bytes."""

    segment: Path
    offset: int
    length: int


class SegmentError(RuntimeError):
    """A frame that had been written correctly can no longer be read: the disk or another program changed it."""


class Recovered(NamedTuple):
    """What a segment of a dead process holds, in the order it was written, and the bytes cut off its end."""

    frames: list[tuple[Location, bytes]]
    torn_bytes: int


def frame(payload: bytes) -> bytes:
    """`payload` with its header."""
    return _HEADER.pack(len(payload), _checksum(payload)) + payload


def read_payload(location: Location) -> bytes:
    """The payload at `location`.

    Raises:
        SegmentError: the bytes there are not what was written, or the file is gone.
        OSError: the segment cannot be read now.
    """
    try:
        with location.segment.open("rb", buffering=0) as file:
            found = os.pread(file.fileno(), HEADER_BYTES + location.length, location.offset - HEADER_BYTES)
    except FileNotFoundError as error:
        raise SegmentError(f"{location.segment} was deleted by another program: restore it") from error
    payload = found[HEADER_BYTES:]
    if found[:HEADER_BYTES] != _HEADER.pack(location.length, _checksum(payload)):
        raise SegmentError(f"{location.segment} is damaged at byte {location.offset}: restore the file or remove it")
    return payload


def recover(segment: Path) -> Recovered:
    """Read every whole frame of a segment that nobody writes any more, and cut off what follows the last."""
    data = segment.read_bytes()
    frames: list[tuple[Location, bytes]] = []
    end = 0
    while (payload := _payload_at(data, end)) is not None:
        frames.append((Location(segment, end + HEADER_BYTES, len(payload)), payload))
        end += HEADER_BYTES + len(payload)
    if end < len(data):
        os.truncate(segment, end)
    return Recovered(frames, len(data) - end)


def _payload_at(data: bytes, start: int) -> bytes | None:
    if start + HEADER_BYTES > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, start)
    payload = data[start + HEADER_BYTES : start + HEADER_BYTES + length]
    return payload if len(payload) == length and _checksum(payload) == checksum else None


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))
