"""The table of the endpoints that are passed through: what of each is read, counted and billed. All else goes on as it
is."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.base.errors import bad_request
from gateway.base.numbers import whole_number
from quality.records.record import PassedApi
from tiers.catalog.tier_spec import ServedEndpoint

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
MOST_IMAGES = 10
# Cohere's unit of a search: a query with up to so many documents (https://cohere.com/pricing, 2026-11).
DOCUMENTS_OF_A_SEARCH = 100
# Bytes of a second of audio: the least that speech codecs make, and those of a usual MP3.
LEAST_AUDIO_BYTES, USUAL_AUDIO_BYTES = 1000, 16_000
# The most output tokens that a model makes of a unit, where only tokens have a price.
MOST_TOKENS: Mapping[ServedEndpoint, int] = {"images": 16_384, "speech": 64, "transcriptions": 64}


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
    """What to draw, and how often."""

    prompt: str
    model: ModelName | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_IMAGES)] | None = None


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text to be spoken."""

    input: Annotated[str, Meta(min_length=1)]
    model: ModelName | None = None


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a form with a file: audio, or an image."""

    file: str
    model: str


class Asked(msgspec.Struct, frozen=True):
    """What a request asks for: the bytes of its texts, which count against a key's limits and cost input tokens; its
    `units`, as they are billed unless the answer says otherwise, and the `most` that it can be billed."""

    text_bytes: int
    units: float
    most: float


class PassedEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. `path`: below `/v1` here and below the server's address. `body`: the fields of its JSON that are
    read; None for a form, whose `file` field is named. `asked`: reads the body, or a form's fields and the bytes of its
    files; `told`: the units that a whole answer reports."""

    path: str
    serves: ServedEndpoint
    api: PassedApi
    summary: str
    body: type[msgspec.Struct] | None = None
    file: tuple[str, ...] = ()
    asked: Callable[[Any], Asked]
    told: Callable[[Mapping[str, Any], Asked], float] = lambda answer, asked: asked.units


class FormFields(msgspec.Struct, frozen=True):
    """What is read of a form: its fields, and how many bytes its files have."""

    fields: Mapping[str, str]
    file_bytes: int


def _rerank(body: RerankRequest) -> Asked:
    texts = [one if isinstance(one, str) else str(one) for one in (body.query, *body.documents)]
    searches = math.ceil(len(body.documents) / DOCUMENTS_OF_A_SEARCH)
    return Asked(sum(len(text.encode()) for text in texts), searches, max(searches, len(body.documents)))


def _searches(answer: Mapping[str, Any], asked: Asked) -> float:
    meta = answer.get("meta")
    billed = meta.get("billed_units") if isinstance(meta, dict) else None
    return _within(billed.get("search_units") if isinstance(billed, dict) else None, asked)


def _moderation(body: ModerationRequest) -> Asked:
    inputs = [body.input] if isinstance(body.input, str) else body.input
    texts = sum(len(one.encode()) if isinstance(one, str) else len(str(one.get("text", "")).encode()) for one in inputs)
    return Asked(texts, len(inputs), len(inputs))


def _image(body: ImageRequest) -> Asked:
    return Asked(len(body.prompt.encode()), body.n or 1, body.n or 1)


def _edit(form: FormFields) -> Asked:
    images = whole_number(form.fields.get("n", "1"), "n", 1, MOST_IMAGES)
    return Asked(len(form.fields.get("prompt", "").encode()), images, images)


def _images(answer: Mapping[str, Any], asked: Asked) -> float:
    data = answer.get("data")
    return _within(len(data) if isinstance(data, list) else None, asked)


def _speech(body: SpeechRequest) -> Asked:
    return Asked(len(body.input.encode()), len(body.input), len(body.input))


def _audio(form: FormFields) -> Asked:
    if not form.file_bytes:
        raise bad_request("The file is empty: send some audio.", "file", "empty")
    most = form.file_bytes / LEAST_AUDIO_BYTES
    return Asked(len(form.fields.get("prompt", "").encode()), form.file_bytes / USUAL_AUDIO_BYTES, most)


def _seconds(answer: Mapping[str, Any], asked: Asked) -> float:
    usage = answer.get("usage")
    told = usage.get("seconds") if isinstance(usage, dict) else None
    return _within(answer.get("duration") if told is None else told, asked)


def _within(told: object, asked: Asked) -> float:
    """Return what a server counts, where it can be; else what was asked for."""
    try:
        counted = float(told)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return asked.units
    return counted if 0 < counted <= asked.most else asked.units


ENDPOINTS = (
    PassedEndpoint(
        path="rerank", serves="rerank", api="rerank", summary="Put texts in order by a query",
        body=RerankRequest, asked=_rerank, told=_searches,
    ),
    PassedEndpoint(
        path="moderations", serves="moderations", api="moderation", summary="Say whether texts are harmful",
        body=ModerationRequest, asked=_moderation,
    ),
    PassedEndpoint(
        path="images/generations", serves="images", api="image", summary="Draw images",
        body=ImageRequest, asked=_image, told=_images,
    ),
    PassedEndpoint(
        path="images/edits", serves="images", api="image", summary="Change images",
        file=("image", "image[]"), asked=_edit, told=_images,
    ),
    PassedEndpoint(
        path="audio/speech", serves="speech", api="speech", summary="Speak a text", body=SpeechRequest, asked=_speech
    ),
    PassedEndpoint(
        path="audio/transcriptions", serves="transcriptions", api="transcription", summary="Write down speech",
        file=("file",), asked=_audio, told=_seconds,
    ),
    PassedEndpoint(
        path="audio/translations", serves="transcriptions", api="transcription", summary="Write down speech in English",
        file=("file",), asked=_audio, told=_seconds,
    ),
)  # fmt: skip
