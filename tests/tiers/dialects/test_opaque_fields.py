"""What a caller says in its own dialect alone reaches a server with the same dialect as it is, with what the server
needs put over it."""

from typing import Any

import msgspec
import pytest

from inference_core.protocol import SamplingParams
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import ReadRequest
from tiers.dialects.adapted_request import adapted
from tiers.dialects.adapted_turns import fitting_name
from tiers.dialects.dialect import ServerDialect, overlaid
from tiers.dialects.gemini import GenerateContentRequest
from tiers.dialects.gemini_request import read_gemini
from tiers.dialects.gemini_server import GeminiServer
from tiers.dialects.messages import MessagesRequest
from tiers.dialects.messages_request import read_messages
from tiers.dialects.messages_server import MessagesServer
from tiers.dialects.responses import request_body
from tiers.dialects.responses_items import given_items
from tiers.dialects.responses_request import read_responses
from tiers.dialects.responses_schemas import ResponsesRequest
from tiers.dialects.rules import ParameterRules, Rules, ToolRules
from tiers.tier import GenerationRequest

REMOTE = RemoteSpec(base_url="https://x/", model="claude-opus-5", kind="anthropic", api_key_env="K")
NAMES = ("A-Za-z0-9_-", 64)
RULES = Rules(tools=ToolRules(tool_names=NAMES), parameters=ParameterRules(efforts=("low", "high")))
GIVEN, SENT = "look/at", fitting_name("look/at", NAMES)
SCHEMA = {"type": "object", "properties": {}}
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def request_of(read: ReadRequest) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        sampling=SamplingParams(),
        messages=read.turns,
        tooling=read.tooling,
        reasoning_effort=read.reasoning_effort,
        given=read.explicit,
        passed=read.passed,
        opaque=read.opaque,
    )


def sent(server: ServerDialect, read: ReadRequest, rules: Rules, refused: frozenset[str] = frozenset()) -> Any:
    server.rules = rules
    return msgspec.json.decode(server.call(adapted(request_of(read), rules, refused).request, 4096).body)


def to_messages(rules: Rules = RULES, **fields: Any) -> Any:
    read = read_messages(msgspec.json.decode(msgspec.json.encode(ASKED | fields), type=MessagesRequest))
    return sent(MessagesServer(REMOTE), read, rules)


def to_responses(rules: Rules = RULES, refused: frozenset[str] = frozenset(), **fields: Any) -> Any:
    said = msgspec.json.encode({"model": "m", "input": "Hi"} | fields)
    body, items = msgspec.json.decode(said, type=ResponsesRequest), given_items(said)
    request = adapted(request_of(read_responses(body, raw=items)), rules, refused).request
    return msgspec.json.decode(msgspec.json.encode(request_body(REMOTE, request, None, streamed=False)))


def test_a_tool_of_messages_keeps_what_only_they_say_under_another_name() -> None:
    own = {"type": "web_search_20250305", "name": "web_search"}
    tool = {"name": GIVEN, "input_schema": SCHEMA, "defer_loading": True, "cache_control": {"type": "ephemeral"}}
    body = to_messages(tools=[own, tool], tool_choice={"type": "tool", "name": GIVEN})
    assert body["tools"] == [own, tool | {"name": SENT}]
    assert body["tool_choice"] == {"type": "tool", "name": SENT}


def test_tools_of_messages_that_the_server_takes_are_as_they_were() -> None:
    tool = {"name": GIVEN, "input_schema": SCHEMA, "defer_loading": True}
    body = to_messages(Rules(), tools=[tool], tool_choice={"type": "any"})
    assert (body["tools"], body["tool_choice"]) == ([tool], {"type": "any"})


def test_functions_of_responses_get_another_name_and_custom_tools_keep_their_format() -> None:
    function = {"type": "function", "name": GIVEN, "parameters": SCHEMA, "defer_loading": True}
    custom = {"type": "custom", "name": "write/it", "format": {"type": "text"}}
    space = {"type": "namespace", "name": GIVEN, "description": "All.", "tools": [function]}
    body = to_responses(tools=[function, custom, space], tool_choice={"type": "custom", "name": "write/it"})
    named = {"name": fitting_name("write/it", NAMES)}
    assert body["tools"] == [function | {"name": SENT}, custom | named, space]
    assert body["tool_choice"] == {"type": "custom", **named}


def test_functions_next_to_a_tool_that_google_runs_get_another_name() -> None:
    tools = [{"functionDeclarations": [{"name": GIVEN, "parameters": SCHEMA}], "googleSearch": {}}]
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "tools": tools}
    read = read_gemini(msgspec.convert(body, GenerateContentRequest), "gemini", stream=False, runs_tools=True)
    functions, own = sent(GeminiServer(REMOTE), read, RULES)["tools"]
    assert [function["name"] for function in functions["functionDeclarations"]] == [SENT]
    assert own == {"googleSearch": {}}
    assert sent(GeminiServer(REMOTE), read, Rules())["tools"] == tools


@pytest.mark.parametrize(
    ("asked", "rules", "effort"), [("high", RULES, "high"), ("medium", RULES, "high"), ("medium", Rules(), "medium")]
)
def test_an_effort_is_the_nearest_that_the_server_takes(asked: str, rules: Rules, effort: str) -> None:
    body = to_messages(rules, output_config={"effort": asked, "task_budget": 7})
    assert body["output_config"] == {"effort": effort, "task_budget": 7}
    body = to_responses(rules, reasoning={"effort": asked, "summary": "auto"})
    assert body["reasoning"] == {"effort": effort, "summary": "auto"}


def test_what_a_server_refuses_is_not_sent() -> None:
    tools = [{"type": "function", "name": "f", "parameters": SCHEMA}]
    refused = frozenset({"reasoning_effort", "parallel_tool_calls"})
    fields: dict[str, Any] = {"reasoning": {"effort": "high"}, "parallel_tool_calls": False, "tools": tools}
    assert not {"reasoning", "parallel_tool_calls"} & to_responses(Rules(), refused, **fields).keys()
    assert to_responses(Rules(), **fields)["parallel_tool_calls"] is False


def test_an_object_that_says_the_same_stays_byte_for_byte() -> None:
    assert overlaid(b'{"effort":  "low"}', effort="low") == msgspec.Raw(b'{"effort":  "low"}')
    assert overlaid(b'{"effort":  "low"}', effort=None) is None
    assert overlaid(b"{}", effort="low") == msgspec.Raw(b'{"effort":"low"}')
