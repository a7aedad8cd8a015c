"""The LiteLLM SDK, unchanged, on the real model in a real process."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.served import ServedProcess

pytestmark = pytest.mark.processes

COUNT = [{"role": "user", "content": "Count from one to five."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Lima", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    """The package, configured not to fetch its price list."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        yield litellm


def arguments(aio: ServedProcess, **fields: Any) -> dict[str, Any]:
    connection = {"api_base": f"{aio.url}/v1", "api_key": "unused", "num_retries": 0}
    chat = {"model": "openai/tier-1", "messages": COUNT, "temperature": 0, "seed": 1, "max_tokens": 12}
    return connection | chat | fields


def test_a_completion_has_text_usage_and_finish_reason(litellm: Any, aio: ServedProcess) -> None:
    answer = litellm.completion(**arguments(aio))
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_an_asynchronous_stream_adds_up_to_the_whole_answer(litellm: Any, aio: ServedProcess) -> None:
    whole = await litellm.acompletion(**arguments(aio))
    chunks = [
        chunk
        async for chunk in await litellm.acompletion(
            **arguments(aio, stream=True, stream_options={"include_usage": True})
        )
    ]
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


def test_a_stream_without_usage_ends_with_one_finish_reason(litellm: Any, aio: ServedProcess) -> None:
    chunks = list(litellm.completion(**arguments(aio, stream=True)))
    assert [chunk.choices[0].finish_reason for chunk in chunks].count(None) == len(chunks) - 1


def test_a_tool_is_called(litellm: Any, aio: ServedProcess) -> None:
    # Without its extra `mcp` the SDK cannot even check whether a tool belongs to an MCP server.
    fields = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 40, "_skip_mcp_handler": True}
    answer = litellm.completion(**arguments(aio, **fields))
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Lima", "Rome")


def test_a_schema_binds_the_answer(litellm: Any, aio: ServedProcess) -> None:
    schema = WEATHER["function"]["parameters"]
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    answer = litellm.completion(**arguments(aio, response_format=form, max_tokens=40))
    assert json.loads(answer.choices[0].message.content)["city"] in ("Lima", "Rome")


def test_a_text_completion_continues_the_prompt(litellm: Any, aio: ServedProcess) -> None:
    fields = arguments(aio, model="text-completion-openai/tier-1", max_tokens=6)
    fields.pop("messages")
    answer = litellm.text_completion(prompt="One, two, three, four,", **fields)
    assert answer.choices[0].text.startswith(" five")


def test_an_unknown_model_and_a_bad_value_are_its_own_errors(litellm: Any, aio: ServedProcess) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**arguments(aio, model="openai/gpt-9"))
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**arguments(aio, temperature=7))
