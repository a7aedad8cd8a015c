"""Silence in every container that is read, made here byte by byte, so that any header can lie about it."""

import struct
from collections.abc import Sequence


def wav(seconds: float, rate: int = 8000, *, data_size: int | None = None, more: bytes = b"") -> bytes:
    """8 bits, one channel. `data_size`: what the header says of the data; `more`: chunks before them."""
    samples = bytes(int(seconds * rate))
    size = len(samples) if data_size is None else data_size
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate, 1, 8)
    body = b"WAVE" + head + more + struct.pack("<4sI", b"data", size) + samples
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def _crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ (0x07 if crc & 0x80 else 0)) & 0xFF
    return crc


def flac(seconds: float, rate: int = 16_000, *, total: int | None = None, block: int = 32_768) -> bytes:
    """Frames of one constant sample: about 12 bytes each. `total`: samples that the header says."""
    samples = int(seconds * rate)
    told = samples if total is None else total
    info = struct.pack(">HH", block, block) + bytes(6) + (rate << 44 | 15 << 36 | told).to_bytes(8, "big") + bytes(16)
    frames = []
    while samples > 0:
        size = min(block, samples)
        number = min(len(frames), 127)
        head = b"\xff\xf8" + bytes([0x70, 0x08, number]) + struct.pack(">H", size - 1)
        frames.append(head + bytes([_crc8(head)]) + b"\x00\x00\x00" + b"\x00\x00")
        samples -= size
    return b"fLaC" + b"\x80" + len(info).to_bytes(3, "big") + info + b"".join(frames)


def mp3(seconds: float, *, xing_frames: int | None = None, junk: bytes = b"", tag: bytes = b"") -> bytes:
    """MPEG 2, layer III, 16 kHz, 8 kbit/s: 36 bytes for 36 ms. `xing_frames`: what a header of a variable bit rate
    says; `junk` after each tenth frame."""
    frame = b"\xff\xf3\x18\xc0" + bytes(32)
    first = frame if xing_frames is None else frame[:13] + b"Xing" + struct.pack(">II", 1, xing_frames) + bytes(11)
    count = round(seconds / 0.036)
    return tag + first + b"".join(frame + (junk if index % 10 == 0 else b"") for index in range(count - 1))


def id3(size: int) -> bytes:
    """A tag with `size` bytes, at most 127."""
    return b"ID3\x04\x00\x00\x00\x00\x00" + bytes([size]) + bytes(size)


def adts(seconds: float) -> bytes:
    """AAC at 16 kHz: frames of 1,024 samples in 13 bytes."""
    frame = bytes([0xFF, 0xF1, 8 << 2 | 1 << 6, 0x40, 13 >> 3, (13 & 7) << 5 | 0x1F, 0xFC]) + bytes(6)
    return frame * round(seconds * 16_000 / 1024)


def ogg(packets: Sequence[bytes], granule: int, *, serial: int = 7) -> bytes:
    """Each of the packets, of fewer than 255 bytes, in a page of up to 200; `granule` is the position of the last."""
    pages = []
    groups = [packets[:1], packets[1:2]] + [packets[first : first + 200] for first in range(2, len(packets), 200)]
    for number, group in enumerate(groups):
        at = granule if number == len(groups) - 1 else 0
        head = struct.pack("<4sBBqIII", b"OggS", 0, 2 * (number == 0), at, serial, number, 0)
        pages.append(head + bytes([len(group)]) + bytes(map(len, group)) + b"".join(group))
    return b"".join(pages)


def opus(seconds: float, *, granule: int | None = None, packet: bytes = b"\xfb\x06", length: float = 0.12) -> bytes:
    """Opus in Ogg: two bytes for 120 ms. `granule`: what the last page says."""
    head = b"OpusHead\x01\x01" + struct.pack("<HIhB", 0, 48_000, 0, 0)
    count = round(seconds / length)
    return ogg(
        [head, b"OpusTags" + bytes(8), *[packet] * count], round(seconds * 48_000) if granule is None else granule
    )


def vorbis(seconds: float, *, granule: int | None = None, rate: int = 16_000) -> bytes:
    """Vorbis in Ogg, with packets of 1,024 samples."""
    head = b"\x01vorbis" + struct.pack("<IBIIIIBB", 0, 1, rate, 0, 0, 0, 0xB8, 1)
    packets = [head, b"\x03vorbis" + bytes(9), b"\x05vorbis" + bytes(9), *[b"\x00\x00"] * round(seconds * rate / 1024)]
    return ogg(packets, round(seconds * rate) if granule is None else granule)


def box(kind: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _esds(rate_index: int) -> bytes:
    config = struct.pack(">H", 2 << 11 | rate_index << 7 | 1 << 3)
    decoder = b"\x04" + bytes([13 + 4]) + bytes(13) + b"\x05\x02" + config
    return box(b"esds", bytes(4), b"\x03" + bytes([3 + len(decoder)]) + bytes(3) + decoder)


def _track(samples: int, rate: int, ticks: int, duration: int) -> bytes:
    entry = box(
        b"mp4a", bytes(6), b"\x00\x01", bytes(8), struct.pack(">HHHH", 1, 16, 0, 0), struct.pack(">I", rate << 16),
        _esds(8),
    )  # fmt: skip
    table = box(
        b"stbl",
        box(b"stsd", struct.pack(">II", 0, 1), entry),
        box(b"stts", struct.pack(">IIII", 0, 1, samples, ticks) if samples else struct.pack(">II", 0, 0)),
        box(b"stsz", struct.pack(">III", 0, 0, samples), bytes(4 * samples)),
    )
    media = box(
        b"mdia",
        box(b"mdhd", struct.pack(">IIIIII", 0, 0, 0, rate, duration, 0)),
        box(b"hdlr", bytes(8), b"soun", bytes(13)),
        box(b"minf", table),
    )
    return box(b"trak", box(b"tkhd", struct.pack(">IIII", 0, 0, 0, 1), bytes(68)), media)


def mp4(seconds: float, *, ticks: int = 1024, duration: int | None = None, fragments: bool = False) -> bytes:
    """AAC at 16 kHz. `ticks`: what the table says of each sample, of 1,024; `duration`: what the track's header says.
    `fragments`: the samples are in a fragment."""
    rate = 16_000
    count = round(seconds * rate / 1024)
    told = count * 1024 if duration is None else duration
    kind = box(b"ftyp", b"M4A \x00\x00\x00\x00")
    if not fragments:
        return kind + box(b"moov", _track(count, rate, ticks, told)) + box(b"mdat", bytes(4 * count))
    extends = box(b"mvex", box(b"trex", struct.pack(">IIIIII", 0, 1, 1, ticks, 0, 0)))
    run = box(b"traf", box(b"tfhd", struct.pack(">II", 0, 1)), box(b"trun", struct.pack(">II", 0, count)))
    return (
        kind + box(b"moov", _track(0, rate, ticks, told), extends) + box(b"moof", run) + box(b"mdat", bytes(4 * count))
    )


def _element(name: int, content: bytes, *, endless: bool = False) -> bytes:
    head = name.to_bytes((name.bit_length() + 7) // 8, "big")
    return head + (b"\x01" + b"\xff" * 7 if endless else (1 << 28 | len(content)).to_bytes(4, "big")) + content


def webm(seconds: float, *, duration: float | None = None, endless: bool = True) -> bytes:
    """Opus in WebM, as browsers record it: packets of 20 ms, a second in a cluster. `duration`: what the header says,
    in seconds; `endless`: sizes are unknown. The blocks have the time of their cluster."""
    told = b"" if duration is None else _element(0x4489, struct.pack(">d", duration * 1000))
    track = _element(0xD7, b"\x01") + _element(0x83, b"\x02") + _element(0x86, b"A_OPUS")
    audio = _element(0xE1, _element(0xB5, struct.pack(">f", 48_000.0)) + _element(0x9F, b"\x01"))
    parts = [_element(0x1549A966, _element(0x2AD7B1, b"\x0f\x42\x40") + told)]
    parts.append(_element(0x1654AE6B, _element(0xAE, track + audio)))
    for second in range(int(seconds)):
        blocks = b"".join(_element(0xA3, b"\x81\x00\x00\x00\xf8\x00\x00") for _ in range(50))
        time = _element(0xE7, (second * 1000).to_bytes(4, "big"))
        parts.append(_element(0x1F43B675, time + blocks, endless=endless))
    head = _element(0x1A45DFA3, _element(0x4282, b"webm"))
    return head + _element(0x18538067, b"".join(parts), endless=endless)
