"""How long audio in FLAC, Ogg, MP4 and Matroska (WebM) lasts: by frames and packets, tables of samples and headers."""

import math
import re
import struct
from collections.abc import Iterator
from functools import cache
from itertools import islice

MOST_STEPS = 500_000
"""Packets, frames or boxes of one file that are read: those of about three hours, in a second of CPU time."""
_STEPS_OF_A_PAGE = 3
OPUS_HERTZ = 48_000
LONGEST_OPUS_SECONDS = 0.12


# The third and fourth byte of a frame's header, without what is reserved.
_SIZES_AND_RATES = [byte for byte in range(256) if byte >> 4 != 0 and byte & 15 != 15]
_CHANNELS_AND_BITS = [byte for byte in range(256) if byte >> 4 < 11 and byte >> 1 & 7 != 3 and not byte & 1]
_FLAC_FRAME = re.compile(
    b"\xff[\xf8\xf9]"
    + b"".join(b"[" + b"".join(re.escape(bytes([b])) for b in allowed) + b"]"
               for allowed in (_SIZES_AND_RATES, _CHANNELS_AND_BITS)),
    re.DOTALL,
)  # fmt: skip
_FLAC_RATES = (0, 88_200, 176_400, 192_000, 8000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)
_LONGEST_HEADER = 16
MOST_FLAC_FRAMES = 300_000


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
    for number, candidate in enumerate(_FLAC_FRAME.finditer(data, start)):
        if number > MOST_FLAC_FRAMES:
            raise ValueError("too many frames")
        if candidate.start() >= end:
            samples, own_rate, size = _flac_frame(data[candidate.start() : candidate.start() + _LONGEST_HEADER])
            seconds += samples / (own_rate or rate)
            end = candidate.start() + size
    return seconds


def _flac_frame(head: bytes) -> tuple[int, float, int]:
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
        rate = _FLAC_RATES[rate_code]
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


def opus_seconds(packet: bytes) -> float:
    """Return how long a packet of Opus lasts, by its first two bytes (RFC 6716, section 3)."""
    if not packet:
        return 0.0
    config, code = packet[0] >> 3, packet[0] & 3
    if config < 12:
        frame = (10.0, 20.0, 40.0, 60.0)[config & 3]
    elif config < 16:
        frame = (10.0, 20.0)[config & 1]
    else:
        frame = (2.5, 5.0, 10.0, 20.0)[config & 3]
    frames = (1, 2, 2)[code] if code < 3 else packet[1] & 0x3F if len(packet) > 1 else 0
    return frames * frame / 1e3


def _vorbis_packet_seconds(head: bytes) -> float:
    """Return the longest packet's seconds, by Vorbis's identification header. Which packets are short is known only to
    a decoder that has read all of the setup header; its end alone can be read in two ways."""
    return (1 << (head[28] >> 4)) / 2 / int(struct.unpack_from("<I", head, 12)[0])


class _OggStream:
    """One logical stream. `head`: its first packet's beginning; `packets` after the headers; `seconds` of Opus."""

    def __init__(self) -> None:
        self.head, self.packets, self.granule = b"", 0, 0
        self.seconds = 0.0
        self._is_inside = False

    def add(self, data: bytes, at: int, lacing: bytes, granule: int) -> None:
        """Count the packets of a page whose body begins at `at`."""
        self.granule = max(self.granule, granule)
        for size in lacing:
            if not self._is_inside:
                if not self.head:
                    self.head = data[at : at + 128]
                self.packets += 1
                if self.packets > 2:  # before are two headers
                    self.seconds += opus_seconds(data[at : at + 2])
            self._is_inside = size == 255
            at += size

    def readings(self) -> tuple[float, float] | None:
        """Return the seconds by the last page's position and by the packets; None if it is no audio that is known."""
        if self.head.startswith(b"OpusHead"):
            skipped = struct.unpack_from("<H", self.head, 10)[0]
            return max(0, self.granule - skipped) / OPUS_HERTZ, self.seconds
        if self.head.startswith(b"\x01vorbis"):
            rate = struct.unpack_from("<I", self.head, 12)[0]
            return self.granule / rate, max(0, self.packets - 3) * _vorbis_packet_seconds(self.head)
        if self.head.startswith(b"Speex   "):
            rate, mode = struct.unpack_from("<II", self.head, 36)
            frames = struct.unpack_from("<I", self.head, 64)[0]
            samples = max(1, frames) * (160 << min(mode, 2))
            return self.granule / rate, max(0, self.packets - 2) * samples / rate
        return None


def ogg_readings(data: bytes, start: int) -> list[float]:
    """Return the seconds of all streams together by their positions, and by their packets."""
    streams: dict[tuple[bytes, int], _OggStream] = {}
    chains: dict[bytes, int] = {}
    at, steps = start, 0
    while steps < MOST_STEPS:
        at = data.find(b"OggS", at)
        if at < 0 or at + 27 > len(data):
            break
        serial, granule = data[at + 14 : at + 18], struct.unpack_from("<q", data, at + 6)[0]
        if data[at + 5] & 2:  # the first page of a stream; another may follow with the same number
            chains[serial] = chains.get(serial, 0) + 1
        body = at + 27 + data[at + 26]
        stream = streams.setdefault((serial, chains.get(serial, 0)), _OggStream())
        lacing = data[at + 27 : body]
        stream.add(data, body, lacing, granule)
        at, steps = body + sum(lacing), steps + _STEPS_OF_A_PAGE + len(lacing)
    else:
        raise ValueError("too many pages")
    if any(stream.head.startswith(b"\x7fFLAC") for stream in streams.values()):
        return flac_readings(data, data.index(b"fLaC", start))
    readings = [pair for stream in streams.values() if (pair := stream.readings()) is not None]
    by_packets = sum(seconds for _, seconds in readings)
    # A live recording's positions may begin anywhere; they are never more than its packets.
    return [min(by_packets, sum(seconds for seconds, _ in readings)), by_packets]


_BOXES = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf"}
_SAMPLES = {
    b"mp4a": 1024, b"alac": 4096, b"Opus": 5760, b"fLaC": 65_535, b".mp3": 1152, b"ac-3": 1536, b"ec-3": 1536,
    b"samr": 160, b"sawb": 320, b"sowt": 1, b"twos": 1, b"lpcm": 1, b"ipcm": 1, b"fpcm": 1, b"raw ": 1, b"in24": 1,
    b"in32": 1, b"fl32": 1, b"ulaw": 1, b"alaw": 1,
}  # fmt: skip
"""The most audio samples that one sample of MP4 holds, by its coding."""
_LEAST_HERTZ = 1000
_UNKNOWN = (0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF)
_AAC_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8000, 7350)


class _Track:
    """A track of MP4: what its boxes say. `ticks`: how long its samples last, in `timescale`."""

    def __init__(self) -> None:
        self.number, self.timescale, self.duration = 0, 0, 0
        self.samples, self.ticks, self.default_ticks = 0, 0, 0
        self.is_audio, self.coding, self.rate = False, b"", 0.0

    def readings(self) -> Iterator[float]:
        if not self.timescale or self.coding not in _SAMPLES or not self.rate:
            raise ValueError("an audio track of an unknown coding")
        if self.duration not in _UNKNOWN:
            yield self.duration / self.timescale
        yield self.ticks / self.timescale
        yield self.samples * _SAMPLES[self.coding] / self.rate


def mp4_readings(data: bytes, start: int) -> list[float]:
    """Return the seconds of the longest audio track by its header, its tables of samples, and its count of them."""
    tracks: dict[int, _Track] = {}
    track, defaults, fragment = _Track(), dict[int, int](), 0
    boxes = _boxes(data, start, len(data))
    for kind, at, end in islice(boxes, MOST_STEPS):
        if kind == b"trak":
            track = _Track()
        elif kind == b"tkhd":
            track.number = struct.unpack_from(">I", data, at + (20 if data[at] else 12))[0]
            tracks[track.number] = track
        elif kind == b"mdhd":
            form, where = (">IQ", at + 20) if data[at] else (">II", at + 12)
            track.timescale, track.duration = struct.unpack_from(form, data, where)
        elif kind == b"hdlr":
            track.is_audio = track.is_audio or data[at + 8 : at + 12] == b"soun"
        elif kind == b"stsd":
            track.coding, track.rate = _coding(data, at, end)
        elif kind == b"stts":
            entries = data[at + 8 : at + 8 + (end - at - 8) // 8 * 8]
            entries = entries[: struct.unpack_from(">I", data, at + 4)[0] * 8]
            track.ticks += sum(count * ticks for count, ticks in struct.iter_unpack(">II", entries))
        elif kind in (b"stsz", b"stz2"):
            size, count = struct.unpack_from(">II", data, at + 4)
            track.samples += min(count, len(data) // max(1, size if kind == b"stsz" else 1))
        elif kind == b"trex":
            defaults[struct.unpack_from(">I", data, at + 4)[0]] = struct.unpack_from(">I", data, at + 12)[0]
        elif kind == b"tfhd":
            fragment = struct.unpack_from(">I", data, at + 4)[0]
            flags, skipped = data[at + 3], at + 8 + 8 * (data[at + 3] & 1) + 2 * (data[at + 3] & 2)
            ticks = struct.unpack_from(">I", data, skipped)[0] if flags & 8 else defaults.get(fragment, 0)
            tracks.setdefault(fragment, _Track()).default_ticks = ticks
        elif kind == b"trun":
            _add_run(tracks.setdefault(fragment, _Track()), data, at, end)
    if next(boxes, None) is not None:
        raise ValueError("too many boxes")
    return [seconds for track in tracks.values() if track.is_audio for seconds in track.readings() if seconds]


def _boxes(data: bytes, start: int, end: int, depth: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind and the content's place of each box, those inside others after these. Raises `ValueError`."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            size, head = struct.unpack_from(">Q", data, start + 8)[0], 16
        size = size or end - start
        if size < head or depth > 8:
            raise ValueError("a box that is smaller than its head, or too deep")
        yield kind, start + head, min(start + size, end)
        if kind in _BOXES:
            yield from _boxes(data, start + head, min(start + size, end), depth + 1)
        start += size


def _coding(data: bytes, at: int, end: int) -> tuple[bytes, float]:
    """Return the coding of a track and its lowest sampling rate: AAC has it in its own description, too."""
    coding, rate = data[at + 12 : at + 16], struct.unpack_from(">I", data, at + 40)[0] / 65_536
    if coding == b"Opus":
        return coding, OPUS_HERTZ
    described = data.find(b"esds", at, end)
    rates = [rate] if rate else []
    if coding == b"mp4a" and described >= 0:
        rates += _aac_rates(data[described:end])
    if coding in (b"samr", b"sawb"):
        rates = [8000.0 if coding == b"samr" else 16_000.0]
    return coding, min((hertz for hertz in rates if hertz >= _LEAST_HERTZ), default=0.0)


def _aac_rates(description: bytes) -> Iterator[float]:
    """Yield the sampling rate of AAC's own description (ISO 14496-1, tag 5), if it has one."""
    at = description.find(b"\x05", description.find(b"\x04") + 14) + 1
    while at and description[at : at + 1] == b"\x80":
        at += 1
    if at:
        yield from _config_rates(description[at + 1 : at + 3])


def _add_run(track: _Track, data: bytes, at: int, end: int) -> None:
    """Count the samples of a fragment's run."""
    flags, count = struct.unpack_from(">II", data, at)
    first = at + 8 + 4 * bool(flags & 1) + 4 * bool(flags & 4)
    width = 4 * sum(bool(flags & bit) for bit in (0x100, 0x200, 0x400, 0x800))
    count = min(count, (end - first) // width if width else len(data))
    track.samples += count
    if flags & 0x100:
        runs = struct.iter_unpack(f">I{width - 4}x", data[first : first + width * count])
        track.ticks += sum(ticks for (ticks,) in runs)
    else:
        track.ticks += count * track.default_ticks


_SEGMENT, _INFO, _TRACKS, _TRACK, _AUDIO, _CLUSTER, _GROUP = (
    0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE1, 0x1F43B675, 0xA0
)  # fmt: skip
_MASTERS = {_SEGMENT, _INFO, _TRACKS, _TRACK, _AUDIO, _CLUSTER, _GROUP}
_SCALE, _DURATION, _NUMBER, _TYPE, _CODEC, _PRIVATE, _RATE, _CHANNELS, _BITS, _ENCODINGS = (
    0x2AD7B1, 0x4489, 0xD7, 0x83, 0x86, 0x63A2, 0xB5, 0x9F, 0x6264, 0x6D80
)  # fmt: skip
_TIME, _SIMPLE_BLOCK, _BLOCK = 0xE7, 0xA3, 0xA1
_AUDIO_TYPE = 2


class _MatroskaTrack:
    """A track of Matroska. `seconds`: of its packets."""

    def __init__(self) -> None:
        self.type, self.codec, self.private = 0, "", b""
        self.rate, self.channels, self.bits = 8000.0, 1, 0
        self.seconds = 0.0

    def packet_seconds(self, packet: bytes, size: int, frames: int) -> float:
        """Return how long a block of `frames` packets lasts; `packet` begins it, of `size` bytes."""
        if self.codec == "A_OPUS":
            return opus_seconds(packet) if frames == 1 else frames * LONGEST_OPUS_SECONDS
        if self.codec == "A_VORBIS":
            head = self.private[self.private.index(b"\x01vorbis") :]
            return frames * _vorbis_packet_seconds(head)
        if self.codec.startswith("A_AAC"):
            return frames * 1024 / min(self.rate, *_config_rates(self.private))
        if self.codec.startswith("A_MPEG/"):
            return frames * 1152 / self.rate
        if self.codec.startswith("A_PCM/") and self.bits:
            return size * 8 / (self.bits * self.channels * self.rate)
        if self.codec == "A_FLAC":
            return 0.0
        raise ValueError("an audio track of an unknown coding")


def _config_rates(config: bytes) -> list[float]:
    if len(config) < 2 or (index := (config[0] & 7) << 1 | config[1] >> 7) >= len(_AAC_RATES):
        return []
    return [float(_AAC_RATES[index])]


def matroska_readings(data: bytes, start: int) -> list[float]:
    """Return the seconds by the header, by the last block's time, and of the longest track's packets."""
    tracks: dict[int, _MatroskaTrack] = {}
    track, scale, duration, time, last = _MatroskaTrack(), 1_000_000, 0.0, 0, 0
    elements = _elements(data, start)
    for name, at, end in islice(elements, MOST_STEPS):
        if name == _TRACK:
            track = _MatroskaTrack()
        elif name in (_SIMPLE_BLOCK, _BLOCK):
            number, at = _number(data, at)
            last = max(last, time + struct.unpack_from(">h", data, at)[0])
            frames, at = (data[at + 3] + 1, at + 4) if data[at + 2] & 6 else (1, at + 3)
            block_track = tracks.get(number)
            if block_track is not None and block_track.type == _AUDIO_TYPE:
                block_track.seconds += block_track.packet_seconds(data[at : min(at + 2, end)], max(0, end - at), frames)
        elif name == _SCALE:
            scale = _whole(data, at, end)
        elif name == _DURATION:
            duration = _real(data, at, end)
        elif name == _TIME:
            time = _whole(data, at, end)
        elif name == _NUMBER:
            tracks[_whole(data, at, end)] = track
        elif name == _TYPE:
            track.type = _whole(data, at, end)
        elif name == _CODEC:
            track.codec = data[at:end].rstrip(b"\0").decode("ascii", "replace")
        elif name == _PRIVATE:
            track.private = data[at:end]
        elif name == _RATE:
            track.rate = _real(data, at, end) or track.rate
        elif name == _CHANNELS:
            track.channels = _whole(data, at, end) or 1
        elif name == _BITS:
            track.bits = _whole(data, at, end)
        elif name == _ENCODINGS:
            raise ValueError("packets that are compressed again")
    if next(elements, None) is not None:
        raise ValueError("too many elements")
    heard = [track for track in tracks.values() if track.type == _AUDIO_TYPE]
    readings = [duration * scale / 1e9, last * scale / 1e9, max((track.seconds for track in heard), default=0.0)]
    readings += [flac_seconds(data, start, track.rate) for track in heard if track.codec == "A_FLAC"]
    return [seconds for seconds in readings if seconds > 0] if heard else []


def _elements(data: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield the id and the content's place of each element; those inside others follow these. Raises `ValueError`."""
    at = start
    while at + 2 <= len(data):
        width = 9 - data[at].bit_length()
        if width > 4:
            # As decoders do: what follows is lost up to the next cluster.
            at = data.find(_CLUSTER.to_bytes(4, "big"), at)
            if at < 0:
                return
            continue
        name = int.from_bytes(data[at : at + width], "big")
        size, at = _number(data, at + width)
        yield name, at, min(at + size, len(data))
        at = at if name in _MASTERS else at + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    width = 9 - data[at].bit_length()
    if width > 8:
        raise ValueError("no number")
    return int.from_bytes(data[at : at + width], "big") & (1 << 7 * width) - 1, at + width


def _whole(data: bytes, at: int, end: int) -> int:
    return int.from_bytes(data[at : min(end, at + 8)], "big")


def _real(data: bytes, at: int, end: int) -> float:
    value = struct.unpack_from(">f" if end - at == 4 else ">d", data, at)[0] if end - at in (4, 8) else 0.0
    return float(value) if math.isfinite(value) and value > 0 else 0.0
