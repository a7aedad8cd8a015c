"""LangChain's OpenAI classes, unchanged, on the real model in a real process."""

from typing import Literal

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.support.served import ServedProcess

pytestmark = pytest.mark.processes

COUNT = "Count from one to five."


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    mood: Literal["happy", "sad"]


@tool
def get_weather(city: Literal["Lima", "Rome", "Oslo"]) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def chat(aio: ServedProcess, **fields: object) -> ChatOpenAI:
    settings = {"model": "tier-1", "temperature": 0, "seed": 1, "max_tokens": 12} | fields
    return ChatOpenAI(base_url=f"{aio.url}/v1", api_key=SecretStr("unused"), max_retries=0, **settings)  # type: ignore[arg-type]


def test_invoke_brings_text_usage_and_the_models_name(aio: ServedProcess) -> None:
    said = chat(aio).invoke([("system", "Be brief."), ("human", COUNT)])
    assert isinstance(said, AIMessage)
    assert said.text
    assert said.usage_metadata is not None
    assert said.usage_metadata["output_tokens"] > 0
    assert said.response_metadata["model_name"] == "smollm2-int4"
    assert said.response_metadata["finish_reason"] in ("stop", "length")


async def test_chunks_of_a_stream_add_up_to_the_whole_answer_with_its_usage(aio: ServedProcess) -> None:
    whole = await chat(aio).ainvoke(COUNT)
    total = AIMessageChunk(content="")
    async for chunk in chat(aio, stream_usage=True).astream(COUNT):
        total = total + chunk
    assert total.text == whole.text
    assert total.usage_metadata is not None
    assert whole.usage_metadata is not None
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_several_prompts_are_answered_as_each_alone(aio: ServedProcess) -> None:
    model = chat(aio, max_tokens=8)
    prompts = [COUNT, "Name a colour."]
    assert [message.text for message in model.batch(prompts)] == [model.invoke(prompt).text for prompt in prompts]


def test_a_bound_tool_is_called_and_its_result_understood(aio: ServedProcess) -> None:
    model = chat(aio, max_tokens=40)
    question = HumanMessage("What is the weather in Rome?")
    call = model.bind_tools([get_weather], tool_choice="get_weather").invoke([question])
    assert [tool_call["name"] for tool_call in call.tool_calls] == ["get_weather"]
    result = get_weather.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage)
    assert model.bind_tools([get_weather]).invoke([question, call, result]).text


def test_a_streamed_call_is_put_together_from_its_pieces(aio: ServedProcess) -> None:
    model = chat(aio, max_tokens=40).bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    total = AIMessageChunk(content="")
    for chunk in model.stream("What is the weather in Rome?"):
        assert isinstance(chunk, AIMessageChunk)
        total = total + chunk
    assert [tool_call["name"] for tool_call in total.tool_calls] == ["get_weather"]
    assert total.tool_calls[0]["args"]["city"] in ("Lima", "Rome", "Oslo")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_the_callers_own_class(
    aio: ServedProcess, method: Literal["json_schema", "function_calling"]
) -> None:
    model = chat(aio, max_tokens=40).with_structured_output(Person, method=method)
    assert isinstance(model.invoke("Ada is happy. Who is she?"), Person)


def test_log_probabilities_reach_the_metadata(aio: ServedProcess) -> None:
    said = chat(aio, max_tokens=4, logprobs=True, top_logprobs=2).invoke(COUNT)
    tokens = said.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == said.text
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


def test_an_unknown_model_is_the_openai_clients_own_error(aio: ServedProcess) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        chat(aio, model="gpt-9").invoke(COUNT)
    assert caught.value.param == "model"


def test_the_responses_api_goes_on_from_its_previous_response(aio: ServedProcess) -> None:
    model = chat(aio, seed=None, use_responses_api=True, use_previous_response_id=True)
    first = model.invoke([HumanMessage(COUNT)])
    second = model.invoke([HumanMessage(COUNT), first, HumanMessage("Go on.")])
    stored = aio.client.responses.retrieve(second.response_metadata["id"])
    assert stored.previous_response_id == first.response_metadata["id"]
    assert second.usage_metadata is not None
    assert first.usage_metadata is not None
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]
