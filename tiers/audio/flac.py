"""How long FLAC lasts: all its frames, each of which says how many samples it has."""

import re
from functools import cache

# The third and fourth byte of a frame's header, without what is reserved.
_SIZES_AND_RATES = [byte for byte in range(256) if byte >> 4 != 0 and byte & 15 != 15]
_CHANNELS_AND_BITS = [byte for byte in range(256) if byte >> 4 < 11 and byte >> 1 & 7 != 3 and not byte & 1]
_FRAME = re.compile(
    b"\xff[\xf8\xf9]"
    + b"".join(b"[" + b"".join(re.escape(bytes([b])) for b in allowed) + b"]"
               for allowed in (_SIZES_AND_RATES, _CHANNELS_AND_BITS)),
    re.DOTALL,
)  # fmt: skip
_RATES = (0, 88_200, 176_400, 192_000, 8000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)
_LONGEST_HEADER = 16
MOST_FRAMES = 300_000


def flac_readings(data: bytes, start: int) -> list[float]:
    """Return the seconds of all frames after `start`, where `fLaC` stands, and those that the header tells. Raises
    `ValueError`."""
    info = int.from_bytes(data[start + 18 : start + 26], "big")
    rate, samples = info >> 44, info & (1 << 36) - 1
    if not rate:
        raise ValueError("a FLAC file without a sampling rate")
    return [flac_seconds(data, start + 42, rate), samples / rate]


def flac_seconds(data: bytes, start: int, rate: float) -> float:
    """Return the seconds of all frames from `start` on; `rate`: of those that do not tell their own."""
    seconds, end = 0.0, start
    for number, candidate in enumerate(_FRAME.finditer(data, start)):
        if number > MOST_FRAMES:
            raise ValueError("too many frames")
        if candidate.start() >= end:
            samples, own_rate, size = _frame(data[candidate.start() : candidate.start() + _LONGEST_HEADER])
            seconds += samples / (own_rate or rate)
            end = candidate.start() + size
    return seconds


def _frame(head: bytes) -> tuple[int, float, int]:
    """Return samples, sampling rate (0: the file's) and the header's bytes; no samples if this is no frame."""
    size_code, rate_code, first = head[2] >> 4, head[2] & 15, head[4] if len(head) > 4 else 0xFF
    ones = 8 - (~first & 0xFF).bit_length()
    at = 4 + max(1, ones)
    if ones in (1, 8):
        return 0, 0, 0
    if size_code in (6, 7):
        width = size_code - 5
        samples = int.from_bytes(head[at : at + width], "big") + 1
        at += width
    else:
        samples = 192 if size_code == 1 else 576 << size_code - 2 if size_code < 6 else 256 << size_code - 8
    if rate_code > 11:
        width = 1 if rate_code == 12 else 2
        rate = int.from_bytes(head[at : at + width], "big") * {12: 1000, 13: 1, 14: 10}[rate_code]
        at += width
    else:
        rate = _RATES[rate_code]
    crc = 0
    for byte in head[:at]:
        crc = _crc8()[crc ^ byte]
    return (samples, rate, at + 1) if at < len(head) and head[at] == crc else (0, 0, 0)


@cache
def _crc8() -> bytes:
    table = bytearray()
    for byte in range(256):
        for _ in range(8):
            byte = (byte << 1 ^ (0x07 if byte & 0x80 else 0)) & 0xFF
        table.append(byte)
    return bytes(table)
