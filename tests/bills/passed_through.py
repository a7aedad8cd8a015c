"""Endpoints whose answers are passed through: images, speech, transcriptions, reranking, embeddings."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from tests.bills.row import Answered, Row, Server, json_answer
from tests.support.upstream import Call, Handler
from tests.tiers.audio import samples

_OPENAI_PRICES = "https://platform.openai.com/docs/pricing"
_GROQ_PRICES = "https://groq.com/pricing"
_COHERE_PRICES = "https://cohere.com/pricing"
_JINA_PRICES = "https://jina.ai/reranker"

WHISPER = Server("whisper", "openai", "whisper-1", 'serves = ["transcriptions"]')
GROQ = Server("groq-whisper", "groq", "whisper-large-v3", 'serves = ["transcriptions"]')
TRANSCRIBER = Server("transcriber", "openai", "gpt-4o-transcribe", 'serves = ["transcriptions"]')
DRAWER = Server("drawer", "openai", "gpt-image-1", 'serves = ["images"]')
DALL_E = Server(
    "dall-e",
    "openai",
    "dall-e-3",
    'serves = ["images"]\nunit_prices = { images = { default = 0.04, "1792x1024" = 0.08, hd = 0.08, '
    '"hd 1792x1024" = 0.12 } }',
)
DALL_E_2 = Server("dall-e-2", "openai", "dall-e-2", 'serves = ["images"]\nunit_prices = { images = 0.02 }')
SPEAKER = Server("speaker", "openai", "tts-1", 'serves = ["speech"]')
ACTOR = Server("actor", "openai", "gpt-4o-mini-tts", 'serves = ["speech"]')
COHERE = Server("cohere", "openai", "rerank-v3.5", 'serves = ["rerank"]\nunit_prices = { rerank = 2.0 }')
JINA = Server(
    "jina",
    "openai",
    "jina-reranker-v2",
    'serves = ["rerank"]\nprice = { input_usd_per_million = 0.02, output_usd_per_million = 0.0 }',
)


def _stream(kind: str, content: bytes) -> Handler:
    async def answer(call: Call) -> None:
        await call.begin(200, kind)
        await call.send(content)

    return answer


def _form(
    server: Server, path: str, file: str, content: bytes, *fields: tuple[str, str]
) -> Callable[[httpx.AsyncClient], Awaitable[Answered]]:
    async def send(client: httpx.AsyncClient) -> Answered:
        parts: list[tuple[str, Any]] = [("model", (None, server.name)), (file, ("a.bin", content))]
        parts += [(name, (None, value)) for name, value in fields]
        response = await client.post(f"/v1/{path}", files=parts)
        return Answered(response.status_code, response.headers.get("x-request-id", ""), response.text)

    return send


def _transcription(
    name: str, audio: bytes, answer: Handler, usd: float, server: Server = WHISPER, source: str = _OPENAI_PRICES
) -> Row:
    path = "audio/transcriptions"
    return Row(name, server, path, {}, answer, usd, source, send=_form(server, path, "file", audio))


def _edit(name: str, fields: Sequence[tuple[str, str]], usd: float, expected: str = "billed") -> Row:
    images = json_answer({"data": [{"url": "https://a/b"}] * 10})
    send = _form(DALL_E_2, "images/edits", "image", b"picture", ("prompt", "a hat"), *fields)
    return Row(name, DALL_E_2, "images/edits", {}, images, usd, _OPENAI_PRICES, expected, send=send)


_TEXT = _stream("text/plain", b"nothing")
_MINUTE_OF_WHISPER = 0.006
_HOUR_OF_GROQ = 0.111
_TEN_IMAGES = json_answer({"data": [{"url": "https://a/b"}] * 10})
_IMAGE_USAGE = {"input_tokens": 50, "output_tokens": 4160, "input_tokens_details": {"text_tokens": 50}}
_DRAWN = {"prompt": "a cat", "quality": "high", "size": "1024x1024"}


def _searches(count: int) -> Handler:
    return json_answer({"results": [], "meta": {"billed_units": {"search_units": count}}})


ROWS = [
    _transcription(
        "an hour of silence in FLAC, whose header says one sample, as text",
        samples.flac(3600, total=1),
        _TEXT,
        60 * _MINUTE_OF_WHISPER,
    ),
    _transcription("ten minutes of Opus, as text", samples.opus(600, granule=1), _TEXT, 10 * _MINUTE_OF_WHISPER),
    _transcription(
        "ten minutes of MP3, whose header says one frame, as text",
        samples.mp3(600, xing_frames=1),
        _TEXT,
        10 * _MINUTE_OF_WHISPER,
    ),
    _transcription(
        "ten minutes of MP4, whose tables say a second, as text",
        samples.mp4(600, ticks=1, duration=16_000),
        _TEXT,
        10 * _MINUTE_OF_WHISPER,
    ),
    _transcription(
        "ten minutes of WebM, whose header says a second, as text",
        samples.webm(600, duration=1),
        _TEXT,
        10 * _MINUTE_OF_WHISPER,
    ),
    _transcription(
        "ten minutes of WAV, of which the server tells a second",
        samples.wav(600, rate=1000),
        json_answer({"text": "", "duration": 1.0}),
        10 * _MINUTE_OF_WHISPER,
    ),
    _transcription(
        "a second at Groq, which bills ten",
        samples.wav(1),
        json_answer({"text": "Yes."}),
        10 * _HOUR_OF_GROQ / 3600,
        GROQ,
        _GROQ_PRICES,
    ),
    _transcription(
        "a transcription in tokens",
        samples.wav(60),
        json_answer(
            {
                "text": "",
                "usage": {
                    "input_tokens": 600,
                    "output_tokens": 150,
                    "input_tokens_details": {"audio_tokens": 600, "text_tokens": 0},
                },
            }
        ),
        (600 * 6 + 150 * 10) / 1e6,
        TRANSCRIBER,
    ),
    _edit("ten images of a form", [("n", "10")], 0.20),
    _edit("ten images of a form that has n twice", [("n", "10"), ("n", "1")], 0.20, "refused"),
    _edit("ten images of a form that calls them n[]", [("n[]", "10")], 0.20, "refused"),
    Row(
        "ten images by a field of another name",
        DALL_E_2,
        "images/generations",
        {"prompt": "a cat", "parameters": {"number": 10}},
        _TEN_IMAGES,
        0.20,
        _OPENAI_PRICES,
    ),
    Row(
        "a wide image in high definition",
        DALL_E,
        "images/generations",
        {"prompt": "a cat", "size": "1792x1024", "quality": "hd"},
        json_answer({"data": [{"url": "https://a/b"}]}),
        0.12,
        _OPENAI_PRICES,
    ),
    Row(
        "an image in tokens",
        DRAWER,
        "images/generations",
        _DRAWN,
        json_answer({"data": [{"b64_json": "aGk="}], "usage": _IMAGE_USAGE}),
        (50 * 5 + 4160 * 40) / 1e6,
        _OPENAI_PRICES,
    ),
    Row(
        "an image that a budget does not cover",
        DRAWER,
        "images/generations",
        _DRAWN,
        json_answer({"data": [{"b64_json": "aGk="}], "usage": _IMAGE_USAGE}),
        (50 * 5 + 4160 * 40) / 1e6,
        _OPENAI_PRICES,
        "refused",
        budget=0.01,
    ),
    Row(
        "speech by characters",
        SPEAKER,
        "audio/speech",
        {"input": "Grüße " * 100, "voice": "alloy"},
        _stream("audio/mpeg", samples.mp3(40)),
        600 * 15 / 1e6,
        _OPENAI_PRICES,
    ),
    Row(
        "speech in tokens, with their count at the end of the events",
        ACTOR,
        "audio/speech",
        {"input": "word " * 100, "voice": "alloy", "stream_format": "sse"},
        _stream("text/event-stream", b'data: {"usage": {"input_tokens": 101, "output_tokens": 600}}\n\n'),
        (101 * 0.6 + 600 * 12) / 1e6,
        _OPENAI_PRICES,
    ),
    Row(
        "a rerank of one document of 500,000 tokens",
        COHERE,
        "rerank",
        {"query": "q", "documents": ["word " * 500_000]},
        _searches(11),
        11 * 0.002,
        _COHERE_PRICES,
    ),
    Row(
        "a rerank of 250 documents, of which the server tells one search",
        COHERE,
        "rerank",
        {"query": "q", "documents": ["a"] * 250},
        _searches(1),
        3 * 0.002,
        _COHERE_PRICES,
    ),
    Row(
        "a rerank in tokens",
        JINA,
        "rerank",
        {"query": "word " * 100, "documents": ["word " * 200] * 50},
        json_answer({"results": [], "usage": {"total_tokens": 15_000}}),
        15_000 * 0.02 / 1e6,
        _JINA_PRICES,
    ),
]
