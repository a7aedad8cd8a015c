"""How long audio is read to last: of honest files, of headers that lie, and of what is no audio."""

import pytest

from tests.tiers.audio import samples as made
from tiers.audio.duration import audio_duration


@pytest.mark.parametrize(
    "data",
    [
        made.wav(60),
        made.flac(60),
        made.mp3(60),
        made.mp3(60, tag=made.id3(100)),
        made.mp3(60, junk=b"\x00\xff\x01"),
        made.adts(60),
        made.opus(60),
        made.opus(60, packet=b"\xf8" + bytes(60), length=0.02),
        made.vorbis(60),
        made.mp4(60),
        made.mp4(60, fragments=True),
        made.webm(60),
        made.webm(60, duration=60, endless=False),
        made.webm(60) + bytes(1000),
    ],
)
def test_an_honest_file_is_as_long_as_its_audio(data: bytes) -> None:
    duration = audio_duration(data)
    assert duration is not None
    assert duration.least == pytest.approx(60, rel=0.02)
    assert duration.most == pytest.approx(60, rel=0.01)


@pytest.mark.parametrize(
    "data",
    [
        made.wav(60, data_size=8),
        made.wav(60, data_size=0),
        made.wav(60, data_size=0xFFFF_FFFF),
        made.flac(60, total=1),
        made.flac(60, total=0),
        made.mp3(60, xing_frames=1),
        made.opus(60, granule=1),
        made.vorbis(60, granule=1),
        made.mp4(60, duration=1),
        made.mp4(60, ticks=1, duration=1),
        made.mp4(60, ticks=1, duration=1, fragments=True),
        made.webm(60, duration=0.1),
        made.webm(1, duration=0.1) + bytes(100) + made.webm(59)[60:],
        made.webm(60, duration=0.1, endless=False),
    ],
)
def test_a_header_that_says_less_than_the_packets_does_not_shorten_the_longest_reading(data: bytes) -> None:
    duration = audio_duration(data)
    assert duration is not None
    assert duration.most == pytest.approx(60, rel=0.01)


def test_bytes_that_a_wav_file_hides_in_another_chunk_are_read_as_audio() -> None:
    hidden = b"JUNK" + (240_000).to_bytes(4, "little") + bytes(240_000)
    duration = audio_duration(made.wav(1, more=hidden))
    assert duration is not None
    assert duration.least == pytest.approx(1)
    assert duration.most == pytest.approx(31, rel=0.01)


def test_streams_one_after_another_in_one_ogg_file_are_added() -> None:
    duration = audio_duration(made.opus(30) + made.opus(40))
    assert duration is not None
    assert duration.most == pytest.approx(70, rel=0.01)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF" + bytes(32_000),
        b"fLaC" + bytes(100),
        b"OggS" + bytes(100),
        b"\x1aE\xdf\xa3" + bytes(100),
        made.box(b"ftyp", b"M4A "),
        b"#!AMR\n" + bytes(1000),
        b"no audio at all " * 100,
        b"#!AMR\n" + bytes(50_000) + made.mp3(1),
        made.wav(1)[:30],
        made.vorbis(1, rate=16_000).replace((16_000).to_bytes(4, "little"), bytes(4)),
        b"\xff" * 10_000,
    ],
)
def test_what_is_no_audio_or_of_another_container_has_no_duration(data: bytes) -> None:
    assert audio_duration(data) is None
