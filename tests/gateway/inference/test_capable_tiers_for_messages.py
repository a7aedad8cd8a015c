"""What the Messages API gives beyond text reaches tiers that support it, and no others."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from tests.gateway.capable_tiers import Noting, capable_tiers
from tests.support.app import RunningGateway
from tiers.dialects.messages import UNSIGNED

pytestmark = pytest.mark.asyncio(loop_scope="module")
PNG: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
LINKED: Any = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}
PDF: Any = {
    "type": "document",
    "title": "cats.pdf",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
}
TOOL: Any = {"name": "look", "input_schema": {"type": "object"}}
CALL: Any = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
DATA_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RunningGateway, Noting]]:
    async with capable_tiers(tmp_path_factory.mktemp("capable")) as found:
        yield found


@pytest.fixture
def noting(running: tuple[RunningGateway, Noting]) -> Noting:
    running[1].bodies.clear()
    return running[1]


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: tuple[RunningGateway, Noting]) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=running[0].url, api_key="unused", max_retries=0) as found:
        yield found


async def test_images_and_files_reach_a_tier_that_reads_them(noting: Noting, client: anthropic.AsyncAnthropic) -> None:
    content = [{"type": "text", "text": "Compare"}, PNG, LINKED, PDF]
    messages: Any = [{"role": "user", "content": content}]
    answer = await client.messages.create(model="auto", max_tokens=9, messages=messages)
    assert answer.model == "large-model"
    assert [block.type for block in answer.content] == ["text"]
    (body,) = noting.bodies
    file = {"filename": "cats.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "Compare"},
        DATA_URL,
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
        {"type": "file", "file": file},
    ]


async def test_an_image_of_a_result_follows_in_the_users_turn(noting: Noting, client: anthropic.AsyncAnthropic) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Found:"}, PNG]}
    messages: Any = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result, {"type": "text", "text": "What is it?"}]},
    ]
    await client.messages.create(model="auto", max_tokens=9, messages=messages, tools=[TOOL])
    tool, user = noting.bodies[0]["messages"][-2:]
    assert (tool["role"], tool["tool_call_id"]) == ("tool", "toolu_1")
    assert tool["content"] == "Found:\n\n(The image of this result follows in the next message.)"
    assert (user["role"], user["content"]) == ("user", [DATA_URL, {"type": "text", "text": "What is it?"}])


async def test_what_a_named_tier_does_not_read_is_refused_with_its_place(
    noting: Noting, client: anthropic.AsyncAnthropic
) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}, {"role": "user", "content": [PNG]}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(model="small-model", max_tokens=9, messages=messages)
    assert "messages.0" in str(refused.value)
    assert not noting.bodies


async def test_thoughts_of_earlier_answers_reach_a_server_that_reads_them(
    noting: Noting, client: anthropic.AsyncAnthropic
) -> None:
    thought = {"type": "thinking", "thinking": "Easy.", "signature": UNSIGNED}
    messages: Any = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "2."}]},
        {"role": "user", "content": "2+2?"},
    ]
    thinking: Any = {"type": "adaptive"}
    answer = await client.messages.create(model="own-model", max_tokens=9, messages=messages, thinking=thinking)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    earlier = noting.bodies[0]["messages"][1]
    assert earlier["content"] == "2."
    assert "Easy." in (earlier.get("reasoning"), earlier.get("reasoning_content"))


async def test_unknown_fields_are_ignored_and_named(noting: Noting, client: anthropic.AsyncAnthropic) -> None:
    raw = await client.messages.with_raw_response.create(
        model="large-model", max_tokens=9, messages=[{"role": "user", "content": "Hi"}], extra_body={"speed": "fast"}
    )
    assert raw.headers["x-aio-ignored-fields"] == "speed"
    assert raw.headers["request-id"] == (await raw.parse()).id
