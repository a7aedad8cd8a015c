"""The table of the endpoints that are passed through: what of each is read, counted and billed. All else goes on as it
is."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.base.errors import bad_request
from gateway.base.numbers import whole_number
from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN
from quality.records.record import PassedApi
from tiers.catalog.tier_spec import ServedEndpoint
from tiers.conversation import AUDIO_TOKENS_PER_SECOND

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
MOST_IMAGES = 10
ImageCount = Annotated[int, Meta(ge=1, le=MOST_IMAGES)]
# Cohere's unit of a search: a query with up to 100 documents; one that has more than 500 tokens with the query is
# split, and each part counts as a document (https://cohere.com/pricing, 2026-11).
DOCUMENTS_OF_A_SEARCH, TOKENS_OF_A_DOCUMENT, LEAST_TOKENS_OF_A_PART = 100, 500, 100
# Bytes of a second of a file whose length cannot be read: what is billed if its server does not tell, and the fewest,
# at Opus' lowest rate of 6 kbit/s. Keys with a budget or a maximum cost may not send one.
USUAL_AUDIO_BYTES, FEWEST_AUDIO_BYTES = 16_000, 750
# Tokens of a second of speech. Input: OpenAI's 10, Mistral's 12.5, Gemini's 32. Output of speech: OpenAI's 20.8
# ($0.015 a minute at $12 a million), Gemini's 25. Of a transcript: fast speech has 5 words a second.
MOST_AUDIO_TOKENS_A_SECOND = 32.0
SPEECH_TOKENS_A_SECOND = 25.0
TRANSCRIPT_TOKENS_A_SECOND, MOST_TRANSCRIPT_TOKENS_A_SECOND = 5.0, 16.0
# Audio tokens of a character: six of a text token, and one of slow speech in Chinese; and of the silence around.
SPEECH_TOKENS_A_CHARACTER, MOST_SPEECH_TOKENS_A_CHARACTER, MOST_SILENCE_TOKENS = 1.5, 16.0, 1500.0
# A picture that is read: OpenAI's high fidelity takes up to 6,500 tokens besides its tiles.
IMAGE_TOKENS, MOST_IMAGE_TOKENS = 1024.0, 8192.0
# Of an image that is drawn, by quality: those of the GPT Image models up to 1536 x 1024, and the most of any size.
DRAWN_TOKENS = {"low": 512.0, "medium": 2048.0, "high": 7168.0}
DRAWN_PIXELS, MOST_DRAWN_TOKENS, PARTIAL_IMAGE_TOKENS = 1536 * 1024, 16_384.0, 100.0
# A server may end up to a second later than the packets, because it rounds; and cut silence that a decoder adds.
LEAST_HEARD, ROUNDING_SECONDS = 0.9, 1.0


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A query and the texts that are put in order by it, in Cohere's and Jina's form."""

    query: str | dict[str, Any]
    documents: Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=10_000)]
    model: ModelName | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None


class ModerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts, or parts with texts and images."""

    input: str | Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=2048)]
    model: ModelName | None = None


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to draw, and how often: `n`, or by another server's name of it."""

    prompt: str
    model: ModelName | None = None
    n: ImageCount | None = None
    num_images: ImageCount | None = None
    num_outputs: ImageCount | None = None
    num_images_per_prompt: ImageCount | None = None
    batch_size: ImageCount | None = None
    samples: ImageCount | None = None
    partial_images: Annotated[int, Meta(ge=0, le=MOST_IMAGES)] | None = None
    size: str | float | None = None
    quality: str | float | None = None
    resolution: str | float | None = None
    aspect_ratio: str | float | None = None
    width: str | float | None = None
    height: str | float | None = None


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text to be spoken."""

    input: Annotated[str, Meta(min_length=1)]
    text: str | None = None
    """Another server's name of the text."""
    model: ModelName | None = None
    instructions: str | None = None


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a form with a file: audio, or an image."""

    file: str
    model: str


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a request makes a server do."""

    units: float
    """What is billed unless the answer says otherwise. The units are from `least` to `most`, which is held, or to
    `visible` where the answer itself shows them.
    """
    least: float = 0.0
    most: float
    visible: float = 0.0
    tokens: dict[str, float]
    """Tokens by kind. They count against a key's limits, and are billed where the price is one of tokens and the answer
    names none.
    """
    most_tokens: dict[str, float]
    """Tokens that are held."""
    words: frozenset[str] = frozenset()
    """The size and quality of images."""
    unreadable: str = ""
    """Why the units of a file are not known; "" where they are."""

    def counted(self, units: object) -> float:
        """Return the units that are billed where the answer tells `units`."""
        try:
            counted = float(units)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return self.units
        if not counted > 0 or counted < self.least:
            return self.units
        return min(counted, max(self.most, self.visible))


class Form(msgspec.Struct, frozen=True):
    """What is read of a form: its fields, each of which comes once, and the content of its files by name."""

    fields: Mapping[str, str]
    files: Mapping[str, list[bytearray]]


class PassedEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint."""

    path: str
    """The path below `/v1` here and below the server's address."""
    serves: ServedEndpoint
    api: PassedApi
    summary: str
    body: type[msgspec.Struct] | None = None
    """The fields of its JSON that are read; None for a form, whose file has one of the names `file`."""
    file: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    """Fields of a form that may come several times, besides those whose name ends with `[]`."""
    refused: tuple[str, ...] = ()
    """Other servers' names of what is counted, which they would take instead."""
    workload: Callable[[Any], Workload]
    """What returns the workload of a body or a form; of a form it may take a second."""
    units: Callable[[Mapping[str, Any]], object] = lambda answer: None
    """What returns the units that an answer names, of whatever type."""


def _tokens(size: float) -> float:
    return size / BYTES_PER_TOKEN


def _size(value: object) -> int:
    """Return the bytes of all texts of a part or a document, the names of its fields among them: at least as many as it
    has tokens. Pictures are counted by themselves."""
    if isinstance(value, dict):
        inside = ((name, content) for name, content in value.items() if not _is_picture(name, content))
        return sum(len(name.encode()) + 3 + _size(content) for name, content in inside)
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value.encode()) if isinstance(value, str) else len(str(value))


def _pictures(value: object) -> int:
    """Return how many pictures a part or a document shows: by address they are short, and they have many tokens."""
    if not isinstance(value, dict):
        return 0
    return sum(1 if _is_picture(name, content) else _pictures(content) for name, content in value.items())


def _is_picture(name: str, content: object) -> bool:
    address = content.get("url") if isinstance(content, dict) else content
    is_address = isinstance(address, str) and address.startswith(("data:", "https:", "http:"))
    return is_address and ("image" in name or "video" in name)


def _rerank(body: RerankRequest) -> Workload:
    query, sizes = _size(body.query), [_size(document) for document in body.documents]
    room = max(TOKENS_OF_A_DOCUMENT - query, LEAST_TOKENS_OF_A_PART)
    parts = sum(max(1, math.ceil(size / room)) for size in sizes)
    read = query * len(sizes) + sum(sizes)
    pictures = sum(map(_pictures, (body.query, *body.documents)))
    return Workload(
        units=math.ceil(parts / DOCUMENTS_OF_A_SEARCH),
        least=math.ceil(len(sizes) / DOCUMENTS_OF_A_SEARCH),
        most=math.ceil(parts / DOCUMENTS_OF_A_SEARCH),
        tokens={"input": _tokens(read) + pictures * IMAGE_TOKENS},
        most_tokens={"input": read + pictures * MOST_IMAGE_TOKENS},
    )


def _searches(answer: Mapping[str, Any]) -> object:
    meta = answer.get("meta")
    billed = meta.get("billed_units") if isinstance(meta, dict) else None
    return billed.get("search_units") if isinstance(billed, dict) else None


def _moderation(body: ModerationRequest) -> Workload:
    inputs = [body.input] if isinstance(body.input, str) else body.input
    size, pictures = (
        sum(map(_size, inputs)),
        sum(map(_pictures, inputs))
        + sum(
            isinstance(part, dict) and part.get("type") == "image_url" and "image_url" not in part for part in inputs
        ),
    )
    return Workload(
        units=len(inputs),
        most=len(inputs),
        tokens={"input": _tokens(size) + pictures * IMAGE_TOKENS},
        most_tokens={"input": size + pictures * MOST_IMAGE_TOKENS},
    )


_COUNTS = ("n", "num_images", "num_outputs", "num_images_per_prompt", "batch_size", "samples")
_FORMS_OF_IMAGES = ("size", "quality", "resolution", "aspect_ratio", "width", "height")
READ_FIELDS = frozenset({"model", "prompt", "partial_images", *_COUNTS, *_FORMS_OF_IMAGES})
"""Of forms."""


def _drawn(prompt: str, fields: Mapping[str, Any], pictures: int) -> Workload:
    """Return what images cost, of a form or of JSON. All of the counts that servers know bind: the greatest."""
    images = max(fields[name] or 1 for name in _COUNTS)
    forms = {name: str(value) for name in _FORMS_OF_IMAGES if (value := fields[name]) is not None}
    each = DRAWN_TOKENS.get(forms.get("quality", ""), DRAWN_TOKENS["high"])
    if forms.keys() - {"size", "quality"} or not _is_usual(forms.get("size")):
        each = MOST_DRAWN_TOKENS
    output = images * (each + PARTIAL_IMAGE_TOKENS * (fields["partial_images"] or 0))
    size = _size(prompt)
    return Workload(
        units=images,
        most=images,
        visible=MOST_IMAGES,
        tokens={"input": _tokens(size), "input_image": pictures * IMAGE_TOKENS, "output": output},
        most_tokens={"input": size, "input_image": pictures * MOST_IMAGE_TOKENS, "output": output},
        words=frozenset(forms.values()),
    )


def _is_usual(size: str | None) -> bool:
    """Return whether an image of this size has at most `DRAWN_PIXELS`; a server chooses one of these by itself."""
    if size in (None, "auto"):
        return True
    width, _, height = str(size).partition("x")
    is_size = all(part.isascii() and part.isdecimal() and len(part) < 6 for part in (width, height))
    return is_size and int(width) * int(height) <= DRAWN_PIXELS


def _image(body: ImageRequest) -> Workload:
    return _drawn(body.prompt, {name: getattr(body, name) for name in body.__struct_fields__}, 0)


def _edit(form: Form) -> Workload:
    fields: dict[str, Any] = {name: form.fields.get(name) for name in _FORMS_OF_IMAGES}
    for name, least in ({"partial_images": 0} | dict.fromkeys(_COUNTS, 1)).items():
        text = form.fields.get(name)
        fields[name] = None if text is None else whole_number(text, name, least, MOST_IMAGES)
    pictures = sum(map(len, form.files.values()))
    return _drawn(form.fields.get("prompt", ""), fields, pictures)


def _images(answer: Mapping[str, Any]) -> object:
    data = answer.get("data")
    return len(data) if isinstance(data, list) else None


def _speech(body: SpeechRequest) -> Workload:
    text = max(body.input, body.text or "", key=len)
    size, characters = _size(text) + _size(body.instructions or ""), len(text)
    most = characters * MOST_SPEECH_TOKENS_A_CHARACTER + MOST_SILENCE_TOKENS
    return Workload(
        units=characters,
        most=characters,
        tokens={"input": _tokens(size), "output": characters * SPEECH_TOKENS_A_CHARACTER},
        most_tokens={"input": size, "output": most},
    )


def _audio(form: Form) -> Workload:
    content = b"".join(part for parts in form.files.values() for part in parts)
    if not content:
        raise bad_request("The file is empty: send some audio.", "file", "empty")
    from tiers.audio.duration import READABLE, audio_duration  # few processes are sent audio

    duration, size = audio_duration(content), _size(form.fields.get("prompt", ""))
    if duration is None:
        least, usual, most = 0.0, len(content) / USUAL_AUDIO_BYTES, len(content) / FEWEST_AUDIO_BYTES
        unreadable = (
            f"It cannot be read how long the file is, and this key has a budget or a maximum cost: send {READABLE}."
        )
    else:
        least, most = duration
        usual, unreadable = most, ""
    return Workload(
        units=_whole(usual),
        least=LEAST_HEARD * least - ROUNDING_SECONDS,
        most=_whole(most) + ROUNDING_SECONDS,
        tokens={
            "input": _tokens(size),
            "input_audio": usual * AUDIO_TOKENS_PER_SECOND,
            "output": usual * TRANSCRIPT_TOKENS_A_SECOND,
        },
        most_tokens={
            "input": size,
            "input_audio": (most + ROUNDING_SECONDS) * MOST_AUDIO_TOKENS_A_SECOND,
            "output": (most + ROUNDING_SECONDS) * MOST_TRANSCRIPT_TOKENS_A_SECOND,
        },
        unreadable=unreadable,
    )


def _whole(seconds: float) -> float:
    """Return the seconds that are billed. Containers end some hundredths after the audio."""
    return float(math.ceil(round(seconds, 1)))


def _seconds(answer: Mapping[str, Any]) -> object:
    usage = answer.get("usage")
    seconds = usage.get("seconds") if isinstance(usage, dict) else None
    try:
        # OpenAI bills whole seconds, and has written them as text.
        return math.ceil(float(answer.get("duration") if seconds is None else seconds))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


_AUDIO_ELSEWHERE = ("url", "file_url", "audio_url", "file_id")
ENDPOINTS = (
    PassedEndpoint(
        path="rerank", serves="rerank", api="rerank", summary="Put texts in order by a query",
        body=RerankRequest, refused=("texts", "passages", "inputs", "candidates"), workload=_rerank, units=_searches,
    ),
    PassedEndpoint(
        path="moderations", serves="moderations", api="moderation", summary="Say whether texts are harmful",
        body=ModerationRequest, refused=("inputs", "texts"), workload=_moderation,
    ),
    PassedEndpoint(
        path="images/generations", serves="images", api="image", summary="Draw images",
        body=ImageRequest, workload=_image, units=_images,
    ),
    PassedEndpoint(
        path="images/edits", serves="images", api="image", summary="Change images",
        file=("image", "image[]"), repeated=("image",), workload=_edit, units=_images,
    ),
    PassedEndpoint(
        path="audio/speech", serves="speech", api="speech", summary="Speak a text", body=SpeechRequest, workload=_speech
    ),
    PassedEndpoint(
        path="audio/transcriptions", serves="transcriptions", api="transcription", summary="Write down speech",
        file=("file",), refused=_AUDIO_ELSEWHERE, workload=_audio, units=_seconds,
    ),
    PassedEndpoint(
        path="audio/translations", serves="transcriptions", api="transcription", summary="Write down speech in English",
        file=("file",), refused=_AUDIO_ELSEWHERE, workload=_audio, units=_seconds,
    ),
)  # fmt: skip
