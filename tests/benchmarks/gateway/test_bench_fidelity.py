"""The matrix of what is lost on the way: nothing is through AIO, and what another gateway loses is found."""

import asyncio
import json
import tomllib

import pytest
import yaml
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.gateway.fidelity.clients import asked, next_step, whole_answer
from benchmarks.gateway.fidelity.dialects import answer_facts, differences, request_facts
from benchmarks.gateway.fidelity.matrix import SERVERS, counts_of, measured
from benchmarks.gateway.fidelity.peers import headers_of, servers_of


@pytest.mark.processes
def test_sessions_with_sealed_thoughts_lose_nothing() -> None:
    cells = asyncio.run(measured([], cases=("moved", "lenient")))
    assert [cell for cell in cells if cell.lost] == []
    assert counts_of(cells)["aio"].cells == 12 * len(SERVERS)
    assert all(cell.checked >= 3 for cell in cells)


def test_a_changed_field_is_named_by_its_path() -> None:
    body = asked("messages", "m", "thinking", stream=False)
    changed = body | {"tools": [tool | {"description": "other"} for tool in body["tools"]], "thinking": None}
    assert differences(body, changed) == ["tools[0].description", "tools[1].description", "thinking"]
    assert differences(body, body) == []


def test_the_facts_of_a_session_are_alike_in_every_api() -> None:
    first = {api: asked(api, "m", "tools", stream=False) for api in ("chat", "messages", "responses")}
    facts = [request_facts(api, body) for api, body in first.items()]
    assert facts[0] == facts[1] == facts[2]
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


def test_what_other_gateways_read_names_a_model_and_a_second_one_of_each_wire_that_they_have() -> None:
    said = CliRunner().invoke(main, ["fidelity", "--config-of", "switchyard", "--port", "9911"]).output
    routes = tomllib.loads(said)["routes"]
    assert {route["id"] for route in routes.values()} == {
        f"{name}{end}" for name in servers_of("Switchyard", SERVERS) for end in ("", "-b")
    }
    assert "gemini" not in servers_of("switchyard", SERVERS)
    assert "http://127.0.0.1:9911/gemini/v1beta" in json.dumps(
        yaml.safe_load(CliRunner().invoke(main, ["fidelity", "--config-of", "LiteLLM", "--port", "9911"]).output)
    )
    assert servers_of("another", SERVERS) == list(SERVERS)


def test_portkey_learns_its_provider_from_headers() -> None:
    assert headers_of("portkey", "http://127.0.0.1:1", "gemini") == {
        "x-portkey-provider": "google",
        "x-portkey-custom-host": "http://127.0.0.1:1/gemini/v1beta",
        "authorization": "Bearer unused",
    }
    assert headers_of("LiteLLM", "http://127.0.0.1:1", "gemini") == {}
