"""Batches by OpenAI's client, as the tests make them and wait for them."""

import asyncio
import io
import json
from collections.abc import Sequence
from typing import Any

import openai
from openai.types import Batch

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def request_line(custom_id: str, endpoint: str = CHAT, **body: Any) -> bytes:
    asked = {"model": "tier-1", "messages": [{"role": "user", "content": f"Say {custom_id}."}]} | body
    if endpoint != CHAT:
        asked = {"model": "tier-1"} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": endpoint, "body": asked}).encode()


async def uploaded(client: openai.AsyncOpenAI, lines: Sequence[bytes]) -> str:
    content = io.BytesIO(b"\n".join(lines) + b"\n")
    return (await client.files.create(file=("in.jsonl", content), purpose="batch")).id


async def made(client: openai.AsyncOpenAI, lines: Sequence[bytes], endpoint: str = CHAT, **fields: Any) -> Batch:
    given: dict[str, Any] = {"completion_window": "24h", "endpoint": endpoint} | fields
    return await client.batches.create(input_file_id=await uploaded(client, lines), **given)


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Batch:
    """Return the batch once it has ended, polling as a client does."""
    while (batch := await client.batches.retrieve(batch_id)).status not in ENDED:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return batch


async def until(client: openai.AsyncOpenAI, batch_id: str, status: str) -> Batch:
    while (batch := await client.batches.retrieve(batch_id)).status != status:
        assert batch.status not in ENDED, batch
        await asyncio.sleep(0.02)
    return batch


async def until_answered(client: openai.AsyncOpenAI, batch_id: str, lines: int) -> None:
    """Wait until this many lines have an answer."""
    while (counts := (await client.batches.retrieve(batch_id)).request_counts) is None or counts.completed < lines:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """By custom id; each occurs once."""
    if file_id is None:
        return {}
    lines = [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "a custom_id was answered twice"
    return found


async def outcome(client: openai.AsyncOpenAI, batch_id: str) -> tuple[Batch, dict[str, Any], dict[str, Any]]:
    """The ended batch, its output and its errors."""
    batch = await ended(client, batch_id)
    return batch, await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
