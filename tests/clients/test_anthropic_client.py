"""The anthropic client against models in this process: stop sequences, calls and thoughts of our own making."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.support.served import UNCACHED, ServedProcess

pytestmark = pytest.mark.processes
WEATHER: Any = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}},
        "required": ["city"],
    },
}


@pytest.fixture(scope="module")
def client(aio: ServedProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=aio.url, api_key="unused", max_retries=0, default_headers=UNCACHED) as sdk:
        yield sdk


def asked(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_a_stop_sequence_ends_the_answer_and_is_named(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tier-1", "max_tokens": 30, "extra_body": {"temperature": 0}}
    whole = client.messages.create(messages=asked("What is the capital of France?"), **fields)
    assert whole.content[0].type == "text"
    word = whole.content[0].text.split()[2]
    cut = client.messages.create(messages=asked("What is the capital of France?"), stop_sequences=[word], **fields)
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)
    assert cut.content[0].type == "text"
    assert whole.content[0].text.startswith(cut.content[0].text)


def test_a_call_has_an_id_of_anthropics_form_and_its_result_is_read(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tier-2", "max_tokens": 60, "tools": [WEATHER]}
    choice: Any = {"type": "tool", "name": "weather"}
    with client.messages.stream(messages=asked("Weather in Paris?"), tool_choice=choice, **fields) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert call.type == "tool_use"
    assert call.id.startswith("toolu_")
    assert list(call.input) == ["city"]  # type: ignore[call-overload]
    turns = [
        *asked("Weather in Paris?"),
        {"role": "assistant", "content": [block.to_dict() for block in message.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
    ]
    counted = client.messages.count_tokens(model="tier-2", messages=turns, tools=[WEATHER])
    answer = client.messages.create(messages=turns, **fields)
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_thoughts_come_first_and_only_if_asked_for(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tier-4", "max_tokens": 1100, "messages": asked("2+2?")}
    with client.messages.stream(thinking={"type": "enabled", "budget_tokens": 1024}, **fields) as stream:
        thought = stream.get_final_message()
    assert [block.type for block in thought.content] == ["thinking", "text"]
    plain = client.messages.create(thinking={"type": "disabled"}, **fields)
    assert [block.type for block in plain.content] == ["text"]
    assert plain.usage.output_tokens < thought.usage.output_tokens
