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
    search_result = {"type": "search_result", "title": "Sun", "source": "https://sun", "content": hot}
    turns = read(messages=[{"role": "user", "content": [text, content, search_result]}]).turns
    assert [(turn.role, turn.text) for turn in turns or ()] == [
        ("user", "Rain\nWet.\n\nDry.\n\nSun (https://sun)\nHot.")
    ]


@pytest.mark.parametrize(
    ("tool_choice", "choice", "name", "parallel", "explicit"),
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
    tool_choice: dict[str, Any] | None, choice: str, name: str | None, parallel: bool, explicit: tuple[str, ...]
) -> None:
    request = read(tools=[SEARCH, ADD], tool_choice=tool_choice)
    assert request.tooling is not None
    assert (request.tooling.choice, request.tooling.name, request.tooling.parallel) == (choice, name, parallel)
    assert request.explicit == explicit


def test_a_tool_that_nothing_runs_is_left_out_by_name_next_to_the_callers_own() -> None:
    reduced = read(tools=[SEARCH, ADD], keeps_own=False)
    assert (reduced.ignored, reduced.opaque and reduced.opaque.server_tools) == (("tools.web_search_20250305",), ())
    kept = read(tools=[SEARCH, ADD])
    assert (kept.ignored, kept.opaque and kept.opaque.server_tools) == ((), ("web_search_20250305",))


def test_what_has_another_name_in_a_chat_is_named_as_the_caller_calls_it() -> None:
    tool_added = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
    names = read(system="Be kind.", messages=[*HELLO, *HELLO, tool_added], tools=[SEARCH, ADD]).names
    assert [names.path(f"messages[{turn}]") for turn in range(3)] == ["system", "messages.0", "messages.0"]
    assert names.path("tools[0].function.parameters") == "tools.1.input_schema"
    assert names.path("max_completion_tokens") == "max_tokens"
    assert names.path("parallel_tool_calls") == "tool_choice.disable_parallel_tool_use"
    assert names.path("messages.reasoning_content") == "messages.content.thinking"


def test_a_long_schema_is_refused_by_the_path_of_its_block() -> None:
    with pytest.raises(BadRequestError) as refused:
        read(output_format={"type": "json_schema", "schema": {"title": "x" * MAX_CHARACTERS}})
    assert refused.value.param == "output_format.schema"


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
    opaque = read(**said(block)).opaque
    assert opaque is not None
    assert opaque.server_tools == (kind,)
