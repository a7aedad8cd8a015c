"""Histories and fields as clients send them: read as they are meant, on each API."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.base.errors import ApiError
from gateway.base.inference_request import KEYLESS
from gateway.inference.api import chat_turns
from gateway.inference.api.foreign_forms import mend_chat
from gateway.inference.api.messages.conversation import conversation_of
from gateway.inference.api.messages.schemas import Turn
from gateway.inference.api.prompt_files import with_files
from gateway.inference.api.schemas import Message
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.served_process import UNCACHED
from tiers.chat_state import PART_TYPES
from tiers.conversation import Media, NativeContent, Text
from tiers.remote.anthropic_request import message_turns

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED = {"role": "user", "content": "Go on."}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1"}
ANSWERED = {"role": "tool", "tool_call_id": "c1", "content": "r"}
SDK_CALL = {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": {"a": 1}}
SDK_RESULT = {"type": "tool-result", "toolCallId": "c1", "toolName": "f", "output": {"type": "text", "value": "r"}}
PAGE = "data:text/markdown;base64,aGk="


def called(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [CALL | fields]}


def function(arguments: Any) -> dict[str, Any]:
    return {"function": {"name": "f", "arguments": arguments}}


async def turns_of(gateway: RunningGateway, path: str, fields: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the tier is given: roles, texts, calls (id, arguments), answered calls."""
    answer = await gateway.http.post(path, json={"model": "tier-1"} | fields, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    return [
        (
            turn.role,
            turn.text,
            *[(call.id, call.arguments) for call in turn.calls],
            *([turn.call_id] if turn.call_id else []),
        )
        for turn in gateway.tier(1).requests[-1].messages or ()
    ]


CHAT: dict[str, tuple[list[dict[str, Any]], list[tuple[Any, ...]]]] = {
    "no content, a refusal": ([{"role": "assistant", "content": None, "refusal": "No."}], [("assistant", "No.")]),
    "null content": ([{"role": "assistant", "content": None}], [("assistant", "")]),
    "no content at all": ([{"role": "assistant"}], [("assistant", "")]),
    "an empty list": ([{"role": "assistant", "content": []}], [("assistant", "")]),
    "an empty text": ([{"role": "assistant", "content": ""}], [("assistant", "")]),
    "an empty turn of the user": ([{"role": "user", "content": None}], [("user", "")]),
    "an empty system turn": ([{"role": "system", "content": []}], [("system", "")]),
    "a part without a text": (
        [{"role": "assistant", "content": [{"type": "text", "text": None}]}], [("assistant", "")],
    ),
    "parts in each role": (
        [{"role": role, "content": [{"type": "text", "text": "a"}]} for role in ("developer", "user", "assistant")],
        [("system", "a"), ("user", "a"), ("assistant", "a")],
    ),
    "parts named as in Responses": (
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], [("user", "a")],
    ),
    "thoughts as a part": (
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]}],
        [("assistant", "a")],
    ),
    "a name": ([{"role": "user", "content": "a", "name": "ann"}], [("user", "a")]),
    "no calls": ([{"role": "assistant", "content": "a", "tool_calls": []}], [("assistant", "a")]),
    "null for calls": ([{"role": "assistant", "content": "a", "tool_calls": None}], [("assistant", "a")]),
    "broken arguments": ([called(**function('{"a": '))], [("assistant", "", ("c1", '{"a": '))]),
    "arguments as an object": ([called(**function({"a": 1}))], [("assistant", "", ("c1", '{"a":1}'))]),
    "null for arguments": ([called(**function(None))], [("assistant", "", ("c1", "{}"))]),
    "no arguments": ([called(function={"name": "f"})], [("assistant", "", ("c1", "{}"))]),
    "null for a call's type": ([called(type=None)], [("assistant", "", ("c1", "{}"))]),
    "an empty result": (
        [called(), {"role": "tool", "tool_call_id": "c1", "content": None}],
        [("assistant", "", ("c1", "{}")), ("tool", "", "c1")],
    ),
    "calls and results without ids": (
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL | {"id": ""}, CALL | {"id": None}]},
            {"role": "tool", "content": "one", "tool_call_id": ""},
            {"role": "tool", "content": "two"},
        ],
        [
            ("assistant", "", ("call_0_0", "{}"), ("call_0_1", "{}")),
            ("tool", "one", "call_0_0"),
            ("tool", "two", "call_0_1"),
        ],
    ),
    "a result without a call": (
        [{"role": "tool", "tool_call_id": "lost", "content": "r"}], [("tool", "r", "lost")],
    ),
    "parts that are texts": ([{"role": "user", "content": ["a", "b"]}], [("user", "a\nb")]),
    "a part without a type": ([{"role": "user", "content": [{"text": "a"}]}], [("user", "a")]),
    "one part alone": ([{"role": "user", "content": {"type": "text", "text": "a"}}], [("user", "a")]),
    "an object as a result": (
        [called(), {"role": "tool", "tool_call_id": "c1", "content": {"a": 1}}],
        [("assistant", "", ("c1", "{}")), ("tool", '{"a": 1}', "c1")],
    ),
    "a number as a result": (
        [called(), {"role": "tool", "tool_call_id": "c1", "content": 12}],
        [("assistant", "", ("c1", "{}")), ("tool", "12", "c1")],
    ),
    "a list as arguments": ([called(**function([]))], [("assistant", "", ("c1", "{}"))]),
    "functions of the first years": (
        [
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "r"},
        ],
        [("assistant", "", ("call_0_0", "{}")), ("tool", "r", "call_0_0")],
    ),
    "Anthropic's calls and results": (
        [
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, USE | {"input": {"b": 1}}]},
            {"role": "user", "content": [RESULT | {"content": [{"type": "text", "text": "r"}]}, "c"]},
        ],
        [("assistant", "a", ("c1", '{"b": 1}')), ("tool", "r", "c1"), ("user", "c")],
    ),
    "the assistant first": ([{"role": "assistant", "content": "Hello."}], [("assistant", "Hello.")]),
    "roles of other libraries": (
        [{"role": "Human", "content": "a"}, {"role": "ai", "content": "b"}], [("user", "a"), ("assistant", "b")],
    ),
    "a result of the role ipython": (
        [called(), {"role": "ipython", "content": "r"}], [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "a number as a text": ([{"role": "user", "content": [{"type": "text", "text": 12}]}], [("user", "12")]),
    "roles of smolagents": (
        [{"role": "tool-call", "content": "a"}, {"role": "tool-response", "content": "b"}],
        [("assistant", "a"), ("user", "b")],
    ),
    "null in a list": ([None, {"role": "user", "content": [None, "a"]}], [("user", "a")]),
    "one call alone": (
        [called() | {"tool_calls": CALL}, {"role": "tool", "tool_call_id": "c1", "content": "r"}],
        [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "no calls as an object": ([{"role": "assistant", "content": "a", "tool_calls": {}}], [("assistant", "a")]),
    "numbers as ids": (
        [called(id=7), {"role": "tool", "tool_call_id": 7, "content": "r"}],
        [("assistant", "", ("7", "{}")), ("tool", "r", "7")],
    ),
    "a result as a block of a tool's turn": (
        [called(), {"role": "tool", "content": [RESULT | {"content": "r"}]}],
        [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "a resource of MCP": (
        [
            called(),
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "resource", "resource": {"text": "r"}}]},
        ],
        [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "a call of LangChain": (
        [called() | {"tool_calls": [{"id": "c1", "name": "f", "args": {"a": 1}, "type": "tool_call"}]}, ANSWERED],
        [("assistant", "", ("c1", '{"a": 1}')), ("tool", "r", "c1")],
    ),
    "a call without its function": (
        [called() | {"tool_calls": [{"id": "c1", "name": "f", "arguments": {"a": 1}}]}, ANSWERED],
        [("assistant", "", ("c1", '{"a": 1}')), ("tool", "r", "c1")],
    ),
    "a call and a result of the AI SDK": (
        [{"role": "assistant", "content": [SDK_CALL]}, {"role": "tool", "content": [SDK_RESULT]}],
        [("assistant", "", ("c1", '{"a": 1}')), ("tool", "r", "c1")],
    ),
    "items of Responses as parts": (
        [
            {"role": "assistant", "content": [{"type": "function_call", "call_id": "c1", "name": "f"}]},
            {"role": "user", "content": [{"type": "function_call_output", "call_id": "c1", "output": "r"}]},
        ],
        [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "roles that were lost": (
        [called() | {"role": None}, ANSWERED | {"role": ""}],
        [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "a turn that is a text": (["a"], [("user", "a")]),
    "a turn of parts": ([{"role": "user", "parts": [{"type": "text", "text": "a"}]}], [("user", "a")]),
    "a text under another name": ([{"role": "user", "content": [{"type": "text", "content": "a"}]}], [("user", "a")]),
    "a page": (
        [{"role": "user", "content": [{"type": "file", "file": {"filename": "a.md", "file_data": PAGE}}]}],
        [("user", "a.md\nhi")],
    ),
    "a page as an image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PAGE}}]}],
        [("user", "document.pdf\nhi")],
    ),
    "a search": (
        [{"role": "user", "content": [{"type": "search_result", "title": "t", "source": "s", "content": ["x"]}]}],
        [("user", "t s\nx")],
    ),
    "blocks of a tool that a provider ran": (
        [
            {"role": "assistant", "content": [
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "text", "text": "a"},
            ]},
        ],
        [("assistant", "a")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("habit", CHAT)
async def test_a_history_of_a_chat_is_read(gateway: RunningGateway, habit: str) -> None:
    history, read = CHAT[habit]
    fields = {"messages": [*history, ASKED], "tools": [TOOL]}
    assert await turns_of(gateway, "/v1/chat/completions", fields) == [*read, ("user", "Go on.")]


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMED = {"name": "answer", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_object", "schema": NAMED["schema"]},
        {"type": "json_schema"} | NAMED,
        {"type": "json_schema", "json_schema": json.dumps(NAMED)},
        {"type": "json_schema", "json_schema": {"schema": NAMED["schema"]}},
    ],
)
async def test_a_schema_of_the_answer_in_other_forms_is_the_same_schema(given: dict[str, Any]) -> None:
    data = {"messages": [ASKED], "response_format": given, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    mend_chat(data)
    assert data["response_format"] == {"type": "json_schema", "json_schema": NAMED}
    assert data["thinking_token_budget"] == 2000


@pytest.mark.parametrize(
    ("given", "effort", "budget"),
    [
        ({"reasoning": {"effort": "high"}}, "high", None),
        ({"reasoning": {"max_tokens": 2000}}, None, 2000),
        ({"reasoning": {"enabled": False}}, None, 0),
        ({"thinking": {"type": "disabled"}}, None, 0),
        ({"thinking": {"type": "enabled"}}, None, None),
        ({"enable_thinking": False}, None, 0),
        ({"extra_body": {"think": False}}, None, 0),
        ({"thinking_budget": 100}, None, 100),
        ({"thinking_budget": -1}, None, None),
        ({"reasoning_effort": "HIGH"}, "high", None),
        ({"reasoning_effort": "ultra"}, "max", None),
        ({"reasoning_effort": "x-high"}, "xhigh", None),
        ({"reasoning_effort": "extra_high"}, "xhigh", None),
        ({"reasoning": "high"}, "high", None),
        ({"think": "low"}, "low", None),
        ({"think": "yes"}, None, None),
        ({"reasoning_effort": "default"}, None, None),
        ({"reasoning_effort": "disable"}, "none", None),
        ({"reasoning_effort": {"effort": "high", "summary": "auto"}}, "high", None),
    ],
)
async def test_thoughts_are_asked_for_in_other_forms(
    gateway: RunningGateway, given: dict[str, Any], effort: str | None, budget: int | None
) -> None:
    await turns_of(gateway, "/v1/chat/completions", {"messages": [ASKED]} | given)
    asked = gateway.tier(1).requests[-1]
    assert (asked.reasoning_effort, asked.reasoning_budget) == (effort, budget)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [ASKED]}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/completions", {"prompt": "Hi"}),
    ],
)
async def test_the_least_share_is_the_likeliest_token(
    gateway: RunningGateway, path: str, fields: dict[str, Any]
) -> None:
    answer = await gateway.http.post(path, json={"model": "tier-1", "top_p": 0} | fields, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    assert 0 < gateway.tier(1).requests[-1].sampling.top_p < 1e-4


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BARE = {"name": "f", "input_schema": {"type": "object"}}
WEB = {"type": "web_search"}
# The largest decimal of .NET, in the schemas of its libraries.
BOUND = {"type": "object", "properties": {"a": {"type": "number", "maximum": 79228162514264337593543950335}}}
DECIMAL = {"type": "function", "function": {"name": "f", "parameters": BOUND}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [ASKED], "metadata": {"tags": ["a"], "run": 1, "of": None}}),
        ("/v1/chat/completions", {"messages": [ASKED], "tools": [FUNCTION, FUNCTION]}),
        (
            "/v1/chat/completions",
            {"messages": [ASKED], "tools": [FUNCTION], "tool_choice": {"function": {"name": "f"}}},
        ),
        ("/v1/chat/completions", {"messages": [ASKED], "tools": [{"function": {"name": "f", "parameters": ""}}]}),
        ("/v1/chat/completions", {"messages": [ASKED], "response_format": {}}),
        ("/v1/chat/completions", {"messages": [ASKED], "service_tier": "on_demand"}),
        ("/v1/chat/completions", {"messages": [ASKED], "response_format": "text"}),
        ("/v1/chat/completions", {"messages": [ASKED], "max_tokens": 9, "max_completion_tokens": 12}),
        ("/v1/chat/completions", {"messages": [ASKED], "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {"messages": None, "input": "Hi"}),
        ("/v1/chat/completions", {"messages": [ASKED], "tools": [{"name": "f", "description": "Takes nothing."}]}),
        ("/v1/chat/completions", {"messages": [ASKED], "tools": [DECIMAL]}),
        ("/v1/responses", {"input": "Hi", "tools": [BARE | {"type": "function", "parameters": BOUND}]}),
        ("/v1/responses", {"input": "Hi", "tools": [FUNCTION, WEB], "tool_choice": WEB}),
        ("/v1/responses", {"input": "Hi", "reasoning": "x-high", "stream_options": {"include_usage": True}}),
        ("/v1/completions", {"prompt": "Hi", "stream_options": {"include_usage": True}}),
        ("/v1/messages", {"messages": ["Hi"], "max_tokens": 9, "thinking": "adaptive"}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "reasoning": {"effort": "extra_high"}}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "tools": [{"name": "f", "description": "d"}]}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "tools": [{"name": "f", "input_schema": BOUND}]}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "mcp_servers": [], "metadata": {"user_id": 5}}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "model": "tier-1[1m]"}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "output_config": {"effort": "ultra"}}),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "ultra"}, "max_output_tokens": -1}),
        ("/v1/responses", {"input": "Hi", "metadata": {"run": 1}, "include": ["newer_call.results"]}),
        ("/v1/completions", {"prompt": "Hi", "suffix": ""}),
        ("/v1/completions", {"prompt": "Hi", "user": 1, "stop": ["", None]}),
        ("/v1/chat/completions", {"messages": [ASKED], "max_tokens": 2**53, "temperature": "", "verbosity": ""}),
        ("/v1/chat/completions", {"messages": [ASKED], "stop": "", "seed": 2**64 - 1, "user": 5, "service_tier": ""}),
        ("/v1/chat/completions", {"messages": [ASKED], "metadata": [], "logit_bias": [], "chat_template_kwargs": []}),
        ("/v1/chat/completions", {"messages": [ASKED], "tool_choice": {"type": "auto"}, "modalities": None}),
        ("/v1/chat/completions", {"messages": [ASKED], "functions": {}, "tool_choice": "", "reasoning_effort": "off"}),
        ("/v1/chat/completions", {"messages": [ASKED], "tools": FUNCTION, "tool_choice": "f"}),
        ("/v1/chat/completions", {"messages": [ASKED], "tools": [{"type": "custom"} | BARE]}),
        (
            "/v1/chat/completions",
            {"messages": [ASKED], "tools": [{"function": {"name": "f", "parameters": '{"type": "object"}'}}]},
        ),
        (
            "/v1/chat/completions",
            {"messages": [ASKED], "tools": [{"function": {"name": "f", "parameters": {"type": ["object", "null"]}}}]},
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [ASKED],
                "tools": [FUNCTION],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            },
        ),
        (
            "/v1/messages",
            {"messages": [ASKED], "max_tokens": 9, "system": ["a", {"text": "b"}, {"type": "text", "text": None}]},
        ),
        ("/v1/messages", {"messages": [ASKED], "max_completion_tokens": 9, "stop": "a", "top_k": -1}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "thinking": {"type": "disabled", "budget_tokens": 0}}),
        (
            "/v1/messages",
            {"messages": [ASKED], "max_tokens": 9, "thinking": {"type": "auto"}, "service_tier": "default"},
        ),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "output_config": {"effort": "minimal"}}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "output_config": {"format": {"type": "text"}}}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "tools": [FUNCTION], "tool_choice": "required"}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": 9, "tools": [BARE], "tool_choice": {"type": "required"}}),
        (
            "/v1/messages",
            {
                "messages": [ASKED],
                "max_tokens": 9,
                "tools": [BARE],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
        ),
        ("/v1/responses", {"messages": [ASKED], "max_tokens": 9, "previous_response_id": ""}),
        ("/v1/responses", {"input": ASKED, "include": "reasoning.encrypted_content", "metadata": ""}),
        ("/v1/responses", {"input": "Hi", "tools": [FUNCTION], "tool_choice": FUNCTION}),
        ("/v1/responses", {"input": "Hi", "tools": [BARE], "tool_choice": {"type": "tool", "name": "f"}}),
        ("/v1/responses", {"input": "Hi", "tools": [BARE | {"type": "function"}], "tool_choice": {"type": "auto"}}),
    ],
)
async def test_fields_are_read_as_they_are_meant(gateway: RunningGateway, path: str, fields: dict[str, Any]) -> None:
    answer = await gateway.http.post(path, json={"model": "tier-1"} | fields, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    tooling = gateway.tier(1).requests[-1].tooling
    assert [tool.name for tool in (tooling.tools if tooling else ())] == ["f"] * ("tools" in fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json", "value": SCHEMA}}),
        ("/v1/chat/completions", {"response_format": SCHEMA}),
        ("/v1/chat/completions", {"guided_json": SCHEMA}),
        ("/v1/chat/completions", {"guided_json": json.dumps(SCHEMA)}),
        ("/v1/chat/completions", {"json_schema": {"name": "a", "schema": SCHEMA}}),
        ("/v1/chat/completions", {"format": SCHEMA}),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": json.dumps(SCHEMA)}}},
        ),
        ("/v1/messages", {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}}),
        (
            "/v1/responses",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        ),
    ],
)
async def test_a_schema_of_another_form_binds_the_answer(
    gateway: RunningGateway, path: str, fields: dict[str, Any]
) -> None:
    gateway.tier(1).words = ('{"a": "b"}',)
    said = {"input": "Hi"} if path == "/v1/responses" else {"messages": [ASKED]}
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    answer = await gateway.http.post(path, json={"model": "tier-1"} | said | limit | fields, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    grammar = gateway.tier(1).requests[-1].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.text) == SCHEMA


@pytest.mark.parametrize(
    ("path", "tool", "shown"),
    [
        ("/v1/chat/completions", {"type": "web_search"}, "tools.web_search"),
        ("/v1/chat/completions", {"googleSearch": {}}, "tools.googleSearch"),
        ("/v1/messages", {"type": "web_search_20250305", "name": "web_search"}, "tools.web_search_20250305"),
        (
            "/v1/messages",
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
            "tools.tool_search_tool_regex_20251119",
        ),
    ],
)
async def test_a_tool_that_nothing_here_runs_is_left_out_next_to_the_callers_own(
    gateway: RunningGateway, path: str, tool: dict[str, Any], shown: str
) -> None:
    own = BARE if path == "/v1/messages" else FUNCTION
    asked = {"model": "tier-1", "messages": [ASKED], "max_tokens": 9, "tools": [own, tool]}
    answer = await gateway.http.post(path, json=asked, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aio-ignored-fields"] == shown
    tooling = gateway.tier(1).requests[-1].tooling
    assert [one.name for one in tooling.tools] == ["f"]  # type: ignore[union-attr]
    alone = await gateway.http.post(path, json=asked | {"tools": [tool]}, headers=UNCACHED)
    assert alone.status_code == 400


async def test_a_tool_of_anthropics_that_the_caller_runs_is_never_left_out(gateway: RunningGateway) -> None:
    asked = {"model": "tier-1", "messages": [ASKED], "max_tokens": 9}
    tools = [BARE, {"type": "bash_20250124", "name": "bash"}]
    answer = await gateway.http.post("/v1/messages", json=asked | {"tools": tools}, headers=UNCACHED)
    assert answer.status_code == 400
    assert "bash_20250124" in answer.text


@pytest.mark.parametrize("name", ["mcp/server/f", "f" * 200, "wetter_für"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_names_of_tools_may_have_what_some_provider_takes(gateway: RunningGateway, path: str, name: str) -> None:
    function = {"name": name, "parameters": {"type": "object"}}
    tool = (
        {"type": "function", "function": function}
        if path == "/v1/chat/completions"
        else {"type": "function"} | function
    )
    tool = {"name": name, "input_schema": {"type": "object"}} if path == "/v1/messages" else tool
    said = {"input": "Hi"} if path == "/v1/responses" else {"messages": [ASKED]}
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    asked = {"model": "tier-1", "tools": [tool]} | said | limit
    answer = await gateway.http.post(path, json=asked, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    assert gateway.tier(1).requests[-1].tooling.tools[0].name == name  # type: ignore[union-attr]


async def test_tags_beyond_the_bounds_are_left_out_and_named(gateway: RunningGateway) -> None:
    tags = {"long": "a" * 513} | {f"k{number}": "v" for number in range(17)}
    asked = {"model": "tier-1", "messages": [ASKED], "metadata": tags}
    answer = await gateway.http.post("/v1/chat/completions", json=asked, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aio-ignored-fields"] == "metadata.long, metadata.k16"


async def test_a_body_of_responses_is_answered_as_a_chat_where_a_client_reads_one(gateway: RunningGateway) -> None:
    asked = {
        "model": "tier-1",
        "instructions": "Be kind.",
        "input": [ASKED, ITEM_CALL, OUTPUT | {"output": "r"}],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "max_output_tokens": 9,
        "reasoning": {"effort": "low"},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = await gateway.http.post("/v1/chat/completions", json=asked, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "chat.completion.chunk" in answer.text
    read = gateway.tier(1).requests[-1]
    assert [turn.role for turn in read.messages or ()] == ["system", "user", "assistant", "tool"]
    assert (read.max_tokens, read.reasoning_effort) == (9, "low")
    assert read.tooling is not None


async def test_the_system_of_another_api_is_the_chats_first_turn(gateway: RunningGateway) -> None:
    read = await turns_of(gateway, "/v1/chat/completions", {"messages": [ASKED], "system": "Be kind."})
    assert read == [("system", "Be kind."), ("user", "Go on.")]


async def test_a_tool_that_a_turn_adds_by_value_can_be_called(gateway: RunningGateway) -> None:
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": BARE}}
    turns = [ASKED, {"role": "assistant", "content": "a"}, {"role": "system", "content": [added]}, ASKED]
    read = await turns_of(gateway, "/v1/messages", {"messages": turns, "max_tokens": 9})
    assert read[2] == ("system", "The tool f is available from now on.")
    assert [tool.name for tool in gateway.tier(1).requests[-1].tooling.tools] == ["f"]  # type: ignore[union-attr]


async def test_a_providers_tool_next_to_the_callers_own_is_left_out_and_named(gateway: RunningGateway) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]
    asked = {"model": "tier-1", "input": "Hi", "tools": tools}
    answer = await gateway.http.post("/v1/responses", json=asked, headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aio-ignored-fields"] == "tools.web_search"
    tooling = gateway.tier(1).requests[-1].tooling
    assert tooling is not None
    assert [tool.name for tool in tooling.tools] == ["f"]


async def test_no_limit_and_no_parameters_are_read_in_other_forms(gateway: RunningGateway) -> None:
    bare = {"type": "function", "function": {"name": "f", "parameters": []}}
    await turns_of(gateway, "/v1/chat/completions", {"messages": [ASKED], "tools": [bare], "max_tokens": -1})
    asked = gateway.tier(1).requests[-1]
    assert asked.max_tokens is None
    assert asked.tooling is not None
    assert asked.tooling.tools[0].schema == {"type": "object"}


async def test_thoughts_as_parts_are_thoughts(gateway: RunningGateway) -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}]
    await turns_of(gateway, "/v1/chat/completions", {"messages": [{"role": "assistant", "content": parts}, ASKED]})
    assert gateway.tier(1).requests[-1].messages[0].thoughts == "hm"  # type: ignore[index]


PNG, PDF = "data:image/png;base64,AA==", "data:application/pdf;base64,AA=="
BYTES = {"type": "base64", "data": "AA=="}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"type": "image", "source": BYTES | {"media_type": "image/png"}}, ("image_url", {"url": PNG})),
        ({"type": "image", "source": {"type": "url", "url": "https://a.b/c"}}, ("image_url", {"url": "https://a.b/c"})),
        ({"type": "input_image", "image_url": PNG}, ("image_url", {"url": PNG})),
        (
            {"type": "image_url", "image_url": {"url": "iVBORw0KGgo=", "detail": "low"}},
            ("image_url", {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}),
        ),
        (
            {"type": "image_url", "image_url": "/9j/4AAQ"},
            ("image_url", {"url": "data:image/jpeg;base64,/9j/4AAQ"}),
        ),
        (
            {"type": "audio_url", "audio_url": {"url": "data:audio/mpeg;base64,AAAA"}},
            ("input_audio", {"data": "AAAA", "format": "mp3"}),
        ),
        ({"type": "video_url", "video_url": {"url": "https://a.b/c.mp4"}}, ("video_url", {"url": "https://a.b/c.mp4"})),
        (
            {"type": "document", "title": "T", "source": BYTES | {"media_type": "application/pdf"}},
            ("file", {"filename": "T", "file_data": PDF}),
        ),
        ({"type": "image_url", "image_url": PDF}, ("file", {"filename": "document.pdf", "file_data": PDF})),
        (
            {"type": "image_url", "image_url": {"url": "data:audio/wav;base64,AAAA"}},
            ("input_audio", {"data": "AAAA", "format": "wav"}),
        ),
        ({"type": "image", "source": {"data": "AA==", "media_type": "image/png"}}, ("image_url", {"url": PNG})),
        (
            {"type": "file", "url": PDF, "mediaType": "application/pdf"},
            ("file", {"filename": "document.pdf", "file_data": PDF}),
        ),
        ({"type": "file", "file": {"file_data": "https://a.b/c.pdf"}}, ("file", {"file_data": "https://a.b/c.pdf"})),
    ],
)
@pytest.mark.parametrize("role", ["user", "tool"])
async def test_media_in_other_forms_are_the_same_media(role: str, given: dict[str, Any], read: tuple[str, Any]) -> None:
    data = {"messages": [{"role": role, "tool_call_id": "c1", "content": [given, {"type": "text", "text": "a"}]}]}
    mend_chat(data)
    (turn,) = chat_turns.turns_of(msgspec.convert(data["messages"], list[Message]))
    shown, said = turn.content_blocks
    assert isinstance(shown, Media)
    assert ((PART_TYPES[shown.kind], shown.data), said) == (read, Text("a"))


async def test_calls_that_are_no_list_are_refused_by_name(served: RunningGateway) -> None:
    turn = {"role": "assistant", "content": [{"type": "text", "text": "Hello"}], "tool_calls": 0.5}
    answer = await served.http.post("/v1/chat/completions", json={"model": "tier-1", "messages": [turn]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].tool_calls")


NAMED_FILES: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("/v1/chat/completions", lambda name: {"messages": [_saying({"type": "file", "file": {"file_id": name}})]}),
    ("/v1/responses", lambda name: {"input": [_saying({"type": "input_file", "file_id": name})]}),
    ("/v1/messages", lambda name: {
        "max_tokens": 9, "messages": [_saying({"type": "document", "source": {"type": "file", "file_id": name}})],
    }),
]  # fmt: skip


def _saying(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part]}


@pytest.mark.parametrize(("path", "fields"), NAMED_FILES)
async def test_a_file_that_was_uploaded_here_is_read_where_a_prompt_names_it(
    gateway: RunningGateway, path: str, fields: Callable[[str], dict[str, Any]]
) -> None:
    made = await gateway.openai.files.create(file=("a.md", b"The word is heron."), purpose="assistants")
    ((role, said),) = await turns_of(gateway, path, fields(made.id))
    assert (role, said.removeprefix("a.md\n")) == ("user", "The word is heron.")
    await gateway.openai.files.delete(made.id)
    gone = await gateway.http.post(path, json={"model": "tier-1"} | fields(made.id), headers=UNCACHED)
    assert gone.status_code == 400


async def test_ids_of_providers_files_stay_and_those_of_deleted_ones_are_refused(gateway: RunningGateway) -> None:
    theirs = {"type": "file", "file": {"file_id": "file-abc123"}}
    chat_turns.turns_of(msgspec.convert([_saying(theirs)], list[Message]))
    ours = {"type": "file", "file": {"file_id": f"file-{'0' * 32}"}}
    with pytest.raises(ApiError, match="may have expired"):
        chat_turns.turns_of(msgspec.convert([_saying(ours)], list[Message]))


@pytest.mark.parametrize(
    ("name", "content", "part", "read"),
    [
        (
            "a.pdf", b"%PDF", {"type": "input_file"},
            {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"},
        ),
        ("a.png", b"\x89PNG", {"type": "input_image"}, {"image_url": "data:image/png;base64,iVBORw=="}),
        ("a.png", b"\x89PNG", {"type": "file"}, {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}),
        ("a.ts", b"let a", {"type": "file"}, {"type": "text", "media_type": "text/plain", "data": "let a"}),
    ],
)  # fmt: skip
async def test_a_file_is_given_in_the_form_of_the_api_that_names_it(
    gateway: RunningGateway, name: str, content: bytes, part: dict[str, Any], read: dict[str, Any]
) -> None:
    made = await gateway.openai.files.create(file=(name, content), purpose="vision")
    named = json.dumps({"part": part | {"file_id": made.id}}).encode()
    with pytest.raises(ApiError, match="AIO_BODY_LIMIT"):
        await with_files(gateway.jobs.files, KEYLESS.tenant, named, 1)
    assert json.loads(await with_files(gateway.jobs.files, KEYLESS.tenant, named, 100)) == {"part": part | read}


@pytest.mark.parametrize("part", [("file", "file_data"), ("video_url", "url"), ("image_url", "url")])
async def test_no_server_is_asked_to_open_the_addresses_of_credentials(part: tuple[str, str]) -> None:
    kind, field = part
    content = [{"type": kind, kind: {field: "http://169.254.169.254/latest"}}]
    with pytest.raises(ApiError, match="public"):
        chat_turns.turns_of(msgspec.convert([{"role": "user", "content": content}], list[Message]))


USED, FIRST = [ASKED, {"role": "assistant", "content": [USE]}], ("user", "Go on.")
MESSAGES: dict[str, tuple[list[dict[str, Any]], list[tuple[Any, ...]]]] = {
    "a developer": ([{"role": "developer", "content": "a"}, ASKED], [("system", "a"), ("user", "Go on.")]),
    "calls and results of a chat": (
        [ASKED, called(**function('{"a": 1}')), {"role": "tool", "tool_call_id": "c1", "content": "r"}],
        [FIRST, ("assistant", "", ("c1", '{"a":1}')), ("tool", "r", "c1")],
    ),
    "one block alone": ([{"role": "user", "content": {"type": "text", "text": "a"}}], [("user", "a")]),
    "blocks that are texts, without a type, null": (
        [{"role": "user", "content": ["a", {"text": "b"}, None, {"type": "text", "text": None}]}],
        [("user", "a\n\nb")],
    ),
    "parts of Responses": ([{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], [("user", "a")]),
    "a text file": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "aGk="}},
                ],
            },
        ],
        [("user", "hi")],
    ),
    "an object as a result": (
        [ASKED, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT | {"content": {"a": 1}}]}],
        [FIRST, ("assistant", "", ("c1", "{}")), ("tool", '{"a": 1}', "c1")],
    ),
    "texts as a result, which failed": (
        [
            ASKED,
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [RESULT | {"content": ["r"], "is_error": "true"}]},
        ],
        [FIRST, ("assistant", "", ("c1", "{}")), ("tool", "Error: r", "c1")],
    ),
    "calls and results without ids": (
        [
            ASKED,
            {"role": "assistant", "content": [USE | {"id": ""}, {"type": "tool_use", "name": "f", "input": {}}]},
            {"role": "user", "content": [RESULT | {"tool_use_id": None}, {"type": "tool_result", "content": "r"}]},
        ],
        [
            FIRST,
            ("assistant", "", ("call_1_0", "{}"), ("call_1_1", "{}")),
            ("tool", "", "call_1_0"),
            ("tool", "r", "call_1_1"),
        ],
    ),
    "a call and a result of the AI SDK": (
        [ASKED, {"role": "assistant", "content": [SDK_CALL]}, {"role": "user", "content": [SDK_RESULT]}],
        [FIRST, ("assistant", "", ("c1", '{"a":1}')), ("tool", "r", "c1")],
    ),
    "items of Responses as blocks": (
        [
            ASKED,
            {"role": "assistant", "content": [{"type": "function_call", "call_id": "c1", "name": "f"}]},
            {"role": "user", "content": [{"type": "function_call_output", "call_id": "c1", "output": "r"}]},
        ],
        [FIRST, ("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "thoughts of another API": (
        [ASKED, {"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}, "a"]}, ASKED],
        [FIRST, ("assistant", "a"), FIRST],
    ),
    "contents of MCP in a result": (
        [
            *USED,
            {"role": "user", "content": [RESULT | {"content": [
                {"type": "resource", "resource": {"uri": "a", "text": "r"}}, {"type": "json", "json": {"a": 1}},
            ]}]},
        ],
        [FIRST, ("assistant", "", ("c1", "{}")), ("tool", 'r\n\n{"a": 1}', "c1")],
    ),
    "a turn that is a text": (["Go on."], [FIRST]),
    "a file of JSON": (
        [{"role": "user", "content": [
            {"type": "document", "title": "t", "source": {"media_type": "application/json", "data": "e30="}},
        ]}],
        [("user", "t\n{}")],
    ),
    "null content": ([ASKED, {"role": "assistant", "content": None}, ASKED], [("user", "Go on.\n\nGo on.")]),
    "no content at all": ([ASKED, {"role": "assistant"}, ASKED], [("user", "Go on.\n\nGo on.")]),
    "an empty list": ([ASKED, {"role": "assistant", "content": []}, ASKED], [("user", "Go on.\n\nGo on.")]),
    "an empty text": ([ASKED, {"role": "assistant", "content": ""}, ASKED], [("user", "Go on.\n\nGo on.")]),
    "an empty turn of the user": ([{"role": "user", "content": []}, ASKED], [("user", "Go on.")]),
    "null for an input": (
        [ASKED, {"role": "assistant", "content": [USE | {"input": None}]}, {"role": "user", "content": [RESULT]}],
        [FIRST, ("assistant", "", ("c1", "{}")), ("tool", "", "c1")],
    ),
    "an input that was cut off": (
        [ASKED, {"role": "assistant", "content": [USE | {"input": '{"a": '}]}, {"role": "user", "content": [RESULT]}],
        [FIRST, ("assistant", "", ("c1", '{"a": ')), ("tool", "", "c1")],
    ),
    "an empty result": (
        [*USED, {"role": "user", "content": [RESULT | {"content": []}]}],
        [FIRST, ("assistant", "", ("c1", "{}")), ("tool", "", "c1")],
    ),
    "a tool that was found": (
        [*USED, {"role": "user", "content": [RESULT | {"content": [{"type": "tool_reference", "tool_name": "f"}]}]}],
        [FIRST, ("assistant", "", ("c1", "{}")), ("tool", "Tool f is available.", "c1")],
    ),
    "the beginning of the answer": ([ASKED, {"role": "assistant", "content": "So"}], [FIRST, ("assistant", "So")]),
}  # fmt: skip


@pytest.mark.parametrize("habit", MESSAGES)
async def test_a_history_of_messages_is_read(gateway: RunningGateway, habit: str) -> None:
    history, read = MESSAGES[habit]
    assert await turns_of(gateway, "/v1/messages", {"messages": history, "max_tokens": 9}) == read


async def test_media_of_a_result_reach_a_server_with_this_api_once() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    turns = [*USED, {"role": "user", "content": [RESULT | {"content": [image]}]}]
    chat = conversation_of(None, msgspec.json.decode(msgspec.json.encode(turns), type=list[Turn]))
    *_, result, shown = zip(chat.messages, chat.natives, strict=True)
    assert result[0].role == "tool"
    assert result[1] is not None
    assert b"AA==" in result[1].blocks[0].json
    # Other servers get it in a turn of the user's; this one has it in the result.
    assert isinstance(shown[0].content, list)
    assert shown[1] == NativeContent("anthropic", ())


REMINDER = {"role": "system", "content": "Be quick.", "clear_at": "next_user_message"}
EFFORT = {"role": "system", "content": [], "output_config": {"effort": "low"}}
REMOVED = {"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}]}
SAID = {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([ASKED, REMINDER], [FIRST, ("system", "Be quick.")]),
        ([ASKED, REMINDER, SAID, ASKED], [FIRST, ("assistant", "a"), FIRST]),
        ([ASKED, EFFORT, ASKED], [FIRST, FIRST]),
        ([ASKED, EFFORT | {"content": "Think."}], [FIRST, ("system", "Think.")]),
        ([ASKED, REMOVED], [FIRST, ("system", "The tool f is not available any more.")]),
    ],
)
async def test_turns_that_only_anthropic_has_reach_it_as_they_are(
    given: list[dict[str, Any]], read: list[tuple[str, str]]
) -> None:
    conversation = conversation_of(None, msgspec.json.decode(msgspec.json.encode(given), type=list[Turn]))
    turns = chat_turns.turns_of(conversation.messages)
    assert [(turn.role, turn.text) for turn in turns] == read
    natives = zip(turns, conversation.natives, strict=True)
    turns = [msgspec.structs.replace(turn, native=native) for turn, native in natives]
    asked, plain = (message_turns(turns, controls=controls) for controls in (True, False))
    assert [turn["role"] for turn in asked] == [turn["role"] for turn in given]
    own = [turn for turn in msgspec.json.decode(msgspec.json.encode(asked)) if turn["role"] == "system"]
    assert own == [turn for turn in given if turn["role"] == "system"]
    assert not any(turn.keys() - {"role", "content"} for turn in plain)


ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1"}
FOUND = '[{"type": "function", "name": "g"}]'
RESPONSES: dict[str, tuple[list[dict[str, Any]], list[tuple[Any, ...]]]] = {
    "turns of a chat": (
        [called(), {"role": "tool", "tool_call_id": "c1", "content": "r"}],
        [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "texts, null and one part alone": (
        ["a", None, {"type": None, "role": "user", "content": {"type": "input_text", "text": "b"}}],
        [("user", "a"), ("user", "b")],
    ),
    "parts that are texts, without a type, null": (
        [{"role": "user", "content": ["a", {"text": "b"}, {"type": "input_text", "text": None}]}], [("user", "a\nb\n")],
    ),
    "a long id": ([{"id": "a" * 400, "role": "assistant", "content": "a"}], [("assistant", "a")]),
    "calls without ids": (
        [ITEM_CALL | {"call_id": None}, {"type": "function_call_output", "output": "r"}],
        [("assistant", "", ("call_0", "{}")), ("tool", "r", "call_0")],
    ),
    "a call's other id": (
        [ITEM_CALL | {"call_id": None, "id": "fc_1"}, OUTPUT | {"call_id": "fc_1", "output": "r"}],
        [("assistant", "", ("fc_1", "{}")), ("tool", "r", "fc_1")],
    ),
    "a list as arguments": (
        [ITEM_CALL | {"arguments": []}, OUTPUT | {"output": "r"}],
        [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "summaries that are texts": (
        [{"type": "reasoning", "summary": ["hm"]}, {"role": "assistant", "content": "a"}], [("assistant", "a")],
    ),
    "null content": ([{"role": "assistant", "content": None}], [("assistant", "")]),
    "no content at all": ([{"type": "message", "role": "assistant"}], [("assistant", "")]),
    "an empty list": ([{"role": "assistant", "content": []}], [("assistant", "")]),
    "broken arguments": (
        [ITEM_CALL | {"arguments": '{"a": '}, OUTPUT | {"output": "r"}],
        [("assistant", "", ("c1", '{"a": ')), ("tool", "r", "c1")],
    ),
    "arguments as an object": (
        [ITEM_CALL | {"arguments": {"a": 1}}, OUTPUT | {"output": "r"}],
        [("assistant", "", ("c1", '{"a":1}')), ("tool", "r", "c1")],
    ),
    "nothing said or returned": (
        [ITEM_CALL | {"arguments": None}, OUTPUT | {"output": None}],
        [("assistant", "", ("c1", "{}")), ("tool", "", "c1")],
    ),
    "no output": ([ITEM_CALL, OUTPUT], [("assistant", "", ("c1", "{}")), ("tool", "", "c1")]),
    "an object as output": (
        [ITEM_CALL, OUTPUT | {"output": {"a": 1}}], [("assistant", "", ("c1", "{}")), ("tool", '{"a": 1}', "c1")],
    ),
    "a search of OpenAI's": (
        [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "assistant", "content": "a"}],
        [("assistant", "a")],
    ),
    "what one of Codex's agents said to another": (
        [{"type": "agent_message", "author": "/root", "content": [{"type": "input_text", "text": "a"}]}],
        [("user", "a")],
    ),
    "bookkeeping of Codex": (
        [{"type": "agent_reasoning", "text": "hm"}, {"type": "ghost_snapshot", "ghost_commit": {"id": "x"}}], [],
    ),
    "an item of a new kind": ([{"type": "novelty", "id": "nv_1", "state": {}}], []),
    "a call of OpenAI's shell": (
        [
            {"type": "shell_call", "id": "sh_1", "call_id": "c1", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a"}]},
        ],
        [("assistant", "", ("c1", '{"commands": ["ls"]}')), ("tool", '[{"stdout": "a"}]', "c1")],
    ),
    "tools that were found": (
        [
            {"type": "tool_search_call", "call_id": "c1", "arguments": {"query": "g"}},
            {"type": "tool_search_output", "call_id": "c1", "tools": [{"type": "function", "name": "g"}]},
        ],
        [("assistant", "", ("c1", '{"query":"g"}')), ("tool", FOUND, "c1")],
    ),
    "a call of the local shell, whose result has its id": (
        [
            {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c1", "output": "r"},
        ],
        [("assistant", "", ("c1", '{"command": ["ls"]}')), ("tool", "r", "c1")],
    ),
    "Anthropic's calls and results": (
        [
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, USE]},
            {"role": "user", "content": [RESULT | {"content": "r"}]},
        ],
        [("assistant", "a", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "Anthropic's calls and results as items": (
        [USE, RESULT | {"content": "r"}], [("assistant", "", ("c1", "{}")), ("tool", "r", "c1")],
    ),
    "the AI SDK's calls and results": (
        [{"role": "assistant", "content": [SDK_CALL]}, {"role": "tool", "content": [SDK_RESULT]}],
        [("assistant", "", ("c1", '{"a": 1}')), ("tool", "r", "c1")],
    ),
    "thoughts as a part": (
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]}],
        [("assistant", "a")],
    ),
    "a page": (
        [{"role": "user", "content": [{"type": "input_file", "filename": "a.md", "file_data": PAGE}]}],
        [("user", "a.md\nhi")],
    ),
    "an empty list as output": (
        [ITEM_CALL, OUTPUT | {"output": []}], [("assistant", "", ("c1", "{}")), ("tool", "", "c1")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("habit", RESPONSES)
async def test_a_history_of_responses_is_read(gateway: RunningGateway, habit: str) -> None:
    history, read = RESPONSES[habit]
    fields = {"input": [*history, ASKED], "store": False}
    assert await turns_of(gateway, "/v1/responses", fields) == [*read, ("user", "Go on.")]


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "f", "description": "d", "input_schema": SCHEMA},
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": None},
        {"function": {"name": "f", "description": "d", "parameters": SCHEMA}},
    ],
)
@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("any", "required"),
        ({"type": "any"}, "required"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "tool", "name": "f"}, "named"),
        ({"type": "function", "name": "f"}, "named"),
    ],
)
async def test_tools_of_a_chat_in_other_forms_are_its_tools(
    gateway: RunningGateway, tool: dict[str, Any], choice: Any, read: str
) -> None:
    await turns_of(gateway, "/v1/chat/completions", {"messages": [ASKED], "tools": [tool], "tool_choice": choice})
    tooling = gateway.tier(1).requests[-1].tooling
    assert tooling is not None
    assert tooling.choice == read
    assert [(one.name, one.description, one.schema) for one in tooling.tools] == [("f", "d", SCHEMA)]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [ASKED], "max_tokens": "9", "temperature": "0.5", "stream": "false"}),
        ("/v1/messages", {"messages": [ASKED], "max_tokens": "9", "temperature": "0.5", "stream": "false"}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": "9", "temperature": "0.5", "stream": "false"}),
    ],
)
async def test_numbers_and_truth_values_may_be_texts(gateway: RunningGateway, path: str, fields: Any) -> None:
    await turns_of(gateway, path, fields)
    asked = gateway.tier(1).requests[-1]
    assert (asked.max_tokens, asked.sampling.temperature) == (9, 0.5)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", b'"messages": [{"role": "user", "content": TEXT}]'),
        ("/v1/messages", b'"max_tokens": 9, "messages": [{"role": "user", "content": TEXT}]'),
        ("/v1/responses", b'"input": TEXT'),
    ],
)
async def test_halves_of_characters_and_a_byte_order_mark_are_read(
    gateway: RunningGateway, path: str, fields: bytes
) -> None:
    text = rb'"\ud83d\ude00 a\ud83d \udc00b \\ud83d"'
    body = b'\xef\xbb\xbf{"model": "tier-1", ' + fields.replace(b"TEXT", text) + b"}"
    headers = UNCACHED | {"content-type": "application/json"}
    answer = await gateway.http.post(path, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    (turn,) = gateway.tier(1).requests[-1].messages or ()
    assert turn.text == "\N{GRINNING FACE} a\ufffd \ufffdb \\ud83d"


@pytest.mark.parametrize(
    ("given", "logprobs"),
    [
        ({"logprobs": 3}, 3),
        ({"top_logprobs": 2}, 2),
        ({"logprobs": False, "top_logprobs": 2}, None),
        ({"logprobs": 0}, None),
        ({"logprobs": True, "top_logprobs": None}, 0),
    ],
)
async def test_how_many_log_probabilities_may_be_said_in_other_forms(
    gateway: RunningGateway, given: dict[str, Any], logprobs: int | None
) -> None:
    await turns_of(gateway, "/v1/chat/completions", {"messages": [ASKED]} | given)
    assert gateway.tier(1).requests[-1].sampling.logprobs == logprobs


async def test_the_newer_name_of_a_limit_holds(gateway: RunningGateway) -> None:
    limits = {"max_tokens": 9, "max_completion_tokens": 12}
    await turns_of(gateway, "/v1/chat/completions", {"messages": [ASKED]} | limits)
    assert gateway.tier(1).requests[-1].max_tokens == 12


@pytest.mark.parametrize("images", [[PNG], ["iVBORw0KGgo="], PNG])
async def test_ollamas_images_are_not_lost(images: Any) -> None:
    data = {"messages": [{"role": "user", "content": "a", "images": images if isinstance(images, list) else [images]}]}
    assert mend_chat(data) == []
    (turn,) = chat_turns.turns_of(msgspec.convert(data["messages"], list[Message]))
    assert [block.kind if isinstance(block, Media) else block.text for block in turn.content_blocks] == ["a", "image"]


async def test_what_only_anthropic_reads_is_refused_in_its_name(gateway: RunningGateway) -> None:
    turns = [{"role": "user", "content": [{"type": "hologram"}, {"type": "text", "text": "a"}]}]
    answer = await gateway.http.post("/v1/messages", json={"model": "tier-1", "max_tokens": 9, "messages": turns})
    assert answer.status_code == 400
    assert "only Anthropic's models read content of type 'hologram'" in answer.json()["error"]["message"]


async def test_anthropic_gets_no_blank_texts_of_agents_that_were_interrupted() -> None:
    blank = {"type": "text", "text": "\n\n"}
    turns = [
        ASKED,
        {"role": "assistant", "content": [blank, USE]},
        {"role": "user", "content": [RESULT | {"content": [blank]}, blank | {"cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [blank]},
        ASKED,
    ]
    system = [msgspec.Raw(msgspec.json.encode(text)) for text in (blank, {"type": "text", "text": "s"})]
    chat = conversation_of(system, msgspec.json.decode(msgspec.json.encode(turns), type=list[Turn]))
    read = zip(chat_turns.turns_of(chat.messages), chat.natives, strict=True)
    sent = message_turns([msgspec.structs.replace(turn, native=native) for turn, native in read], controls=False)
    assert b"\\n" not in msgspec.json.encode(sent)
    assert [len(turn["content"]) for turn in sent] == [1, 1, 2]
