"""What a server needs back travels with a client of `/v1/responses` that asks for it, where nothing may be stored."""

import base64
import json
from typing import Any

import msgspec
import pytest

from gateway.inference.turn_memory import TurnMemory
from tests.gateway.inference.answering.test_provider_forms import SIGNED_CALL, Recorded, recorded
from tiers.conversation import Call, Turn
from tiers.dialects.responses_items import CARRIED, with_carried
from tiers.dialects.seal_registry import SEALS

__all__ = ["recorded"]
Body = dict[str, Any]
TOOL: Body = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


async def items_of(recorded: Recorded, asked: Body) -> list[Body]:
    """The items of an answer."""
    told = await recorded.asked("/v1/responses", asked)
    if not asked.get("stream"):
        output: list[Body] = told.json()["output"]
        return output
    events = [json.loads(line[6:]) for line in told.text.split("\n") if line.startswith("data: {")]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    return done


def next_step(asked: Body, items: list[Body]) -> Body:
    """The request after the calls of `items` were made."""
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "12"}
        for item in items
        if item["type"] == "function_call"
    ]
    return asked | {"input": [{"role": "user", "content": "Weather?"}, *items, *results]}


def asked_of(tier: str, *, stream: bool) -> Body:
    include = ["reasoning.encrypted_content"]
    private: Body = {"model": tier, "input": "Weather?", "tools": [TOOL], "store": False, "include": include}
    return private | {"reasoning": {"effort": "low", "summary": "auto"}, "stream": stream}


@pytest.mark.parametrize("process", ["this", "another"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tier", ["claude", "gemini"])
async def test_every_process_gives_the_state_of_a_private_answer_back_to_its_server(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tier: str, stream: bool, process: str
) -> None:
    asked = asked_of(tier, stream=stream)
    items = await items_of(recorded, asked)
    assert len({item["id"] for item in items}) == len(items)
    assert items[-1]["type"] == "reasoning"
    assert items[-1]["summary"] == []
    assert [item["type"] for item in items].count("function_call") > 0
    if process == "another":
        monkeypatch.setattr(SEALS, "_servers", {})
        monkeypatch.setattr(TurnMemory, "_recalled", lambda memory, message, *_: message)
    await items_of(recorded, next_step(asked, items))
    if tier == "gemini":
        assert recorded.got["contents"][1] == {"role": "model", "parts": [SIGNED_CALL]}
    else:
        turn = recorded.got["messages"][1]
        assert turn["content"][0]["type"] == "thinking"
        assert turn["content"][0]["signature"]
        assert [block["type"] for block in turn["content"]].count("tool_use") == 2
        assert recorded.got["thinking"]["type"] == "enabled"
    other = "opus" if tier == "claude" else "claude"
    await items_of(recorded, next_step(asked | {"model": other}, items))
    assert "/+==" not in json.dumps(recorded.got)


async def test_state_is_carried_only_for_clients_that_ask_and_goes_with_no_other_turn(recorded: Recorded) -> None:
    asked = asked_of("claude", stream=False)
    silent = await items_of(recorded, {name: value for name, value in asked.items() if name != "include"})
    assert "encrypted_content" not in json.dumps(silent)
    items = await items_of(recorded, asked)
    calls = [item for item in items if item["type"] == "function_call"]
    changed = [item for item in items if item is not calls[1]]
    await items_of(recorded, next_step(asked, changed))
    assert [block["type"] for block in recorded.got["messages"][1]["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "!",
        "aGk=",
        base64.urlsafe_b64encode(msgspec.msgpack.encode(["m", "anthropic", [["{", "call", ""]]])).decode(),
    ],
)
def test_a_seal_of_unknown_origin_changes_nothing(content: str) -> None:
    turn = Turn.of("assistant", calls=(Call(id="1", name="f", arguments="{}"),))
    assert with_carried(turn, CARRIED + content) == turn
