"""Any conversation of a client of each API reaches a server of each API with all that both know: texts, calls, results
and their order. What a pair does lose is in docs/results/losses.md."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gateway.fidelity.dialects import request_facts
from benchmarks.gateway.fidelity.losses import CLIENTS, SERVERS, catalogue, request_to
from benchmarks.gateway.fidelity.provider import Provider, dialect_of, recording_provider
from benchmarks.gateway.fidelity.wires import KEYS
from gateway.base.settings import Settings
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.gateway.served_process import UNCACHED
from tests.gateway.walk import BOUNDED
from tests.loop_thread import on_a_thread

Body = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMES = ("lookup", "note")
# No text that is blank, which some APIs refuse; no halves of characters, which are none; no line ends at either end.
texts = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), min_size=1, max_size=40).map(
    lambda text: f"<{text}>"
)
arguments = st.dictionaries(
    st.sampled_from("abc"), st.one_of(texts, st.integers(-9, 9), st.lists(texts, max_size=2), st.none()), max_size=2
)


class Call(NamedTuple):
    """A call with what its tool said."""

    name: str
    arguments: Body
    result: str


class Round(NamedTuple):
    """What a user says, what the assistant says to it, and the calls that it makes."""

    question: str
    answer: str
    calls: list[Call]


class Conversation(NamedTuple):
    """Rounds, and the user's last turn; without one, the results of the last calls are what is answered."""

    system: str
    rounds: list[Round]
    last: str


calls = st.builds(Call, st.sampled_from(NAMES), arguments, texts)
rounds = st.builds(Round, texts, texts, st.lists(calls, max_size=3))
conversations = st.builds(Conversation, st.one_of(st.just(""), texts), st.lists(rounds, max_size=3), texts)


def call_ids(said: Conversation) -> Iterator[list[tuple[str, Call]]]:
    for number, one in enumerate(said.rounds):
        yield [(f"call_{number}_{place}_0123456789", call) for place, call in enumerate(one.calls)]


def as_chat(said: Conversation) -> Body:
    turns: list[Body] = [{"role": "system", "content": said.system}] if said.system else []
    for one, named in zip(said.rounds, call_ids(said), strict=True):
        turns += [{"role": "user", "content": one.question}, {"role": "assistant", "content": one.answer}]
        made = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in one.calls]
        if made:
            turns[-1]["tool_calls"] = [
                {"id": name, "type": "function", "function": function}
                for (name, _), function in zip(named, made, strict=True)
            ]
        turns += [{"role": "tool", "tool_call_id": name, "content": call.result} for name, call in named]
    functions = [{"name": name, "description": "d", "parameters": SCHEMA} for name in NAMES]
    tools = [{"type": "function", "function": function} for function in functions]
    return {"messages": [*turns, {"role": "user", "content": said.last}], "tools": tools}


def as_responses(said: Conversation) -> Body:
    items: list[Body] = []
    for one, named in zip(said.rounds, call_ids(said), strict=True):
        items += [{"role": "user", "content": one.question}, {"role": "assistant", "content": one.answer}]
        items += [
            {"type": "function_call", "call_id": name, "name": call.name, "arguments": json.dumps(call.arguments)}
            for name, call in named
        ]
        items += [{"type": "function_call_output", "call_id": name, "output": call.result} for name, call in named]
    tools = [{"type": "function", "name": name, "description": "d", "parameters": SCHEMA} for name in NAMES]
    body: Body = {"input": [*items, {"role": "user", "content": said.last}], "tools": tools}
    return body | ({"instructions": said.system} if said.system else {})


def as_messages(said: Conversation) -> Body:
    turns: list[Body] = []
    results: list[Body] = []
    for one, named in zip(said.rounds, call_ids(said), strict=True):
        turns.append({"role": "user", "content": [*results, {"type": "text", "text": one.question}]})
        used = [{"type": "tool_use", "id": name, "name": call.name, "input": call.arguments} for name, call in named]
        turns.append({"role": "assistant", "content": [{"type": "text", "text": one.answer}, *used]})
        results = [{"type": "tool_result", "tool_use_id": name, "content": call.result} for name, call in named]
    turns.append({"role": "user", "content": [*results, {"type": "text", "text": said.last}]})
    tools = [{"name": name, "description": "d", "input_schema": SCHEMA} for name in NAMES]
    body: Body = {"messages": turns, "tools": tools, "max_tokens": 500}
    return body | ({"system": said.system} if said.system else {})


def as_gemini(said: Conversation) -> Body:
    contents: list[Body] = []
    results: list[Body] = []
    for one, named in zip(said.rounds, call_ids(said), strict=True):
        contents.append({"role": "user", "parts": [*results, {"text": one.question}]})
        made = [{"functionCall": {"id": name, "name": call.name, "args": call.arguments}} for name, call in named]
        contents.append({"role": "model", "parts": [{"text": one.answer}, *made]})
        results = [
            {"functionResponse": {"id": name, "name": call.name, "response": {"result": call.result}}}
            for name, call in named
        ]
    contents.append({"role": "user", "parts": [*results, {"text": said.last}]})
    declared = [{"name": name, "description": "d", "parametersJsonSchema": SCHEMA} for name in NAMES]
    body: Body = {"contents": contents, "tools": [{"functionDeclarations": declared}]}
    return body | ({"systemInstruction": {"parts": [{"text": said.system}]}} if said.system else {})


WRITERS = {"chat": as_chat, "responses": as_responses, "messages": as_messages, "gemini": as_gemini}


def facts_of(dialect: str, body: Body) -> Body:
    """What a request says, with places in stead of ids: the call of each result, by its number."""
    facts = request_facts(dialect, body)
    joined: list[list[str]] = []
    for role, text in facts["texts"]:
        if joined and joined[-1][0] == role:
            joined[-1][1] += text
        else:
            joined.append([role, text])
    numbers = {call_id: number for number, (call_id, _, _) in enumerate(facts["calls"])}
    # Gemini's own ids are optional: results then follow the calls in their order.
    answered = [numbers.get(call_id, place) for place, (call_id, _) in enumerate(facts["results"])]
    return {
        "system": facts["system"],
        "texts": joined,
        "calls": [[name, given] for _, name, given in facts["calls"]],
        "results": [text for _, text in facts["results"]],
        "answered": list(range(len(answered))) if dialect == "gemini" else answered,
        "tools": facts["tools"],
    }


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with on_a_thread(recording_provider()) as (found, _):
        yield found


@pytest.fixture(scope="module")
def gateway(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "catalog.toml").write_text(catalogue(provider.origin))
    served = Settings(data_dir=str(folder / "data"), catalog=str(folder / "catalog.toml"), monitor=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEYS.items():
            patch.setenv(name, key)
        with on_a_thread(running_gateway(served, scripted=False, protocol=BOUNDED)) as (found, _):
            yield found


@pytest.fixture(scope="module")
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60, headers=UNCACHED) as client:
        yield client


@pytest.mark.hypothesis
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_conversation_survives_each_pair_of_apis(
    client: str, server: str, provider: Provider, http: httpx.Client
) -> None:
    # Each is a request through the whole gateway.
    @settings(max_examples=max(5, (settings.default or settings()).max_examples // 5))
    @given(conversations)
    def survives(said: Conversation) -> None:
        body = WRITERS[client](said)
        path, sent = request_to(client, server, body)
        answer = http.post(path, json=sent)
        assert answer.status_code == 200, answer.text
        path, got = provider.calls[-1]
        provider.calls.clear()
        assert facts_of(dialect_of(path), got) == facts_of(client, body)
        assert "x-aio-changed-fields" not in answer.headers
        if client == dialect_of(path) == "messages":
            assert got["messages"] == body["messages"]
        if client == dialect_of(path) == "gemini" and not facts_of(client, body)["calls"]:
            # Calls that no model of Gemini's has signed are sent with Google's value for that.
            assert got["contents"] == body["contents"]

    survives()
