"""The matrix of what is lost on the way: nothing is through AIO."""

import asyncio

import pytest

from benchmarks.gateway.fidelity.clients import asked, next_step, whole_answer
from benchmarks.gateway.fidelity.dialects import answer_facts, differences, request_facts
from benchmarks.gateway.fidelity.matrix import SERVERS, measured


@pytest.mark.processes
def test_sessions_with_sealed_thoughts_lose_nothing() -> None:
    cells = asyncio.run(measured(("moved", "lenient")))
    assert [cell for cell in cells if cell.lost] == []
    assert len(cells) == 16 * len(SERVERS)
    assert all(cell.checked >= 3 for cell in cells)


def test_a_changed_field_is_named_by_its_path() -> None:
    body = asked("messages", "m", "thinking", stream=False)
    changed = body | {"tools": [tool | {"description": "other"} for tool in body["tools"]], "thinking": None}
    assert differences(body, changed) == ["tools[0].description", "tools[1].description", "thinking"]
    assert differences(body, body) == []


def test_the_facts_of_a_session_are_alike_in_every_api() -> None:
    first = {api: asked(api, "m", "tools", stream=False) for api in ("chat", "messages", "responses", "gemini")}
    facts = [request_facts(api, body) for api, body in first.items()]
    assert facts[0] == facts[1] == facts[2] == facts[3]
    assert facts[0]["system"] == "Be brief.\nUse tools."
    block = {"type": "tool_use", "id": "c", "name": "clock", "input": {}}
    signed = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}
    step = next_step("messages", first["messages"], {"content": [signed, block]}, "m")
    found = request_facts("messages", step)
    assert (found["seals"], found["calls"], found["results"][0][0]) == (["EqQB"], [["c", "clock", {}]], "c")


def test_an_answer_without_its_end_is_not_whole() -> None:
    start = {"type": "message_start", "message": {"content": [], "usage": {}}}
    text = f"data: {start}".replace("'", '"') + "\n\n"
    assert whole_answer("messages", text, stream=True) is None
    assert whole_answer("chat", 'data: {"choices": []}\n\n', stream=True) is None
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    whole = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": usage}
    assert answer_facts("chat", whole)["text"] == "Hi"
