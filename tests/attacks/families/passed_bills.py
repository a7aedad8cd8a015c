"""Requests to endpoints that are passed through which cost the provider more than they look: by headers of audio that
lie, by forms and JSON that two parsers read differently, by long documents, and by prices above a stated maximum."""

import json
import math
import re
from collections.abc import Callable, Iterator
from random import Random

from tests.attacks.exchange import Answer
from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import Target
from tests.hostile.target import Outcome, attack_class
from tests.tiers.audio import samples

# Of the target's catalogue: $1 per hour of audio, image, thousand searches or inputs, and million characters.
MODEL = "passed"
NEAR = 0.98
FORM = "multipart/form-data; boundary=b"
_LINE = "\r\n"


def _sent(target: Target, path: str, body: bytes, kind: str, draw: Random) -> tuple[Answer, bool, float]:
    """Send the request, with a maximum cost at times; return the answer, whether it left, and the maximum."""
    most = draw.choice((math.inf, math.inf, 10.0, 0.01, 0.0001))
    headers = {} if most == math.inf else {"x-aio-max-cost": str(most)}
    before = target.upstream.asked
    answer = target.ask("POST", path, body, headers=headers, content_type=kind)
    return answer, target.upstream.asked != before, most


def _gain(answer: Answer, left: bool, most: float, usd: float) -> str:
    """What is wrong with the bill of a request that costs the provider `usd`."""
    if not left:
        return ""
    if usd * NEAR > most:
        return f"${usd} passed a maximum of ${most}"
    billed = float(answer.headers.get("x-aio-cost-usd", "0"))
    return f"${billed} billed for ${usd}" if billed < usd * NEAR else ""


def _part(name: str, content: bytes, more: str = "", heads: str = "") -> bytes:
    head = f'--b{_LINE}Content-Disposition: form-data; name="{name}"{more}{_LINE}{heads}{_LINE}'
    return head.encode() + content + _LINE.encode()


_AUDIO: tuple[Callable[[int, Random], bytes], ...] = (
    lambda seconds, draw: samples.wav(seconds, 1000, data_size=draw.choice((None, 0, 8, 0xFFFF_FFFF))),
    lambda seconds, draw: samples.flac(seconds, total=draw.choice((None, 0, 1)), block=draw.choice((4096, 32_768))),
    lambda seconds, draw: samples.mp3(seconds, xing_frames=draw.choice((None, 1)), tag=samples.id3(99)),
    lambda seconds, draw: samples.adts(seconds),
    lambda seconds, draw: samples.opus(seconds, granule=draw.choice((None, 0, 1, 48_000))),
    lambda seconds, draw: samples.opus(seconds // 2) + samples.opus(seconds - seconds // 2, granule=1),
    lambda seconds, draw: samples.vorbis(seconds, granule=draw.choice((None, 0, 1))),
    lambda seconds, draw: samples.mp4(seconds, ticks=draw.choice((1024, 1)), duration=draw.choice((None, 1))),
    lambda seconds, draw: samples.mp4(seconds, ticks=1, duration=1, fragments=True),
    lambda seconds, draw: samples.webm(seconds, duration=draw.choice((None, 0.1)), endless=draw.random() < 0.5),
)  # fmt: skip


@attack_class("audio that looks shorter than it is", 300, "open")
def audio(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Silence in every container, most with a header that says less: all of its seconds are billed, or it stays."""
    for number in range(count):
        seconds = draw.choice((30, 61, 600, 1800))
        content = _AUDIO[number % len(_AUDIO)](seconds, draw)
        form = _part("model", MODEL.encode()) + _part("file", content, f'; filename="a.{draw.choice(("wav", "mp3"))}"')
        if draw.random() < 0.5:
            form += _part("response_format", draw.choice((b"text", b"json", b"srt")))
        path = draw.choice(("/v1/audio/transcriptions", "/v1/audio/translations"))
        answer, left, most = _sent(target, path, form + b"--b--\r\n", FORM, draw)
        bypass = _gain(answer, left, most, seconds / 3600)
        if most == math.inf and not left:
            bypass = f"an honest request was refused: {answer.status} {answer.text[:200]}"
        yield outcome_of(answer, f"{seconds} s #{number % len(_AUDIO)} {content[:12]!r}", bypass)


_NAMES = ("n", "n", "n", "n[]", "n[0]", "N", " n", "n ", "\tn", "num_images", "batch_size", "num_outputs", "samples")
_FILES = ("", "", "", '; filename=""', '; filename="a"', "; filename*=utf-8''a")
_HEADS = ("", "", "Content-Type: text/plain; charset=utf-16\r\n", "Content-Transfer-Encoding: base64\r\n", "X-A: 1\r\n")
# Every reading of the forms of servers: names in any case, with brackets and blanks, files or fields.
_COUNTS = re.compile(
    rb'name="?\s*(?:n|num_images|batch_size|num_outputs|samples)\s*(?:\[\d*\])?\s*"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n\s*(\d+)',
    re.IGNORECASE,
)


@attack_class("forms and JSON with two readings", 400, "open")
def readings(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Numbers of images given twice, in other spellings, as files and in other charsets: the most of all readings of
    what the server is sent is billed."""
    for number in range(count):
        if number % 4 == 3:
            pairs = [f'"{draw.choice(_NAMES).strip()}": {draw.randint(1, 10)}' for _ in range(draw.randint(1, 4))]
            fields = [f'"model": "{MODEL}"', '"prompt": "a hat"', *pairs]
            draw.shuffle(fields)
            body, kind, path = f"{{{', '.join(fields)}}}".encode(), "application/json", "/v1/images/generations"
        else:
            parts = [
                _part("model", MODEL.encode()),
                _part("prompt", b"a hat"),
                _part("image", b"x", '; filename="a.png"'),
            ]
            for _ in range(draw.randint(1, 3)):
                value = str(draw.randint(1, 10)).encode()
                parts.append(_part(draw.choice(_NAMES), value, draw.choice(_FILES), draw.choice(_HEADS)))
            draw.shuffle(parts)
            body, kind, path = b"".join(parts) + b"--b--\r\n", FORM, "/v1/images/edits"
        answer, left, most = _sent(target, path, body, kind, draw)
        yield outcome_of(answer, f"{path} {body[:200]!r}", _gain(answer, left, most, _images(target) if left else 0.0))


def _images(target: Target) -> int:
    """The most images that a server may read in what it was sent."""
    raw = target.upstream.raw
    if not target.upstream.last:
        return max([1, *map(int, _COUNTS.findall(raw))])
    names = {name.strip() for name in _NAMES}
    pairs = json.loads(raw, object_pairs_hook=lambda pairs: pairs)
    return max([1, *(value for name, value in pairs if name in names and isinstance(value, int))])


@attack_class("long work in few units", 150, "open")
def long_work(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Long documents, many inputs and long speeches: as many units are billed as the provider counts."""
    for number in range(count):
        kind = number % 3
        if kind == 0:
            sizes = [draw.choice((1, 400, 5000, 200_000)) for _ in range(draw.choice((1, 1, 3, 150)))]
            if sum(sizes) > 3_000_000:
                sizes = sizes[:3]
            documents = [
                "a " * (size // 2) if draw.random() < 0.5 else {"title": "t", "text": "a " * (size // 2)}
                for size in sizes
            ]
            # A token is a word here.
            parts = sum(max(1, math.ceil(size / 2 / 500)) for size in sizes)
            body = {"query": "q", "documents": documents}
            path, usd = "/v1/rerank", math.ceil(parts / 100) / 1000
        elif kind == 1:
            inputs = ["a"] * draw.choice((1, 20, 2000))
            path, body, usd = "/v1/moderations", {"input": inputs}, len(inputs) / 1000
        else:
            text = draw.choice(("a", "é", "语", "😀")) * draw.choice((1, 500, 20_000))
            path, body, usd = "/v1/audio/speech", {"input": text, "voice": "a"}, len(text) / 1e6
        answer, left, most = _sent(target, path, json.dumps({"model": MODEL} | body).encode(), "application/json", draw)
        yield outcome_of(answer, f"{path} ${usd}", _gain(answer, left, most, usd))
