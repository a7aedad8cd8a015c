"""`service_tier` as a scheduling class that the answer repeats, and `metadata` as tags of the record."""

import json
from typing import Any

import pytest

from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT: dict[str, Any] = {"model": "tier-1", "messages": [{"role": "user", "content": "Say hello."}]}


@pytest.mark.parametrize(
    ("asked", "said", "priority"),
    [("auto", "default", 1), ("default", "default", 1), ("flex", "flex", 2), ("batch", "batch", 2),
     ("priority", "priority", 0)],
)  # fmt: skip
async def test_a_service_tier_is_a_priority_and_the_answer_says_which(
    gateway: RunningGateway, asked: str, said: str, priority: int
) -> None:
    answer = await gateway.openai.chat.completions.create(**CHAT, service_tier=asked)  # type: ignore[arg-type]
    assert answer.service_tier == said
    assert gateway.tier(1).requests[0].priority == priority
    streamed = await gateway.openai.chat.completions.create(**CHAT, service_tier=asked, stream=True)  # type: ignore[call-overload]
    assert {chunk.service_tier async for chunk in streamed} == {said}


async def test_without_the_wish_nothing_is_said_and_a_given_priority_goes_first(gateway: RunningGateway) -> None:
    assert (await gateway.openai.chat.completions.create(**CHAT)).service_tier is None
    fields = CHAT | {"service_tier": "priority", "extra_body": {"priority": 2}}
    assert (await gateway.openai.chat.completions.create(**fields)).service_tier == "flex"


async def test_metadata_is_recorded_with_the_request(gateway: RunningGateway) -> None:
    tags = {"team": "search", "x" * 64: "y" * 512}
    answer = await gateway.openai.chat.completions.create(**CHAT, metadata=tags)
    await gateway.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    shown = await gateway.http.get(f"/v1/requests/{answer.id}")
    assert shown.json()["tags"] == tags


@pytest.mark.parametrize("tags", [{"x" * 65: ""}, {"": "x"}, {"a": "y" * 513}, {str(n): "" for n in range(17)}])
async def test_metadata_beyond_openais_bounds_is_left_out_and_named(
    gateway: RunningGateway, tags: dict[str, Any]
) -> None:
    answer = await gateway.openai.chat.completions.with_raw_response.create(**CHAT, metadata=tags)
    assert answer.headers["x-aio-ignored-fields"].startswith("metadata.")


async def test_the_database_gives_the_tags_back(gateway: RunningGateway) -> None:
    body = CHAT | {"metadata": {"cost centre": "42"}}
    answer = json.loads((await gateway.http.post("/v1/chat/completions", json=body)).content)
    ledger = gateway.serving.records
    await ledger.flush()  # type: ignore[attr-defined]
    record = await ledger.find(answer["id"])
    assert record is not None
    assert record.tags == {"cost centre": "42"}
