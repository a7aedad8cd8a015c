"""Answers of lenient servers reach the clients of all three APIs in exactly the form of their API."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.polling import eventually
from tests.tiers.remote.lenient_servers import CASES, USAGE, Case, message, raw_chunks
from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tests.tiers.remote.test_lenient_servers import forms, send

Body = dict[str, Any]
TIER = """
[[tiers]]
name = "{kind}"
price = {{ input_usd_per_million = 4, output_usd_per_million = 12 }}
[tiers.remote]
kind = "{wire}"
model = "m"
base_url = "{url}"
max_context = 4096
"""
KINDS = ("openai", "anthropic", "gemini", "bedrock", "responses")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS}
PLACES = {id(case): place for place, case in enumerate(CASES)}
COSTS = {"usage": USAGE | {"cost": 0.5}}


def catalogue(url: str) -> str:
    tiers = [
        TIER.format(kind=kind, wire="openai-provider" if kind == "responses" else kind, url=url)
        + ('responses = "always"\n' if kind == "responses" else "")
        + 'api_key_env = "THE_KEY"\n'
        for kind in KINDS
    ]
    return 'name = "lenient"\n' + "".join(tiers)


def prompt_of(case: Case) -> str:
    """What to say to get this answer, without the tags in its name: those of a caller's are left in the text."""
    return f"row {PLACES[id(case)]}."


async def answer(call: Call) -> None:
    """Answer as the case that the last message names."""
    text = json.dumps(call.body)
    if "what it costs" in text:
        start = {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}
        await send(call, Case("", raw_chunks(start, {"choices": []} | COSTS), message(content="Hi") | COSTS))
        return
    (place,) = re.findall(r"row (\d+)\.", text)
    await send(call, CASES[int(place)])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("lenient")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("THE_KEY", "sk-test")
        async with LoopbackServer(answer) as server:
            catalog = folder / "lenient.toml"
            catalog.write_text(catalogue(server.base_url))
            settings = Settings(data_dir=str(folder), catalog=str(catalog), monitor=False, drain_seconds=5)
            async with running_gateway(settings, scripted=False, protocol="httptools") as running:
                yield running


async def asked(gateway: RunningGateway, path: str, body: Body) -> Any:
    """Return the body of an answer, or the events of a stream."""
    told = await gateway.http.post(path, json=body, headers={"x-aio-cache": "off"})
    assert told.status_code == 200, told.text
    if not body["stream"]:
        return told.json()
    lines = [line[6:] for line in told.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def as_chat(gateway: RunningGateway, case: Case, stream: bool) -> Body:
    turns = [{"role": "user", "content": prompt_of(case)}]
    tools = [{"type": "function", "function": FUNCTION}]
    told = await asked(
        gateway, "/v1/chat/completions", {"model": case.kind, "messages": turns, "tools": tools, "stream": stream}
    )
    if not stream:
        (choice,) = told["choices"]
        said = choice["message"]
        calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in said.get("tool_calls") or ()]
        cited = [one["url_citation"]["url"] for one in said["annotations"]]
        return shown(said["content"] or "", said["refusal"] or "", calls, choice["finish_reason"], cited)
    assert not [event for event in told if "error" in event]
    choices = [choice for event in told for choice in event["choices"]]
    deltas = [choice["delta"] for choice in choices]
    pieces: dict[int, list[str]] = {}
    for one in (one for delta in deltas for one in delta.get("tool_calls", ())):
        have = pieces.setdefault(one["index"], ["", "", ""])
        for place, text in enumerate((one.get("id"), one["function"].get("name"), one["function"]["arguments"])):
            have[place] += text or ""
    (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    cited = [one["url_citation"]["url"] for delta in deltas for one in delta.get("annotations", ())]
    text, refusal = ("".join(delta.get(name) or "" for delta in deltas) for name in ("content", "refusal"))
    return shown(text, refusal, [tuple(one) for one in pieces.values()], reason, cited)


async def as_response(gateway: RunningGateway, case: Case, stream: bool) -> Body:
    tools = [{"type": "function"} | FUNCTION]
    told = await asked(
        gateway, "/v1/responses", {"model": case.kind, "input": prompt_of(case), "tools": tools, "stream": stream}
    )
    if stream:
        text, refusal = (
            "".join(event["delta"] for event in told if event["type"] == f"response.{name}.delta")
            for name in ("output_text", "refusal")
        )
        told = told[-1]["response"]
    parts = [part for item in told["output"] if item["type"] == "message" for part in item["content"]]
    whole = ["".join(part.get(name, "") for part in parts) for name in ("text", "refusal")]
    if stream and case.kind != "responses":
        assert [text, refusal] == whole
    calls = [(c["call_id"], c["name"], c["arguments"]) for c in told["output"] if c["type"] == "function_call"]
    cited = [one["url"] for part in parts for one in part.get("annotations", ())]
    why = told["incomplete_details"] or {"reason": "tool_calls" if calls else "stop"}
    return shown(*whole, calls, {"max_output_tokens": "length"}.get(why["reason"], why["reason"]), cited)


async def as_message(gateway: RunningGateway, case: Case, stream: bool) -> Body:
    turns, tools = [{"role": "user", "content": prompt_of(case)}], [{"name": "get_weather", "input_schema": PARAMETERS}]
    body = {"model": case.kind, "max_tokens": 400, "messages": turns, "tools": tools, "stream": stream}
    told = await asked(gateway, "/v1/messages", body)
    blocks, reason = [], ""
    if not stream:
        blocks, reason = told["content"], told["stop_reason"]
    for event in told if stream else ():
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"arguments": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[-1]["text"] = blocks[-1].get("text", "") + delta.get("text", "")
            blocks[-1]["arguments"] += delta.get("partial_json", "")
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    used = [block for block in blocks if block["type"] == "tool_use"]
    calls = [(c["id"], c["name"], c["arguments"] if stream else json.dumps(c["input"])) for c in used]
    names = {"end_turn": "stop", "tool_use": "tool_calls", "refusal": "content_filter", "max_tokens": "length"}
    if case.refusal:
        # This API has no field of its own for it.
        assert reason == "refusal"
        return shown("", text, calls, "stop", [case.cited] if case.cited else [])
    return shown(text, "", calls, names[reason], [case.cited] if case.cited else [])


def shown(text: str, refusal: str, calls: list[Any], finish: str, cited: list[str]) -> Body:
    assert all(one[0] for one in calls)
    assert len({one[0] for one in calls}) == len(calls)
    said = [(name, json.loads(arguments)) for _, name, arguments in calls]
    return {"text": text, "refusal": refusal, "calls": said, "finish": finish, "cited": cited}


NATIVE = {"messages": "anthropic", "responses": "responses"}
APIS = {"chat": as_chat, "responses": as_response, "messages": as_message}
WHOLE = [case for case in CASES if case.finish != "error"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", [case for case in CASES if case.finish == "error"], ids=lambda case: case.name)
async def test_a_stream_that_its_server_gave_up_ends_with_an_error(gateway: RunningGateway, case: Case) -> None:
    turns = [{"role": "user", "content": prompt_of(case)}]
    told = await asked(gateway, "/v1/chat/completions", {"model": case.kind, "messages": turns, "stream": True})
    assert [event for event in told if "error" in event]
    assert not [choice for event in told for choice in event.get("choices", ()) if choice["finish_reason"] == "stop"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("case", WHOLE, ids=[case.name for case in WHOLE])
async def test_a_client_gets_what_the_server_plainly_said(gateway: RunningGateway, case: Case, api: str) -> None:
    for whole in forms(case):
        calls = case.calls[:1] if whole and case.kind == "gemini" else case.calls
        meant = shown(case.text, case.refusal, [], case.finish, [case.cited] if case.cited else []) | {"calls": calls}
        if case.kind == NATIVE.get(api):
            # What a server of the client's own API said goes on as it is; the table's liberties are not mended there.
            continue
        assert await APIS[api](gateway, case, not whole) == meant, f"whole: {whole}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_provider_charges_is_billed_and_recorded_as_its_own_figure(
    gateway: RunningGateway, stream: bool
) -> None:
    body = {"model": "openai", "messages": [{"role": "user", "content": "what it costs"}], "stream": stream}
    told = await gateway.http.post(
        "/v1/chat/completions", json=body | {"max_tokens": 9}, headers={"x-aio-cache": "off"}
    )

    async def found() -> Any:
        record = await gateway.http.get(f"/v1/requests/{told.headers['x-aio-decision-id']}")
        return record.json() if record.status_code == 200 else None

    record = await eventually(found)
    assert (record["cost_usd"], record["attempts"][0]["charged_usd"]) == (0.5, 0.5)
