"""Thoughts under both of their names, in and out, and variables of the chat template."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.gateway.capable_tiers import Noting, capable_tiers
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO: list[Any] = [{"role": "user", "content": "What is it?"}]
# One too many.
DEEP: Any = {"a": [[[[[[[[1]]]]]]]]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def capable(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RunningGateway, Noting]]:
    async with capable_tiers(tmp_path_factory.mktemp("thoughts")) as running:
        yield running


@pytest.fixture
def gateway(capable: tuple[RunningGateway, Noting]) -> RunningGateway:
    return capable[0]


@pytest.fixture
def noting(capable: tuple[RunningGateway, Noting]) -> Noting:
    capable[1].bodies.clear()
    return capable[1]


async def test_an_answers_thoughts_have_both_names(gateway: RunningGateway) -> None:
    answer = await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO)

    message = answer.choices[0].message.model_dump()
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == (
        "Whiskers.",
        "Whiskers.",
        "A cat.",
    )


async def test_a_streams_thoughts_have_both_names(gateway: RunningGateway) -> None:
    stream = await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO, stream=True)

    deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream if chunk.choices]
    thoughts = [(delta["reasoning_content"], delta["reasoning"]) for delta in deltas if "reasoning" in delta]
    assert thoughts == [("Whiskers.", "Whiskers.")]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_earlier_thoughts_go_back_to_a_server_with_a_template_and_to_no_other(
    gateway: RunningGateway, noting: Noting, name: str
) -> None:
    turns = [*HELLO, {"role": "assistant", "content": "A cat.", name: "It purrs."}, *HELLO]

    for model in ("tier-2", "tier-3"):
        await gateway.openai.chat.completions.create(model=model, messages=turns)

    own, other = (body["messages"][1] for body in noting.bodies)
    assert (own["reasoning"], own["reasoning_content"]) == ("It purrs.", "It purrs.")
    assert other == {"role": "assistant", "content": "A cat."}


async def test_template_variables_go_to_a_server_with_a_template_and_to_no_other(
    gateway: RunningGateway, noting: Noting
) -> None:
    variables = {"enable_thinking": False, "style": {"tone": ["dry"]}}

    for model in ("tier-2", "tier-3"):
        await gateway.openai.chat.completions.create(
            model=model, messages=HELLO, extra_body={"chat_template_kwargs": variables}
        )

    own, other = noting.bodies
    assert own["chat_template_kwargs"] == variables
    assert "chat_template_kwargs" not in other


@pytest.mark.parametrize(
    ("variables", "param"),
    [
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"tools": []}, "chat_template_kwargs.tools"),
        ({"chat_template": "{{ 1 }}"}, "chat_template_kwargs.chat_template"),
        ({"self": 1}, "chat_template_kwargs.self"),
        ({"not a name": 1}, "chat_template_kwargs"),
        ({"a": "x" * 9000}, "chat_template_kwargs"),
        ({"a": 2**64}, "chat_template_kwargs"),
        ({f"a{n}": n for n in range(33)}, "chat_template_kwargs"),
        (DEEP, "chat_template_kwargs"),
        ("enable_thinking", "chat_template_kwargs"),
    ],
)
async def test_reserved_many_or_large_variables_are_refused_by_name(
    gateway: RunningGateway, variables: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await gateway.openai.chat.completions.create(
            model="auto", messages=HELLO, extra_body={"chat_template_kwargs": variables}
        )

    assert refused.value.param == param


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh"])
async def test_every_effort_of_openais_api_reaches_a_remote_tier(
    gateway: RunningGateway, noting: Noting, effort: Any
) -> None:
    await gateway.openai.chat.completions.create(model="tier-3", messages=HELLO, reasoning_effort=effort)

    assert noting.bodies[0]["reasoning_effort"] == effort


async def test_other_variables_make_another_request_to_the_cache(gateway: RunningGateway, noting: Noting) -> None:
    for thinking in (True, True, False):
        body = {"model": "tier-2", "messages": HELLO, "temperature": 0}
        extra = {"chat_template_kwargs": {"enable_thinking": thinking}}
        assert (await gateway.http.post("/v1/chat/completions", json=body | extra)).status_code == 200

    assert len(noting.bodies) == 2
