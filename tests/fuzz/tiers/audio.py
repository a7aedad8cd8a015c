"""Audio of callers: how long it lasts is a plausible time or unknown, and is found within the limits."""

import math

from tests.hostile.target import fuzz_target
from tests.tiers.audio import samples
from tiers.audio.duration import audio_duration

SEEDS = (
    samples.wav(1),
    samples.flac(60),
    samples.mp3(4, tag=samples.id3(20)),
    samples.adts(4),
    samples.opus(30),
    samples.vorbis(30),
    samples.mp4(10),
    samples.mp4(10, fragments=True),
    samples.webm(3, duration=3),
)
WORDS = (
    b"OggS",
    b"fLaC",
    b"ID3",
    b"RIFF",
    b"data",
    b"fmt ",
    b"moov",
    b"trun",
    b"stts",
    b"\xff\xf8",
    b"\xff\xf3\x18\xc0",
)


@fuzz_target(SEEDS, WORDS)
def durations(data: bytes) -> str:
    """Read how long audio lasts."""
    duration = audio_duration(data)
    if duration is None:
        return "unknown"
    assert 0.0 < duration.least <= duration.most < math.inf
    return "known"
