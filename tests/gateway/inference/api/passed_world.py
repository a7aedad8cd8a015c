"""A gateway in front of scripted servers whose endpoints are passed through."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from quality.records.record import EmbeddingRecord
from tests.gateway.chained_tiers import well
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

CATALOG = """
[[tiers]]
name = "small"
url = "{chats}"
model = "small-model"

[[tiers]]
name = "large"
url = "{chats}"
model = "large-model"

[[targets]]
name = "media"
provider = "openai"
url = "{media}"
model = "whisper-1"
api_key_env = "AIO_TEST_MEDIA_KEY"
serves = ["transcriptions", "speech", "moderations"]
unit_prices = {{ moderations = 1.0 }}

[[targets]]
name = "painter"
url = "{media}"
model = "painter-1"
serves = ["images", "rerank", "speech"]
unit_prices = {{ images = 0.04, rerank = 2.0 }}
"""


class World:
    """`media`: the server of what is passed through; `answers` by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.chats, self.media = LoopbackServer(well), LoopbackServer(self._answer)
        self.gateway: RunningGateway
        self.client: openai.AsyncOpenAI

    async def _answer(self, call: Call) -> None:
        answer = self.answers[call.path.removeprefix("/v1/")]
        await (answer(call) if callable(answer) else call.reply(200, answer))

    async def record(self, response: httpx.Response) -> EmbeddingRecord:
        ledger, name = self.gateway.serving.records, response.headers["x-request-id"]
        await ledger.recorded(name)  # type: ignore[attr-defined]
        record = await ledger.find(name)
        assert isinstance(record, EmbeddingRecord)
        return record

    async def post(self, path: str, **kwargs: Any) -> httpx.Response:
        return await self.gateway.http.post(f"/v1/{path}", **kwargs)


@asynccontextmanager
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> AsyncIterator[World]:
    monkeypatch.setenv("AIO_TEST_MEDIA_KEY", "sk-media-secret")
    made = World()
    async with made.chats, made.media:
        catalog = (CATALOG + more).format(chats=made.chats.base_url, media=made.media.base_url)
        async with gateway_of(folder, catalog, data_dir=str(folder / "data")) as made.gateway:
            made.client = made.gateway.openai
            yield made
