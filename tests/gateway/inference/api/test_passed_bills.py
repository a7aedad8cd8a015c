"""What is billed, held and limited of endpoints that are passed through, where requests or answers say too little."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.inference.api.passed_world import World, world
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.upstream import Call
from tests.tiers.audio import samples

MORE = """
[[targets]]
name = "drawer"
provider = "openai"
url = "{media}"
model = "gpt-image-1"
api_key_env = "AIO_TEST_MEDIA_KEY"
serves = ["images"]

[[targets]]
name = "speaker"
provider = "openai"
url = "{media}"
model = "gpt-4o-mini-tts"
api_key_env = "AIO_TEST_MEDIA_KEY"
serves = ["speech"]

[[targets]]
name = "reader"
provider = "openai"
url = "{media}"
model = "tts-1"
api_key_env = "AIO_TEST_MEDIA_KEY"
serves = ["speech"]

[[targets]]
name = "by-tokens"
url = "{media}"
model = "jina-reranker"
serves = ["rerank", "moderations"]
price = {{ input_usd_per_million = 0.02, output_usd_per_million = 0.0 }}

[[targets]]
name = "dall-e"
url = "{media}"
model = "dall-e-3"
serves = ["images"]
unit_prices = {{ images = {{ default = 0.04, "1792x1024" = 0.08, hd = 0.08, "hd 1792x1024" = 0.12 }} }}

[[targets]]
name = "groq"
provider = "groq"
url = "{media}"
model = "whisper-large-v3"
api_key_env = "AIO_TEST_MEDIA_KEY"
serves = ["transcriptions"]

[[targets]]
name = "own-whisper"
url = "{media}"
model = "own-whisper"
serves = ["transcriptions"]

[[embeddings]]
name = "vectors"
url = "{media}"
model = "vectors"
input_usd_per_million = 1000.0
"""
WHISPER_USD_A_SECOND = 0.36 / 3600


def text_of(kind: str, text: bytes) -> Any:
    async def answer(call: Call) -> None:
        await call.begin(200, kind)
        await call.send(text)

    return answer


async def transcribed(aio: World, audio: bytes, answer: Any, model: str = "media", **more: Any) -> httpx.Response:
    aio.answers["audio/transcriptions"] = answer
    sent = {"data": {"model": model}, "files": {"file": ("a.bin", audio)}}
    return await aio.post("audio/transcriptions", **(sent | more))


@pytest.mark.parametrize(
    "audio",
    [
        samples.flac(600, total=1),
        samples.opus(600, granule=1),
        samples.mp3(600, xing_frames=1),
        samples.mp4(600, ticks=1, duration=1),
        samples.webm(600, duration=0.1),
        samples.wav(600, rate=1000, data_size=4),
    ],
)
@pytest.mark.parametrize(
    "answer",
    [
        text_of("text/plain", b"nothing"),
        {"text": "nothing"},
        {"text": "", "duration": "nan"},
        {"usage": {"seconds": 0}},
    ],
)
async def test_a_transcription_is_billed_by_its_packets_whatever_the_header_and_a_silent_answer_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audio: bytes, answer: Any
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        record = await aio.record(await transcribed(aio, audio, answer))
    assert record.cost_usd == pytest.approx(600 * WHISPER_USD_A_SECOND, rel=0.01)


async def test_a_duration_that_an_answer_tells_is_billed_where_the_file_can_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audio = samples.flac(100)
    async with world(tmp_path, monkeypatch, MORE) as aio:
        billed = [
            (await aio.record(await transcribed(aio, audio, {"text": "", "duration": told}))).cost_usd
            for told in (95.2, "100.4", 0.1, 1e9, -1, "inf")
        ]
    seconds = [usd / WHISPER_USD_A_SECOND for usd in billed]
    assert seconds == pytest.approx([96, 101, 100, 101, 100, 100])


async def test_the_least_that_a_provider_bills_of_a_request_is_billed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        record = await aio.record(await transcribed(aio, samples.wav(1), {"text": ""}, "groq"))
    assert record.cost_usd == pytest.approx(10 * 0.111 / 3600)


async def test_audio_of_unknown_length_is_sent_for_keys_without_a_bound_and_billed_as_its_server_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = b"#!AMR\n" + bytes(16_000)
    async with world(tmp_path, monkeypatch, MORE) as aio:
        refused = await transcribed(aio, unknown, {"text": ""}, headers={"x-aio-max-cost": "10"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "file")
        assert aio.media.calls == []

        counted = await aio.record(await transcribed(aio, unknown, {"text": "", "duration": 20.0}))
        guessed = await aio.record(await transcribed(aio, unknown, {"text": ""}))

    assert counted.cost_usd == pytest.approx(20 * guessed.cost_usd)
    assert not counted.attempts[0].estimated
    assert guessed.attempts[0].estimated


@pytest.mark.parametrize(
    ("path", "names", "param"),
    [
        ("images/edits", ["n", "n"], "n"),
        ("images/edits", ["n[]"], "n"),
        ("images/edits", ["n", "n[0]"], "n"),
        ("images/edits", ["N"], "n"),
        ("images/edits", [" n"], "n"),
        ("images/edits", ["size", "size"], "size"),
        ("images/edits", ["other", "other"], "other"),
        ("audio/transcriptions", ["language", "language"], "language"),
        ("audio/transcriptions", ["url"], "url"),
        ("audio/transcriptions", ["file"], "file"),
    ],
)
async def test_a_field_of_a_form_that_servers_may_read_in_two_ways_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, names: list[str], param: str
) -> None:
    file = "image" if path == "images/edits" else "file"
    parts = [("model", (None, "painter" if file == "image" else "media")), (file, ("a", samples.wav(1)))]
    values = {"url": "https://a/b.wav"}
    fields = [(name, (None, values.get(name, str(place * 9 + 1)))) for place, name in enumerate(names)]
    async with world(tmp_path, monkeypatch, MORE) as aio:
        response = await aio.post(path, files=[*parts, *fields])
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert aio.media.calls == []


async def test_a_form_is_read_by_the_server_as_it_was_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = 'Content-Disposition: form-data; name="{}"{}\r\n'
    parts = [
        head.format("model", "") + "\r\npainter",
        head.format("image", '; filename="a.png"') + "Content-Type: image/png\r\nX-Other: 1\r\n\r\npicture",
        # Some servers take this for a file, others for a field.
        head.format("n", '; filename=""') + "Content-Transfer-Encoding: base64\r\n\r\n2",
    ]
    body = "".join(f"--b\r\n{part}\r\n" for part in parts) + "--b--\r\n"
    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["images/edits"] = {"data": []}
        headers = {"content-type": "multipart/form-data; boundary=b"}
        response = await aio.post("images/edits", content=body.encode(), headers=headers)
        assert response.status_code == 200, response.text
        [call] = aio.media.calls
        assert b'name="n"\r\n\r\n2\r\n' in call.raw
        assert b'name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\npicture' in call.raw
        assert b"Transfer" not in call.raw
        assert b"X-Other" not in call.raw
        assert (await aio.record(response)).cost_usd == pytest.approx(0.08)


async def test_images_that_an_answer_has_are_billed_by_whatever_field_they_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        key = bearer(await aio.gateway.key())
        await aio.gateway.budget("ada", 1.0)
        aio.answers["images/generations"] = {"data": [{"url": "https://a/b"}] * 10}
        body = {"prompt": "a", "model": "painter", "parameters": {"count": 10}}
        shown = await aio.record(await aio.post("images/generations", json=body, headers=key))
        aio.answers["images/generations"] = text_of("text/event-stream", b"data: {}\n\n")
        body = {"prompt": "a", "model": "painter", "batch_size": 4, "n": 2}
        named = await aio.record(await aio.post("images/generations", json=body, headers=key))
        [budget] = await aio.gateway.budgets()
        assert budget["spent_usd"] == pytest.approx(0.56)
    assert (shown.cost_usd, named.cost_usd) == pytest.approx((0.40, 0.16))


@pytest.mark.parametrize(
    ("fields", "usd"),
    [
        ({}, 0.04),
        ({"quality": "hd"}, 0.08),
        ({"size": "1792x1024"}, 0.08),
        ({"size": "1792x1024", "quality": "hd"}, 0.12),
        ({"size": "auto"}, 0.12),
        ({"size": "1024x1024"}, 0.12),
        ({"width": 4096}, 0.12),
    ],
)
async def test_an_image_costs_what_its_size_and_quality_cost_and_the_most_where_they_are_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], usd: float
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["images/generations"] = {"data": [{"url": "https://a/b"}]}
        body = {"prompt": "a", "model": "dall-e"} | fields
        record = await aio.record(await aio.post("images/generations", json=body))
    assert record.cost_usd == pytest.approx(usd)


async def test_a_reader_who_leaves_before_the_usage_of_an_image_is_billed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def draw(call: Call) -> None:
        await call.begin()
        while True:
            await call.event({"type": "image_generation.partial_image", "b64_json": "a" * 60_000})

    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["images/generations"] = draw
        body = {"prompt": "a", "model": "drawer", "stream": True, "quality": "high", "size": "1024x1024"}
        async with aio.gateway.http.stream("POST", "/v1/images/generations", json=body) as response:
            await anext(response.aiter_raw())
        await aio.media.disconnected.wait()
        record = await aio.record(response)
    # OpenAI bills 4,160 tokens of $40 a million for such an image.
    assert (record.status, record.attempts[0].estimated) == ("aborted", True)
    assert 4160 * 40 / 1e6 <= record.cost_usd <= 2 * 4160 * 40 / 1e6


async def test_a_caller_who_leaves_before_the_answer_begins_is_billed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, leave = asyncio.Event(), asyncio.Event()

    async def draw(call: Call) -> None:
        arrived.set()
        await leave.wait()

    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["images/generations"] = draw
        body = {"prompt": "a", "model": "painter", "n": 3}
        asking = asyncio.create_task(aio.post("images/generations", json=body))
        await arrived.wait()
        asking.cancel()
        rows: list[Any] = []

        async def is_recorded() -> bool:
            rows[:] = (await aio.gateway.http.get("/admin/api/requests")).json()["rows"]
            return bool(rows)

        assert await eventually(is_recorded)
        leave.set()
    assert (rows[0]["status"], rows[0]["cost_usd"]) == ("aborted", pytest.approx(0.12))


async def test_a_rerank_is_billed_by_the_parts_of_its_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        billed, estimated = [], []
        huge = {"query": "q", "documents": ["word " * 500_000]}
        many = {"query": "q", "documents": ["a"] * 250}
        for body, units in ((huge, 50), (huge, None), (huge, 1e9), (many, 1), (many, 3)):
            answer = {"results": []} | ({} if units is None else {"meta": {"billed_units": {"search_units": units}}})
            aio.answers["rerank"] = answer
            record = await aio.record(await aio.post("rerank", json=body | {"model": "painter"}))
            billed.append(record.cost_usd / 0.002)
            estimated.append(record.attempts[0].estimated)
    assert estimated == [False, True, False, False, False]
    # 2,500,000 bytes are at most 5,011 parts of 499 tokens.
    assert billed == pytest.approx([50, 51, 51, 3, 3])


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [({"total_tokens": 900}, 900), ({"prompt_tokens": 700, "total_tokens": 700}, 700), ({}, 502), (None, 502)],
)
async def test_a_rerank_at_a_price_of_tokens_is_billed_by_the_tokens_of_the_query_with_each_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: Any, tokens: float
) -> None:
    body = {"model": "by-tokens", "query": "q" * 400, "documents": ["d", {"text": "d"}, "d", "d" * 795]}
    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["rerank"] = {"results": []} | ({} if usage is None else {"usage": usage})
        record = await aio.record(await aio.post("rerank", json=body))
    assert record.cost_usd == pytest.approx(tokens * 0.02 / 1e6, rel=0.2)


async def test_speech_at_a_price_of_tokens_is_billed_by_what_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        body = {"model": "speaker", "input": "very slowly", "voice": "a"}
        billed = []
        for kind, audio in (
            ("audio/mpeg", samples.mp3(60)),
            ("audio/wav", samples.wav(60, data_size=0xFFFF_FFFF)),
            ("audio/pcm", bytes(60 * 48_000)),
            ("text/event-stream", b'data: {"usage": {"input_tokens": 3, "output_tokens": 1250}}\n\n'),
        ):
            aio.answers["audio/speech"] = text_of(kind, audio)
            billed.append((await aio.record(await aio.post("audio/speech", json=body))).cost_usd)
    # OpenAI says about $0.015 a minute; tokens that the answer does not tell are Gemini's, a fifth more.
    assert billed == pytest.approx([1500 * 12 / 1e6] * 3 + [1250 * 12 / 1e6], rel=0.01)


LIMITED = [
    ("images/generations", {"model": "painter", "prompt": "a", "n": 10}),
    ("images/generations", {"model": "drawer", "prompt": "a", "quality": "high"}),
    ("images/generations", {"model": "dall-e", "prompt": "a", "quality": "hd"}),
    ("audio/speech", {"model": "reader", "input": "a" * 2000, "voice": "a"}),
    ("moderations", {"model": "media", "input": ["a"] * 20}),
    ("rerank", {"model": "painter", "query": "q", "documents": ["a" * 499] * 600}),
    ("rerank", {"model": "by-tokens", "query": "q" * 1000, "documents": ["a"] * 600}),
    ("embeddings", {"model": "vectors", "input": "a" * 100}),
]


@pytest.mark.parametrize(("path", "body"), LIMITED, ids=lambda one: one if isinstance(one, str) else one["model"])
async def test_a_request_that_may_cost_more_than_its_header_or_key_allows_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        frugal = bearer(await aio.gateway.key("frugal", max_cost_usd_per_request=0.01))
        rich = bearer(await aio.gateway.key("rich"))
        for headers in (rich | {"x-aio-max-cost": "0.01"}, frugal, frugal | {"x-aio-max-cost": "1"}):
            response = await aio.post(path, json=body, headers=headers)
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (400, "x-aio-max-cost", "no_tier_allowed")
        assert aio.media.calls == []
        aio.answers[path] = {"results": [], "data": [{"index": 0, "embedding": [1.0]}]}
        sent = await aio.post(path, json=body, headers=rich | {"x-aio-max-cost": "10"})
        assert sent.status_code == 200, sent.text


async def test_a_file_that_may_cost_more_than_its_header_allows_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        refused = await transcribed(aio, samples.flac(600), {"text": ""}, headers={"x-aio-max-cost": "0.01"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-aio-max-cost")
        assert aio.media.calls == []


async def test_a_budget_must_cover_what_a_long_file_of_few_bytes_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        key = bearer(await aio.gateway.key())
        await aio.gateway.budget("ada", 0.05)
        refused = await transcribed(aio, samples.flac(600, total=1), {"text": ""}, headers=key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        assert aio.media.calls == []


async def test_tokens_a_minute_count_audio_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        used = []
        aio.answers |= {"images/generations": {"data": []}, "moderations": {"results": []}}

        async def left(name: str, path: str, **sent: Any) -> None:
            key = bearer(await aio.gateway.key(name, tokens_per_minute=100_000))
            response = await aio.post(path, headers=key, **sent)
            assert response.status_code == 200, response.text
            used.append(100_000 - int(response.headers["x-ratelimit-remaining-tokens"]))

        aio.answers["audio/transcriptions"] = {"text": ""}
        files = {"file": ("a", samples.flac(600, total=1))}
        await left("audio", "audio/transcriptions", data={"model": "media"}, files=files)
        drawn = {"model": "drawer", "prompt": "a", "n": 2, "quality": "high"}
        await left("images", "images/generations", json=drawn)
        shown = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}]
        await left("read", "moderations", json={"model": "media", "input": shown})
        small = bearer(await aio.gateway.key("small", tokens_per_minute=5000))
        refused = await aio.post("images/generations", json=drawn, headers=small)
    audio, images, read = used
    assert 10 * 600 <= audio <= 32 * 600
    assert 2 * 4160 <= images <= 2 * 8000
    assert 85 <= read <= 1600
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize("name", ["N", "n[]", " n", "Prompt"])
async def test_another_spelling_of_a_field_of_json_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        response = await aio.post("images/generations", json={"model": "painter", "prompt": "a", name: 10})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name.strip(" []").lower())
        assert aio.media.calls == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("rerank", {"query": "q", "documents": ["a"], "texts": ["a"] * 1000}, "texts"),
        ("moderations", {"input": "a", "inputs": ["a"] * 1000}, "inputs"),
    ],
)
async def test_what_a_server_may_read_instead_of_what_is_counted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        response = await aio.post(path, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert aio.media.calls == []


async def test_the_longer_of_two_texts_to_speak_is_billed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["audio/speech"] = text_of("audio/mpeg", b"x")
        body = {"model": "reader", "input": "a", "text": "a" * 1000, "voice": "a"}
        record = await aio.record(await aio.post("audio/speech", json=body))
    assert record.cost_usd == pytest.approx(1000 * 15 / 1e6)


async def test_texts_of_an_embedding_in_a_field_of_the_servers_own_are_held_and_billed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "vectors", "input": "a", "passages": ["word " * 200]}
    async with world(tmp_path, monkeypatch, MORE) as aio:
        refused = await aio.post("embeddings", json=body, headers={"x-aio-max-cost": "0.5"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-aio-max-cost")
        vector = {"index": 0, "embedding": [1.0]}
        aio.answers["embeddings"] = {"data": [vector], "usage": {"prompt_tokens": 201, "total_tokens": 201}}
        sent = await aio.post("embeddings", json=body)
    assert float(sent.headers["x-aio-cost-usd"]) == pytest.approx(0.201)


async def test_a_count_of_tokens_far_below_our_estimate_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["rerank"] = {"results": [], "usage": {"total_tokens": 1}}
        body = {"model": "by-tokens", "query": "word " * 100, "documents": ["word " * 100] * 50}
        record = await aio.record(await aio.post("rerank", json=body))
    assert record.cost_usd == pytest.approx(50 * 200 * 0.02 / 1e6, rel=0.3)


async def test_fields_given_twice_in_json_are_sent_once_as_they_are_billed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, MORE) as aio:
        aio.answers["images/generations"] = text_of("text/event-stream", b"data: {}\n\n")
        body = b'{"model": "painter", "n": 10, "prompt": "a", "n": 1}'
        headers = {"content-type": "application/json"}
        response = await aio.post("images/generations", content=body, headers=headers)
        [call] = aio.media.calls
        assert call.raw.count(b'"n"') == 1
        sent = json.loads(call.raw)["n"]
        assert (await aio.record(response)).cost_usd == pytest.approx(0.04 * sent)
