"""A request of Messages is read into turns, tools and fields; a refusal has the path of its block."""

from typing import Any

import msgspec
import pytest

from inference_core.grammar.limits import MAX_CHARACTERS
from tiers.conversation import ReadRequest
from tiers.dialects.messages import MessagesRequest
from tiers.dialects.messages_request import read_messages
from tiers.errors import BadRequestError

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
ADD: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
ODD = ADD | {"name": "odd", "input_schema": {"type": "array"}}


def read(*, keeps_own: bool = True, **fields: Any) -> ReadRequest:
    body = {"model": "m", "max_tokens": 9, "messages": HELLO} | fields
    return read_messages(msgspec.json.decode(msgspec.json.encode(body), type=MessagesRequest), keeps_own=keeps_own)


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    """The messages of a turn of these blocks, after which the user speaks."""
    return {"messages": [{"role": role, "content": list(blocks)}, *HELLO]}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


def test_documents_and_search_results_in_text_are_read() -> None:
    text = {"type": "document", "title": "Rain", "source": {"type": "text", "media_type": "text/plain", "data": "Wet."}}
    content = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Dry."}]}}
    hot = [{"type": "text", "text": "Hot."}]
    found = {"type": "search_result", "title": "Sun", "source": "https://sun", "content": hot}
    turns = read(messages=[{"role": "user", "content": [text, content, found]}]).turns
    assert [(turn.role, turn.text) for turn in turns or ()] == [
        ("user", "Rain\nWet.\n\nDry.\n\nSun (https://sun)\nHot.")
    ]


@pytest.mark.parametrize(
    ("given", "choice", "name", "parallel", "explicit"),
    [
        (None, "auto", None, True, ()),
        ({"type": "auto"}, "auto", None, True, ("tool_choice",)),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            "required", None, False, ("tool_choice", "parallel_tool_calls"),
        ),
        ({"type": "tool", "name": "add"}, "named", "add", False, ("tool_choice",)),
        ({"type": "tool", "name": "web_search"}, "auto", None, True, ()),
        ({"type": "none"}, "none", None, True, ("tool_choice",)),
    ],
)  # fmt: skip
def test_a_choice_of_tools_has_its_meaning(
    given: dict[str, Any] | None, choice: str, name: str | None, parallel: bool, explicit: tuple[str, ...]
) -> None:
    found = read(tools=[SEARCH, ADD], tool_choice=given)
    assert found.tooling is not None
    assert (found.tooling.choice, found.tooling.name, found.tooling.parallel) == (choice, name, parallel)
    assert found.explicit == explicit


def test_a_tool_that_nothing_runs_is_left_out_by_name_next_to_the_callers_own() -> None:
    found = read(tools=[SEARCH, ADD], keeps_own=False)
    assert (found.ignored, found.native and found.native.server_tools) == (("tools.web_search_20250305",), ())
    kept = read(tools=[SEARCH, ADD])
    assert (kept.ignored, kept.native and kept.native.server_tools) == ((), ("web_search_20250305",))


def test_what_has_another_name_in_a_chat_is_named_as_the_caller_calls_it() -> None:
    tool_added = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
    names = read(system="Be kind.", messages=[*HELLO, *HELLO, tool_added], tools=[SEARCH, ADD]).names
    assert [names.path(f"messages[{turn}]") for turn in range(3)] == ["system", "messages.0", "messages.0"]
    assert names.path("tools[0].function.parameters") == "tools.1.input_schema"
    assert names.path("max_completion_tokens") == "max_tokens"
    assert names.path("parallel_tool_calls") == "tool_choice.disable_parallel_tool_use"
    assert names.path("messages.reasoning_content") == "messages.content.thinking"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0"),
        (said({"type": "text"}), "messages.0.content.0.text"),
        (said({"type": "image"}), "messages.0.content.0.source"),
        (said(image(type="base64", data="aGk=")), "messages.0.content.0.source.media_type"),
        (said(image(type="base64", media_type="text/plain", data="aGk=")), "messages.0.content.0.source.media_type"),
        (said(image(type="url", url="http://127.0.0.1/")), "messages.0.content.0.source.url"),
        (said({"type": "tool_result"}), "messages.0.content.0.tool_use_id"),
        (
            said({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}),
            "messages.0.content.0.content.0.source",
        ),
        (said({"type": "tool_use", "id": "x"}, role="assistant"), "messages.0.content.0.name"),
        (said({"type": "image_url"}), "messages.0.content.0.type"),
        ({"system": [{"type": "text"}]}, "system.0.text"),
        ({"tools": [SEARCH, ADD, ADD | {"description": "Another."}]}, "tools.2.name"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": [SEARCH, ODD]}, "tools.1.input_schema"),
        ({"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "y"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "max_tokens"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"output_format": {"type": "json_schema", "schema": {"title": "x" * MAX_CHARACTERS}}}, "output_format.schema"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_path_of_the_block(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        read(**fields)
    assert refused.value.param == path


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({"type": "hologram"}, "hologram"),
        (image(type="file", file_id="f"), "image with source file"),
    ],
)
def test_what_only_anthropics_models_read_is_refused_where_there_is_none(block: dict[str, Any], kind: str) -> None:
    with pytest.raises(BadRequestError, match=kind) as refused:
        read(keeps_own=False, **said(block))
    assert refused.value.code == "unsupported_content"
    native = read(**said(block)).native
    assert native is not None
    assert native.server_tools == (kind,)
