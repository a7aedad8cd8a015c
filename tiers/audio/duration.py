"""How long audio lasts: read from what a decoder would decode, because a header's own duration may be wrong.

Read are WAV, FLAC, MP3 and other MPEG audio, AAC in ADTS, Ogg, MP4 and Matroska or WebM. The first bytes say
which, as for decoders, and not a name.
"""

import re
import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tiers.audio.containers import MOST_STEPS, flac_readings, matroska_readings, mp4_readings, ogg_readings

READABLE = "WAV, FLAC, MP3, AAC (ADTS), Ogg, MP4 (M4A) and WebM"


class Duration(NamedTuple):
    """The shortest and the longest plausible reading, in seconds. Both are equal where packets tell how long they last;
    they differ where a header contradicts them, or where a packet's length depends on what is inside it."""

    least: float
    most: float


def audio_duration(data: bytes) -> Duration | None:
    """Return how long audio lasts; None if it is none of `READABLE`, or broken. May take a second of CPU time."""
    start = _after_id3(data)
    try:
        readings = [seconds for seconds in _readings(data, start) if 0.0 < seconds < float("inf")]
    except (ValueError, IndexError, ArithmeticError, struct.error):
        return None
    return Duration(min(readings), max(readings)) if readings else None


def _readings(data: bytes, start: int) -> list[float]:
    head = data[start : start + 12]
    if head[:4] in (b"RIFF", b"RF64") and head[8:] == b"WAVE":
        return _wav_readings(data, start)
    if head[:4] == b"fLaC":
        return flac_readings(data, start)
    if head[:4] == b"OggS":
        return ogg_readings(data, start)
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"styp", b"moof", b"free", b"wide"):
        return mp4_readings(data, start)
    if head[:4] == b"\x1aE\xdf\xa3":
        return matroska_readings(data, start)
    return [mpeg_seconds(data, start)]


def _after_id3(data: bytes) -> int:
    """Return where the audio begins after the tags at the beginning."""
    at = 0
    while data[at : at + 3] == b"ID3" and at + 10 <= len(data):
        size = data[at + 6 : at + 10]
        if max(size) > 0x7F:
            break
        footer = 10 if data[at + 5] & 0x10 else 0
        at += 10 + footer + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3])
    return at


# By format tag: bits of a sample where they do not follow from the header.
_PCM, _FLOAT, _ALAW, _MULAW, _EXTENSIBLE, _GSM, _MPEG = 1, 3, 6, 7, 0xFFFE, 0x31, 0x55
_BITS = {_ALAW: 8, _MULAW: 8, 2: 4, 0x11: 4}


def _wav_readings(data: bytes, start: int) -> list[float]:
    """Of the data as its chunks say, and of all bytes: a chunk may be declared shorter than it is."""
    at, rate, measured = start + 12, 0.0, 0
    for _ in range(MOST_STEPS):
        if at + 8 > len(data):
            break
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        at += 8
        if name == b"fmt ":
            if struct.unpack_from("<H", data, at)[0] == _MPEG:
                return [mpeg_seconds(data, at + size)]
            here = _wav_bytes_a_second(data, at, size)
            rate = min(rate, here) if rate else here
        if name == b"data":
            rest = len(data) - at
            measured += size if 0 < size <= rest else rest
            size = size if 0 < size <= rest else rest
        at += size + size % 2
    if not rate or not measured:
        raise ValueError("a WAV file without its format or its data")
    # 12 bytes begin the file, 24 a usual format and 8 the data.
    return [measured / rate, max(measured, len(data) - start - 44) / rate]


def _wav_bytes_a_second(data: bytes, at: int, size: int) -> float:
    tag, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", data, at)
    if tag == _EXTENSIBLE and size >= 26:
        tag = struct.unpack_from("<H", data, at + 24)[0]
    if not rate or not channels:
        raise ValueError("a WAV file without a sampling rate")
    if tag == _GSM:
        return float(rate * 65 / 320)
    if tag not in (_PCM, _FLOAT, *_BITS):
        raise ValueError("a WAV file of an unknown coding")
    is_plain = tag in (_PCM, _FLOAT)
    of_bits = float(rate * channels * ((bits + 7) // 8 if is_plain else _BITS[tag] / 8))
    if not of_bits:
        raise ValueError("a WAV file whose samples have no bits")
    return min(of_bits, float(rate * block)) if is_plain and block else of_bits


_BITRATES = {
    (3, 3): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (3, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (3, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 3): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""kbit/s by version (3: MPEG 1, 2: the later ones) and layer (3: I, 1: III) as a header has them."""
_RATES = (44_100, 48_000, 32_000)
_AAC_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8000, 7350)
_LEAST_COVERED = 0.75
_SYNC = re.compile(rb"\xff[\xe2-\xff]")


@cache
def _mpeg_frames() -> dict[int, tuple[int, float]]:
    """Return the bytes and seconds of a frame by the second and third byte of its header."""
    frames = {}
    for key in range(0xE000, 0x10000):
        version, layer = key >> 11 & 3, key >> 9 & 3
        bitrate, rate, padding = key >> 4 & 15, key >> 2 & 3, key >> 1 & 1
        if version == 1 or layer == 0 or bitrate in (0, 15) or rate == 3:
            continue
        kbits = _BITRATES.get((3 if version == 3 else 2, layer), _BITRATES[2, 2])[bitrate - 1]
        hertz = _RATES[rate] // {3: 1, 2: 2, 0: 4}[version]
        samples = 384 if layer == 3 else 576 if layer == 1 and version != 3 else 1152
        slot = 4 if layer == 3 else 1
        size = (samples // 8 // slot * kbits * 1000 // hertz + padding) * slot
        frames[key] = size, samples / hertz
    return frames


def mpeg_seconds(data: bytes, start: int) -> float:
    """Return the seconds of all frames of MPEG audio or ADTS, whatever a header of a variable bit rate says. Raises
    `ValueError` if frames are not most of the data."""
    seconds, covered = 0.0, 0
    for size, length in _mpeg_walk(data, start):
        covered += size
        seconds += length
    if covered < _LEAST_COVERED * (len(data) - start):
        raise ValueError("no MPEG audio")
    return seconds


def _mpeg_walk(data: bytes, start: int) -> Iterator[tuple[int, float]]:
    """Yield the bytes and seconds of each frame. After other bytes, two frames in a row are one more beginning."""
    at, is_synced = start, False
    for _ in range(MOST_STEPS):
        frame = _mpeg_frame(data, at)
        if frame is not None:
            after = at + frame[0]
            if is_synced or after >= len(data) or _mpeg_frame(data, after) is not None:
                yield min(frame[0], len(data) - at), frame[1]
                at, is_synced = after, True
                continue
        following = _SYNC.search(data, at + 1)
        if following is None:
            return
        at, is_synced = following.start(), False
    raise ValueError("too many frames")


def _mpeg_frame(data: bytes, at: int) -> tuple[int, float] | None:
    if at + 4 > len(data) or data[at] != 0xFF:
        return None
    second, third = data[at + 1], data[at + 2]
    if second & 0xF6 != 0xF0:
        return _mpeg_frames().get(second << 8 | third)
    if at + 7 > len(data) or (rate := third >> 2 & 15) >= len(_AAC_RATES):
        return None
    size = (data[at + 3] & 3) << 11 | data[at + 4] << 3 | data[at + 5] >> 5
    return None if size < 7 else (size, 1024 * (1 + (data[at + 6] & 3)) / _AAC_RATES[rate])
