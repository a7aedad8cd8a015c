"""Forms while they arrive: what they hold, and which limits come before them."""

import asyncio
from pathlib import Path

import pytest

from gateway.tenancy import guard
from tests.gateway.inference.api.passed_world import World, world
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.tiers.audio import samples

WAVE = samples.wav(4)


async def begun_upload(aio: World, key: str, content: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A form of 60 MiB of which so much is sent, and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", aio.gateway.port)
    head = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {60 * 2**20}\r\n\r\n"
        '--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    )
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


async def test_an_announced_form_takes_no_room_and_an_arrived_one_leaves_some_to_other_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LARGE_BODY", 1000)
    monkeypatch.setattr(guard, "MOST_HELD", 300_000)
    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["audio/transcriptions"] = {"text": "hello"}
        sent = {"data": {"model": "media"}, "files": {"file": ("a.wav", WAVE)}}
        greedy, other = [bearer(await aio.gateway.key(name)) for name in ("greedy", "other")]
        idle = [await begun_upload(aio, greedy["authorization"].split()[1]) for _ in range(5)]
        assert (await aio.post("audio/transcriptions", **sent, headers=greedy)).status_code == 200
        full = await begun_upload(aio, greedy["authorization"].split()[1], bytes(140_000))
        await eventually(lambda: guard._LargeBodies.held >= 140_000)
        refused = await aio.post("audio/transcriptions", **sent, headers=greedy)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_large_bodies")
        assert (await aio.post("audio/transcriptions", **sent, headers=other)).status_code == 200
        for _, writer in [*idle, full]:
            writer.close()
        await eventually(lambda: guard._LargeBodies.held == 0)
        assert (await aio.post("audio/transcriptions", **sent, headers=greedy)).status_code == 200
        assert not guard._LargeBodies.of_tenant


async def test_a_form_is_refused_by_its_keys_limits_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["audio/transcriptions"] = {"text": "hello"}
        key = await aio.gateway.key("one", concurrency=1)
        _, first = await begun_upload(aio, key)
        control = aio.gateway.access.tenancy.admission_control._windows
        await eventually(lambda: control._windows and all(one.in_flight for one in control._windows.values()))  # type: ignore[attr-defined]
        reader, second = await begun_upload(aio, key)
        assert (await reader.readline()).split()[1] == b"429"
        for writer in (first, second):
            writer.close()
        sent = {"data": {"model": "media"}, "files": {"file": ("a.wav", WAVE)}, "headers": bearer(key)}

        async def is_served() -> bool:
            return (await aio.post("audio/transcriptions", **sent)).status_code == 200

        await eventually(is_served)


async def test_the_prompt_of_a_form_counts_against_the_tokens_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as aio:
        aio.answers["audio/transcriptions"] = {"text": "hello"}
        key = await aio.gateway.key("few", tokens_per_minute=1000)
        statuses = []
        for prompt in ("x" * 5000, "x" * 2400, "x" * 2400):
            form = {"data": {"model": "media", "prompt": prompt}, "files": {"file": ("a.wav", WAVE)}}
            answer = await aio.post("audio/transcriptions", **form, headers=bearer(key))
            statuses.append((answer.status_code, answer.json().get("error", {}).get("type")))
    assert statuses == [(429, "tokens"), (200, None), (429, "tokens")]
