"""Endpoints that are passed through: to which server, with what, and what is limited, billed and recorded."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.inference.api.passed import form
from gateway.tenancy import guard
from tests.gateway.chained_tiers import HELLO
from tests.gateway.inference.api.passed_world import world
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.polling import eventually
from tests.support.administrator import ADMIN_KEY
from tests.support.upstream import Call
from tests.tiers.audio import samples
from tiers.errors import HEADER

SPEAKER = "data:audio/wav;base64," + "A" * 1_300_000
"""Ten seconds of a known speaker."""
WAVE = samples.wav(4)


RANKED = {"results": [{"index": 1, "relevance_score": 0.9}], "meta": {"billed_units": {"search_units": 1}}}
IMAGES = {"created": 1, "data": [{"b64_json": "aGk="}, {"b64_json": "aGk="}]}
HARMLESS = {"id": "m", "model": "m", "results": [{"flagged": False}] * 2}


@pytest.mark.parametrize(
    ("path", "body", "answer", "model", "api", "usd", "said"),
    [
        ("rerank", {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}, RANKED, "painter-1", "rerank", 0.002,
         "1 searches, $0.002000"),
        ("rerank", {"query": {"image": "https://a/b.png"}, "documents": ["a"] * 101}, {"results": []}, "painter-1",
         "rerank", 0.004, "2 searches, $0.004000"),
        ("moderations", {"input": ["a", "b"], "other": [1]}, HARMLESS, "whisper-1", "moderation", 0.002,
         "2 inputs, $0.002000"),
        ("images/generations", {"prompt": "a cat", "n": 2, "size": "1024x1024"}, IMAGES, "painter-1", "image", 0.08,
         "2 images, $0.080000"),
    ],
)  # fmt: skip
async def test_json_goes_on_as_it_is_with_the_servers_model_and_is_billed_by_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, answer: Any, model: str, api: str,
    usd: float, said: str,
) -> None:  # fmt: skip
    async with world(tmp_path, monkeypatch) as aio:
        aio.answers[path] = answer
        response = await aio.post(path, json=body)
        assert response.status_code == 200, response.text
        assert response.json() == answer
        [call] = aio.media.calls
        assert call.body == body | {"model": model}
        assert call.headers.get("authorization") == ("Bearer sk-media-secret" if model == "whisper-1" else None)
        assert float(response.headers["x-aio-cost-usd"]) == pytest.approx(usd)
        record = await aio.record(response)
        assert (record.api, record.status, record.cost_usd) == (api, "ok", pytest.approx(usd))
        assert record.attempts[0].reason == said
        shown = await aio.gateway.http.get(f"/v1/requests/{record.request_id}")
        assert shown.json()["api"] == api
        async with browser(aio.gateway) as admin:
            await sign_in(admin, ADMIN_KEY)
            assert said in (await admin.get(f"/admin/requests/{record.request_id}")).text
        assert aio.chats.calls == []


async def test_openais_client_speaks_draws_moderates_and_writes_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def speak(call: Call) -> None:
        await call.begin(200, "audio/mpeg")
        for _ in range(4):
            await call.send(b"\xff\xf3" * 5000)

    async with world(tmp_path, monkeypatch) as aio:
        aio.answers |= {
            "audio/speech": speak,
            "images/generations": IMAGES,
            "moderations": HARMLESS,
            "audio/transcriptions": {"text": "hello", "usage": {"type": "duration", "seconds": 4}},
        }
        audio = await aio.client.audio.speech.create(model="painter", voice="alloy", input="Hello there")
        assert await audio.aread() == b"\xff\xf3" * 20_000
        assert audio.response.headers["content-type"] == "audio/mpeg"
        assert (await aio.record(audio.response)).attempts[0].reason == "11 characters, unpriced"
        images = await aio.client.images.generate(model="painter-1", prompt="a cat", n=2)
        assert [one.b64_json for one in images.data or []] == ["aGk="] * 2
        assert not (await aio.client.moderations.create(input=["a", "b"])).results[0].flagged
        raw = await aio.client.audio.transcriptions.with_raw_response.create(
            model="media", file=("a.wav", WAVE, "audio/wav"), language="en",
            known_speaker_names=["ann"], known_speaker_references=[SPEAKER],
        )  # fmt: skip
        assert raw.parse().text == "hello"
        assert b"whisper-1" in aio.media.calls[-1].raw
        assert WAVE in aio.media.calls[-1].raw
        assert b'name="language"' in aio.media.calls[-1].raw
        assert SPEAKER.encode() in aio.media.calls[-1].raw
        record = await aio.record(raw.http_response)
        # The list has whisper-1 at $0.36 an hour of audio.
        assert (record.api, record.cost_usd) == ("transcription", pytest.approx(0.0004))
        assert "4 seconds, $0.000400 (genai-prices" in str(record.attempts[0].reason)


async def test_a_form_with_several_images_goes_on_whole_and_events_come_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def events(call: Call) -> None:
        await call.begin()
        await call.event({"type": "image_edit.completed", "b64_json": "aGk="})

    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["images/edits"] = events
        files = [("image[]", ("a.png", b"one\r\n--x", "image/png")), ("image[]", ("b.png", b"two", "image/png"))]
        response = await aio.post("images/edits", data={"prompt": "a hat", "n": "1", "stream": "true"}, files=files)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert json.loads(response.text.removeprefix("data: "))["b64_json"] == "aGk="
        [call] = aio.media.calls
        assert call.raw.count(b'name="image[]"') == 2
        assert b"one\r\n--x" in call.raw
        assert (await aio.record(response)).cost_usd == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("path", "sent", "status", "param"),
    [
        ("rerank", {"json": {"query": "q"}}, 400, "documents"),
        ("rerank", {"json": {"query": "q", "documents": []}}, 400, "documents"),
        ("images/generations", {"json": {"prompt": "a", "n": 11}}, 400, "n"),
        ("images/generations", {"json": {"prompt": "a", "model": "small"}}, 404, "model"),
        ("audio/transcriptions", {"data": {"model": "media"}, "files": {"other": b"x"}}, 400, "file"),
        ("audio/transcriptions", {"data": {"model": "media"}, "files": {"file": ("a.wav", b"")}}, 400, "file"),
        ("audio/transcriptions", {"json": {"model": "media"}}, 415, None),
        ("audio/transcriptions", {"data": {"model": "media"}, "files": {"file": ("a.wav", WAVE)}}, 413, "file"),
        ("audio/speech", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, None),
    ],
)
async def test_what_cannot_be_passed_on_is_refused_in_openais_envelope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, sent: Any, status: int, param: str | None
) -> None:
    monkeypatch.setattr(form, "MOST_BYTES", 10_000)
    async with world(tmp_path, monkeypatch) as aio:
        response = await aio.post(path, **sent)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
        assert aio.media.calls == []


@pytest.mark.parametrize(
    ("answered", "status", "code"), [(400, 400, "bad"), (401, 503, "tier_unavailable"), (429, 503, "tier_unavailable")]
)
async def test_a_servers_refusal_is_the_callers_error_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: int, status: int, code: str
) -> None:
    async def refuse(call: Call) -> None:
        said = {"message": f"no such voice, sk-media-secret, at {call.headers['host']}", "param": "voice"}
        await call.reply(answered, {"error": said | {"code": "bad", "type": "sk-media-secret"}})

    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["moderations"] = refuse
        response = await aio.post("moderations", json={"input": "a"})
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert "sk-media-secret" not in response.text
        assert "127.0.0.1" not in response.text
        record = await aio.record(response)
        assert (record.status, record.cost_usd) == ("error", 0.0)


async def test_no_server_is_sent_an_address_that_is_not_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, monkeypatch) as aio:
        image = {"type": "image_url", "image_url": {"url": "http://１６９.254.169.254/"}}
        refused = await aio.post("moderations", json={"input": ["a", image]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[1].image_url.url")
        fields = {"model": "media", "options": '{"file_url": "http://localhost/a.wav"}'}
        refused = await aio.post("audio/transcriptions", data=fields, files={"file": ("a.wav", WAVE, "audio/wav")})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "options.file_url")
        assert aio.media.calls == []


async def test_a_key_that_an_event_repeats_is_not_passed_on_wherever_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(call: Call) -> None:
        await call.begin(200)
        for piece in (b'data: {"type":"error","code":"sk-med', b"ia-secret", b'","message":"sk-media"}\n\n', b"sk-"):
            await call.send(piece)

    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["audio/speech"] = fails
        response = await aio.post("audio/speech", json={"model": "media", "input": "hi", "voice": "a"})
        assert response.text == 'data: {"type":"error","code":"[key]","message":"sk-media"}\n\nsk-'


async def test_a_page_of_html_is_no_answer_and_a_broken_stream_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def page(call: Call) -> None:
        await call.begin(200, "text/html")
        await call.send(b"<script>")

    async def breaks(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 X\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
        call.writer.close()

    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["audio/speech"] = page
        body = {"model": "painter", "input": "hi", "voice": "a"}
        response = await aio.post("audio/speech", json=body)
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["x-content-type-options"] == "nosniff"
        aio.answers["audio/speech"] = breaks
        with pytest.raises(httpx.RemoteProtocolError):
            await aio.post("audio/speech", json=body)
        entries: list[Any] = []

        async def recorded() -> bool:
            entries[:] = (await aio.gateway.http.get("/admin/api/requests")).json()["rows"]
            return len(entries) == 2

        assert await eventually(recorded)
        assert {entry["status"] for entry in entries} == {"ok", "error"}


async def test_keys_limits_budgets_and_labels_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
[[targets]]
name = "own"
url = "{media}"
model = "own-rerank"
credentials = "caller"
serves = ["rerank"]
"""
    async with world(tmp_path, monkeypatch, more) as aio:
        aio.answers |= {"images/generations": IMAGES, "rerank": RANKED}
        http, admin = aio.gateway.http, "/admin/api"

        async def key(name: str, terms: dict[str, Any], usd: float | None = None) -> dict[str, str]:
            made = await http.post(f"{admin}/keys", json={"name": name, "terms": terms})
            if usd is not None:
                budget = {"kind": "key", "subject": name, "period": "month", "amount_usd": usd}
                assert (await http.put(f"{admin}/budgets", json=budget)).status_code == 200
            return {"authorization": f"Bearer {made.json()['key']}"}

        async def draw(headers: dict[str, str]) -> tuple[int, str | None]:
            response = await aio.post("images/generations", json={"prompt": "a", "n": 2}, headers=headers)
            return response.status_code, response.json().get("error", {}).get("code")

        rich, poor = await key("rich", {}, 1.0), await key("poor", {}, 0.05)
        limited, local = await key("limited", {"requests_per_minute": 1}), await key("local", {"local_only": True})
        assert await draw(rich) == (200, None)
        assert await draw(poor) == (429, "insufficient_quota")
        assert [await draw(limited), await draw(limited)] == [(200, None), (429, "rate_limit_exceeded")]
        assert (await draw(local))[0] == 404
        assert (await draw({"authorization": "Bearer wrong"}))[0] == 401
        assert (await draw(rich | {"x-aio-consent": "local"})) == (403, "no_tier_may_see")
        assert len(aio.media.calls) == 2
        body = {"query": "q", "documents": ["a"], "model": "own"}
        refused = await aio.post("rerank", json=body, headers=rich)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, HEADER)
        taken = await aio.post("rerank", json=body, headers=rich | {HEADER: "own-key-0123456789"})
        assert taken.status_code == 200, taken.text
        assert aio.media.calls[-1].headers["authorization"] == "Bearer own-key-0123456789"
        assert (await aio.record(taken)).attempts[0].reason == "1 searches, unpriced"
        listed = await http.get("/v1/models", headers=rich)
        assert {"media", "painter", "own"} <= {card["id"] for card in listed.json()["data"]}
        chat = await http.post("/v1/chat/completions", json={"model": "painter", "messages": HELLO}, headers=rich)
        assert chat.status_code == 404


async def test_the_usage_at_the_end_of_events_is_billed_by_the_lists_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = """
[[targets]]
name = "drawer"
provider = "openai"
url = "{media}"
model = "gpt-image-1"
api_key_env = "AIO_TEST_MEDIA_KEY"
serves = ["images"]
"""
    usage = {"input_tokens": 50, "output_tokens": 1000, "input_tokens_details": {"text_tokens": 40, "image_tokens": 10}}

    async def events(call: Call) -> None:
        await call.begin()
        done = {"type": "image_generation.completed", "b64_json": "a" * 9000, "usage": usage}
        await call.event(done)

    async with world(tmp_path, monkeypatch, more) as aio:
        aio.answers["images/generations"] = events
        response = await aio.post("images/generations", json={"prompt": "a", "model": "drawer", "stream": True})
        record = await aio.record(response)
    # The list: $5 and $10 a million tokens of text and images in, $40 out.
    assert record.cost_usd == pytest.approx((40 * 5 + 10 * 10 + 1000 * 40) / 1e6)


async def test_a_reader_who_leaves_ends_the_servers_work_and_is_billed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def speak(call: Call) -> None:
        await call.begin(200, "audio/mpeg")
        while True:
            await call.send(b"\xff" * 65_536)

    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["audio/speech"] = speak
        body = {"model": "media", "input": "hi" * 500, "voice": "a"}
        async with aio.gateway.http.stream("POST", "/v1/audio/speech", json=body) as response:
            await anext(response.aiter_raw())
        await aio.media.disconnected.wait()
        record = await aio.record(response)
    assert (record.status, record.attempts[0].reason) == ("aborted", "1000 characters, unpriced")


async def test_forms_beyond_what_a_process_may_hold_are_refused_and_room_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["audio/transcriptions"] = {"text": "hello"}
        sent = {"data": {"model": "media"}, "files": {"file": ("a.wav", WAVE)}}
        monkeypatch.setattr(guard, "LARGE_BODY", 1000)
        monkeypatch.setattr(guard, "MOST_HELD", 80_000)
        assert [(await aio.post("audio/transcriptions", **sent)).status_code for _ in range(3)] == [200] * 3
        monkeypatch.setattr(guard, "MOST_HELD", 60_000)
        refused = await aio.post("audio/transcriptions", **sent)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_large_bodies")
