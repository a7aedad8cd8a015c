"""The recorded shapes are those of the providers: their own client libraries read the same from them."""

import json

import pytest

from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.provider_shapes import (
    THINKING_AND_TOOLS,
    anthropic_stream,
    bedrock_end,
    bedrock_stream,
    bedrock_text,
)
from tiers.dialects.event_stream import EventStreamParser


async def test_anthropics_client_reads_the_recorded_stream() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def answer(call: Call) -> None:
        await call.begin()
        await call.send(anthropic_stream(THINKING_AND_TOOLS))

    async with LoopbackServer(answer) as server:
        base_url = server.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(api_key="k", base_url=base_url, max_retries=0) as client:
            question = [{"role": "user", "content": "Weather?"}]
            async with client.messages.stream(model="claude", max_tokens=99, messages=question) as stream:
                message = await stream.get_final_message()
    kinds = ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]
    assert [block.type for block in message.content] == kinds
    assert (message.content[2].text, message.content[3].input) == ("I look it up: größe 🙂", {"city": "San Jose"})
    assert (message.usage.cache_read_input_tokens, message.stop_reason) == (100, "tool_use")


def test_botocore_splits_the_recorded_event_stream_as_we_do() -> None:
    eventstream = pytest.importorskip("botocore.eventstream")
    data = bedrock_stream([*bedrock_text("größe 🙂"), *bedrock_end()])
    buffer = eventstream.EventStreamBuffer()
    buffer.add_data(data)
    theirs = [(message.headers[":event-type"], json.loads(message.payload)) for message in buffer]
    parser = EventStreamParser()
    ours = [event for at in range(0, len(data), 5) for event in parser.feed(data[at : at + 5])]
    assert [(event.event, json.loads(event.data)) for event in ours] == theirs
    assert len(theirs) == 5
