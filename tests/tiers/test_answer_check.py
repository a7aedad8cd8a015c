"""What is checked before an answer is sent as complete: strict answers, and the arguments of calls."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from inference_core.protocol import Grammar, SamplingParams
from tests.tiers.tier_world import chat, remote_spec
from tiers.answer_check import checked
from tiers.conversation import Tool, ToolCallDelta, Tooling
from tiers.errors import InvalidAnswerError
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import AnswerEnd, Delta, FinishReason, GenerationRequest, Usage

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
GOOD, BAD = '{"age": 3}', '{"age": "x"}'


def elsewhere() -> RemoteTier:
    return RemoteTier(remote_spec("http://127.0.0.1:9"))


def here() -> RemoteTier:
    tier = elsewhere()
    tier.core_name = "cpu"
    return tier


def asked(*, strict: bool = True, tooling: Tooling | None = None, **fields: Any) -> GenerationRequest:
    grammar = Grammar(kind="json_schema", text=json.dumps(SCHEMA), param="response_format.json_schema.schema")
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": SCHEMA}}
    return chat(sampling=SamplingParams(grammar=grammar), response_format=form, tooling=tooling, **fields)


def tools(choice: Any = "auto", *, strict: bool = False) -> Tooling:
    return Tooling(tools=(Tool(name="age", parameters=SCHEMA, strict=strict),), choice=choice)


async def said(*deltas: Delta) -> AsyncGenerator[Delta, None]:
    for delta in deltas:
        yield delta
    yield Delta(end=AnswerEnd(usage=Usage()))


def text(answer: str, reason: FinishReason = "stop") -> AsyncGenerator[Delta, None]:
    return said(Delta(text=answer[:4]), Delta(text=answer[4:]), Delta(finish_reason=reason))


def call(arguments: str, reason: FinishReason = "tool_calls") -> AsyncGenerator[Delta, None]:
    first = ToolCallDelta(index=0, id="c", name="age", arguments=arguments[:3])
    rest = ToolCallDelta(index=0, arguments=arguments[3:])
    return said(Delta(tool_calls=[first]), Delta(tool_calls=[rest]), Delta(finish_reason=reason))


async def drained(tier: RemoteTier, request: GenerationRequest, deltas: AsyncGenerator[Delta, None]) -> list[Delta]:
    return [delta async for delta in checked(tier, request, deltas)]


async def test_a_strict_answer_of_a_server_elsewhere_ends_only_if_it_is_valid() -> None:
    assert len(await drained(elsewhere(), asked(), text(GOOD))) == 4
    with pytest.raises(InvalidAnswerError, match=r"response_format.json_schema.schema: .*\$.age .*'type'"):
        await drained(elsewhere(), asked(), text(BAD))


async def test_calls_of_strict_tools_end_only_if_they_are_valid() -> None:
    request = chat(tooling=tools(strict=True))
    for tier in (elsewhere(), here()):
        assert len(await drained(tier, request, call(GOOD))) == 4
        with pytest.raises(InvalidAnswerError, match=r"tools\[0\].function.parameters: .*'type'"):
            await drained(tier, request, call(BAD))


async def test_forced_calls_are_checked_of_models_here() -> None:
    with pytest.raises(InvalidAnswerError):
        await drained(here(), chat(tooling=tools("required")), call(BAD))
    await drained(elsewhere(), chat(tooling=tools("required")), call(BAD))


async def test_an_answer_that_could_call_tools_is_checked_of_models_here() -> None:
    with pytest.raises(InvalidAnswerError):
        await drained(here(), asked(tooling=tools()), text(BAD))


@pytest.mark.parametrize(
    ("request_", "deltas"),
    [
        (asked(), text(BAD, "length")),
        (asked(strict=False), text(BAD)),
        (asked(stop=("x",)), text(BAD)),
        (asked(), said(Delta(text="I will not.", refusal=True), Delta(finish_reason="stop"))),
        (chat(tooling=tools()), call(BAD)),
        (chat(tooling=tools(strict=True)), call(BAD, "length")),
        (chat(), text("no JSON")),
    ],
)
async def test_what_is_cut_off_free_or_refused_is_not_checked(
    request_: GenerationRequest, deltas: AsyncGenerator[Delta, None]
) -> None:
    await drained(elsewhere(), request_, deltas)


async def test_every_choice_is_checked_on_its_own() -> None:
    request = msgspec.structs.replace(asked(), n=2)
    deltas = said(
        Delta(text=GOOD), Delta(index=1, text=BAD), Delta(finish_reason="stop"), Delta(index=1, finish_reason="stop")
    )
    answer = checked(elsewhere(), request, deltas)
    ended = [await anext(answer) for _ in range(3)][-1]
    assert (ended.index, ended.finish_reason) == (0, "stop")
    with pytest.raises(InvalidAnswerError):
        await anext(answer)
