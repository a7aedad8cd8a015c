"""Custom tools of `/v1/responses`: text that travels as the argument of a function, and the events of a call."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.app import RunningGateway
from tiers.conversation import ToolCallDelta
from tiers.dialects.constraints import InputReader, arguments_of, input_of

PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Applies a patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin"'},
}
TEXT = '*** Begin\n+print("😀")\n'


def pieces(text: str) -> tuple[ToolCallDelta, ...]:
    """A call with this input, its arguments in pieces that cut escapes."""
    arguments = json.dumps({"input": text})
    cut = [arguments[n : n + 5] for n in range(0, len(arguments), 5)]
    first = ToolCallDelta(index=0, id="call_1", name="apply_patch", arguments=cut[0])
    return (first, *(ToolCallDelta(index=0, arguments=piece) for piece in cut[1:]))


@pytest.mark.asyncio(loop_scope="module")
async def test_the_result_of_a_custom_call_goes_back_as_items_or_by_the_previous_response(
    gateway: RunningGateway,
) -> None:
    tier = gateway.tier(1)
    tier.words, tier.calls = (), pieces(TEXT)
    responses = gateway.openai.responses
    called = await responses.create(model="tier-1", input="Fix it.", tools=[PATCH])
    tier.words, tier.calls = ("Done",), ()
    result: Any = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "applied"}
    conversation: Any = [{"role": "user", "content": "Fix it."}, called.output[0].to_dict(), result]
    await responses.create(model="tier-1", input=conversation, tools=[PATCH])
    await responses.create(model="tier-1", input=[result], previous_response_id=called.id, tools=[PATCH])
    whole, continued = (request.messages or [] for request in tier.requests[-2:])
    assert whole == continued
    assert input_of(whole[1].calls[0].arguments) == TEXT
    assert (whole[2].role, whole[2].text, whole[2].call_id) == ("tool", "applied", "call_1")


@given(text=st.text(), sizes=st.lists(st.integers(1, 9), min_size=1), escaped=st.booleans())
def test_an_input_is_read_alike_however_its_arguments_are_cut(text: str, sizes: list[int], escaped: bool) -> None:
    arguments = json.dumps({"input": text}) if escaped else arguments_of(text)
    reader, said, at, turn = InputReader(), "", 0, 0
    while at < len(arguments):
        size = sizes[turn % len(sizes)]
        said, at, turn = said + reader.take(arguments[at : at + size]), at + size, turn + 1
    assert said + reader.rest() == text == input_of(arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("ls -l", "ls -l"),
        ('"ls -l"', "ls -l"),
        ('{"note": 1, "input": "ls"}', "ls"),
        ('{"command": "ls"}', '{"command": "ls"}'),
        ('{"input": "cut off by a lim', "cut off by a lim"),
        (r'{"input": "half \ud83d"}', "half �"),
        ("", ""),
    ],
)
def test_what_a_model_that_nothing_binds_writes_is_the_input(arguments: str, text: str) -> None:
    assert input_of(arguments) == text
