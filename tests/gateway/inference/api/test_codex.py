"""What Codex sends beyond the Responses API: tools as an item, compactions, and the summaries that they become."""

import json
from typing import Any

import pytest

from tests.gateway.running_gateway import RunningGateway
from tests.gateway.served_process import UNCACHED
from tiers.conversation import ToolCallDelta
from tiers.dialects.responses_request import UNREADABLE

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Hello there, how are you?"
ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mend the parser."}]}
DONE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is mended."}]}
CALL = [
    {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "ok"},
]
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
MCP = {"type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [SHELL | {"name": "read"}]}


async def ask(gateway: RunningGateway, items: list[Any], path: str = "/v1/responses", **fields: Any) -> Any:
    body = {"model": "tier-1", "input": items, "store": False} | fields
    return await gateway.http.post(path, json=body, headers=UNCACHED)


def turns(gateway: RunningGateway) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in gateway.tier(1).requests[-1].messages or ()]


def tools(gateway: RunningGateway) -> list[str]:
    tooling = gateway.tier(1).requests[-1].tooling
    return [] if tooling is None else [tool.name for tool in tooling.tools]


async def test_tools_of_an_item_are_tools_of_the_request(gateway: RunningGateway) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [SHELL, PATCH, MCP, {"type": "file_search"}]}
    answer = await ask(gateway, [item, ASKED], tools=[SHELL])
    assert answer.status_code == 200, answer.text
    assert tools(gateway) == ["shell", "apply_patch", "mcp__files__read"]
    assert turns(gateway) == [("user", "Mend the parser.")]
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function", "custom", "namespace"]
    # What no model here can call is named.
    assert "input.tools.file_search" in answer.headers["x-aio-ignored-fields"]


async def test_a_trigger_is_answered_with_one_summary_which_stands_for_the_conversation(
    gateway: RunningGateway,
) -> None:
    history = [ASKED, *CALL, {"type": "ghost_snapshot"}, DONE, {"type": "compaction_trigger"}]
    answer = await ask(gateway, history, stream=True, tools=[SHELL], instructions="Be brief.")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    kinds = [event["type"] for event in events]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(5))
    item = events[3]["item"]
    assert item["type"] == "compaction"
    assert events[4]["response"]["output"] == [item]
    assert events[4]["response"]["usage"]["output_tokens"] > 0
    # The tier read the whole conversation and may not call its tools.
    read = turns(gateway)
    assert read[:2] == [("system", "Be brief."), ("user", "Mend the parser.")]
    assert ("tool", "ok") in read
    assert read[-1][1].startswith("Summarise this conversation")
    assert gateway.tier(1).requests[-1].tooling.choice == "none"  # type: ignore[union-attr]

    assert (await ask(gateway, [item, ASKED])).status_code == 200
    assert turns(gateway) == [
        ("user", f"Summary of the conversation so far, which was compacted:\n\n{SAID}"),
        ("user", "Mend the parser."),
    ]


async def test_a_whole_compaction_is_the_same(gateway: RunningGateway) -> None:
    (item,) = (await ask(gateway, [ASKED, {"type": "compaction_trigger"}])).json()["output"]
    assert item["type"] == "compaction"


async def test_the_older_endpoint_gives_the_users_words_and_the_summary(gateway: RunningGateway) -> None:
    answer = (await ask(gateway, [ASKED, *CALL, DONE], "/v1/responses/compact", instructions="Be brief.")).json()
    assert answer["object"] == "response.compaction"
    user, summary = answer["output"]
    assert (user["role"], user["content"][0]["text"]) == ("user", "Mend the parser.")
    assert summary["type"] == "compaction"
    assert (await ask(gateway, [*answer["output"], ASKED])).status_code == 200
    assert turns(gateway)[1][1].endswith(SAID)


async def test_a_stored_compaction_is_gone_on_from(gateway: RunningGateway) -> None:
    first = (await ask(gateway, [ASKED, {"type": "compaction_trigger"}], store=True)).json()
    answer = await ask(gateway, [ASKED], previous_response_id=first["id"], store=True)
    assert answer.status_code == 200, answer.text
    assert any(text.endswith(SAID) for _, text in turns(gateway))


@pytest.mark.parametrize("seal", ["gAAAA-of-another-server", None])
async def test_a_model_learns_of_a_summary_that_only_its_maker_reads(gateway: RunningGateway, seal: str | None) -> None:
    answer = await ask(gateway, [{"type": "compaction", "encrypted_content": seal}, ASKED])
    assert answer.status_code == 200
    assert [text for _, text in turns(gateway)] == [UNREADABLE, "Mend the parser."]


async def test_a_compaction_with_a_wrong_field_is_a_400(gateway: RunningGateway) -> None:
    assert (await ask(gateway, [{"type": "compaction_trigger"}], max_output_tokens="many")).status_code == 400


SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_for_tools_that_codex_runs_can_be_called_by_every_model(
    gateway: RunningGateway, stream: bool
) -> None:
    tier = gateway.tier(1)
    pieces = ('{"query": ', '"files"}')
    tier.words = ()
    tier.calls = tuple(
        ToolCallDelta(index=0, id="c1" if place == 0 else "", name="tool_search" if place == 0 else "", arguments=piece)
        for place, piece in enumerate(pieces)
    )
    answer = await ask(gateway, [ASKED], tools=[SHELL, SEARCH], stream=stream)
    assert answer.status_code == 200, answer.text
    assert "x-aio-ignored-fields" not in answer.headers
    assert tools(gateway) == ["shell", "tool_search"]
    if stream:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert [event["type"] for event in events[2:]] == [
            "response.output_item.added", "response.output_item.done", "response.completed",
        ]  # fmt: skip
        item, body = events[-2]["item"], events[-1]["response"]
    else:
        body = answer.json()
        (item,) = body["output"]
    assert (item["type"], item["call_id"], item["execution"]) == ("tool_search_call", "c1", "client")
    assert item["arguments"] == {"query": "files"}
    assert body["tools"][1] == SEARCH
    found = {
        "type": "tool_search_output",
        "call_id": "c1",
        "status": "completed",
        "execution": "client",
        "tools": [MCP],
    }
    tier.words, tier.calls = ("Done.",), ()
    answer = await ask(gateway, [ASKED, item, found], tools=[SHELL, SEARCH])
    assert answer.status_code == 200, answer.text
    assert tools(gateway) == ["shell", "tool_search", "mcp__files__read"]


async def test_a_search_for_tools_that_openai_runs_is_left_out(gateway: RunningGateway) -> None:
    answer = await ask(gateway, [ASKED], tools=[SHELL, SEARCH | {"execution": "server"}])
    assert answer.headers["x-aio-ignored-fields"] == "tools.tool_search"
    assert tools(gateway) == ["shell"]
