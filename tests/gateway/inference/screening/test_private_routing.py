"""Private prompts through a running gateway: what marks them, how long, what the decision says, what is refused."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.gateway.sinks import CHAT, OPEN, SinkGateway, sink_gateway
from tests.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
MAIL = "Write to ada@example.com."
TABLE = "\n[private]\npatterns = { project = 'Project Falcon' }\n"
EMPTY = "# no table"
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SinkGateway]:
    async with sink_gateway(tmp_path_factory.mktemp("data"), TABLE, "capabilities = {tools = true}") as sinks:
        yield sinks


@pytest.fixture
def sinks(shared: SinkGateway) -> SinkGateway:
    """Only the strongest tier, which is elsewhere, is good enough."""
    shared.reset(0.01, 0.01, 1.0)
    return shared


async def test_a_plain_prompt_goes_where_routing_sends_it(sinks: SinkGateway) -> None:
    assert not await sinks.at_home()


TOOL = {
    "type": "function",
    "function": {"name": "send", "description": MAIL, "parameters": {"type": "object", "properties": {}}},
}
CALLED = [
    *OPEN,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": MAIL})}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "done"},
]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "system", "content": MAIL}, *OPEN]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": MAIL}]}]},
        {"messages": CALLED},
        {"messages": [*CALLED[:1], {**CALLED[1], "content": MAIL}, CALLED[2]]},
        {"messages": [*OPEN, {"role": "assistant", "content": "7"}, {"role": "user", "content": "Project Falcon"}]},
        {"messages": OPEN, "tools": [TOOL]},
        {"messages": OPEN, "user": "ada@example.com"},
        {"messages": OPEN, "metadata": {"who": "ada@example.com"}},
        {"messages": [{"role": "user", "content": "word " * 40_000 + MAIL}]},
    ],
    ids=["system", "part", "call", "answer", "own pattern", "tool", "user", "metadata", "long"],
)
async def test_every_text_that_a_server_would_get_is_read(sinks: SinkGateway, body: dict[str, Any]) -> None:
    answer = await sinks.chat(**body)
    # The long one fits no tier at home, and is refused.
    assert (answer.status_code, answer.headers.get("x-aio-tier")) in ((200, "1"), (400, None)), answer.text
    assert sinks.sinks.away == []


async def test_the_messages_api_and_completions_are_read_too(sinks: SinkGateway) -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": MAIL}}
    content = [{"type": "text", "text": "Sum it up."}, document]
    body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    await sinks.aio.http.post("/v1/messages", json=body)
    await sinks.aio.http.post("/v1/completions", json={"model": "auto", "prompt": ["Hello", MAIL]})
    assert sinks.sinks.away == []


async def test_a_chat_over_a_socket_is_read_too(sinks: SinkGateway) -> None:
    async with connect(sinks.aio.url.replace("http", "ws") + f"{CHAT}/ws") as socket:
        await socket.send(json.dumps({"model": "auto", "messages": [{"role": "user", "content": MAIL}]}))
        frame: dict[str, Any] = {}
        while "x_aio" not in frame:
            frame = json.loads(await socket.recv())
    assert frame["x_aio"]["tier"] == 1
    assert sinks.sinks.away == []


async def test_the_decision_says_why(sinks: SinkGateway) -> None:
    body = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "7"}]}
    body["messages"].append({"role": "user", "content": MAIL})
    shown = (await sinks.aio.http.post("/v1/route", json=body)).json()
    assert shown["tier"] == 1
    assert shown["reason"].startswith("private (email in messages[2]): ")
    assert "ada" not in shown["reason"]

    answer = await sinks.chat(**body)
    record = await eventually(lambda: sinks.aio.serving.records.find(answer.json()["id"]))
    assert record.decision.reason == shown["reason"]
    assert record.consent.local
    page = await sinks.aio.http.get(f"/v1/requests/{record.request_id}")
    assert page.json()["decision"]["inputs"]["private"] == "email in messages[2]"


async def test_a_dry_run_marks_no_session(sinks: SinkGateway) -> None:
    headers = {"x-aio-conversation": "dry"}
    await sinks.aio.http.post("/v1/route", json={"prompt": MAIL}, headers=headers)
    assert not await sinks.at_home(headers=headers)


@pytest.mark.parametrize("pinned", ["tier-3", "away"])
async def test_a_tier_elsewhere_that_is_named_is_refused_with_the_reason(sinks: SinkGateway, pinned: str) -> None:
    answer = await sinks.chat([{"role": "user", "content": MAIL}], model=pinned)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (403, "invalid_request_error", "no_tier_may_see")
    assert error["param"] == "messages[0]"
    assert "The request is private (email in messages[0])" in error["message"]
    assert sinks.sinks.away == []


async def test_a_header_that_asks_for_privacy_is_the_parameter_of_its_refusal(sinks: SinkGateway) -> None:
    answer = await sinks.chat(headers={"x-aio-private": "true", "x-aio-min-tier": "2"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "x-aio-private")
    wrong = await sinks.chat(headers={"x-aio-private": "yes"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-aio-private")
    assert not await sinks.at_home(headers={"x-aio-private": "false"})


@pytest.mark.parametrize("by", ["conversation id", "messages", "agent's session", "agent that it starts"])
@pytest.mark.parametrize("mark", ["rule", "header"])
async def test_the_rest_of_a_session_is_private_too(sinks: SinkGateway, by: str, mark: str) -> None:
    """Its later requests repeat nothing that a rule finds."""
    first = [{"role": "user", "content": f"{by} {mark} {MAIL if mark == 'rule' else ''}"}]
    later: Any = [{"role": "user", "content": "Sum up what we have said."}]
    headers: dict[str, str] = {}
    if by == "conversation id":
        headers = {"x-aio-conversation": f"c-{mark}"}
    elif by == "messages":
        first.insert(0, {"role": "user", "content": "Hello"})
        later = [*first, {"role": "assistant", "content": "7"}, *later]
    else:
        headers = {"user-agent": "claude-cli/2.0.0 (external, cli)", "x-claude-code-session-id": f"s-{mark}-{len(by)}"}
    said = headers | ({"x-aio-private": "true"} if mark == "header" else {})
    assert await sinks.at_home(first, said)
    if by == "agent that it starts":
        headers |= {"x-claude-code-agent-id": "sub"}
    assert await sinks.at_home(later, headers)
    assert await sinks.at_home(later, headers)


async def test_another_session_is_not(sinks: SinkGateway) -> None:
    assert await sinks.at_home([{"role": "user", "content": MAIL}], {"x-aio-conversation": "one"})
    assert not await sinks.at_home(headers={"x-aio-conversation": "two"})


async def test_a_session_stays_private_where_its_answer_failed(sinks: SinkGateway) -> None:
    headers = {"x-aio-conversation": "failed"}
    sinks.sinks.fails = True
    assert (await sinks.chat([{"role": "user", "content": MAIL}], headers)).status_code >= 500
    sinks.sinks.fails = False
    assert await sinks.at_home(headers=headers)


async def test_what_no_rule_can_read_is_private(sinks: SinkGateway) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]
    answer = await sinks.chat(image)
    assert answer.status_code in (200, 400)
    assert sinks.sinks.away == []
    ids = await sinks.aio.http.post("/v1/completions", json={"model": "tier-2", "prompt": [[1, 2, 3]]})
    assert (ids.status_code, ids.json()["error"]["code"]) == (403, "no_tier_may_see")
    assert "token ids, which no rule reads, in prompt[0]" in ids.json()["error"]["message"]


def edit(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


async def reloaded(sinks: SinkGateway, old: str, new: str) -> None:
    edit(Path(sinks.aio.serving.settings.catalog), old, new)
    await sinks.aio.operations.reload.reload("a test", "")


async def test_a_reload_changes_the_rules(sinks: SinkGateway) -> None:
    """Of texts, of what cannot be read, and whether texts are stored."""
    mail = [{"role": "user", "content": MAIL}]
    new = '[private]\nrules = ["card"]\nunreadable = false\nstore = false\n'
    await reloaded(sinks, TABLE, new)
    try:
        assert not await sinks.at_home(mail)
        answer = await sinks.chat([{"role": "user", "content": "4111 1111 1111 1111"}])
        record = await eventually(lambda: sinks.aio.serving.records.find(answer.json()["id"]))
        assert (record.tier, record.messages, record.answer) == (1, None, None)
        kept = await sinks.aio.http.post("/v1/responses", json={"model": "auto", "input": "4111 1111 1111 1111"})
        assert kept.json()["store"] is False
        assert (await sinks.aio.http.get(f"/v1/responses/{kept.json()['id']}")).status_code == 404
        ids = await sinks.aio.http.post("/v1/completions", json={"model": "tier-2", "prompt": [[1, 2, 3]]})
        assert ids.status_code == 200
        await reloaded(sinks, new, EMPTY)
        assert sinks.aio.serving.service.screen is None
        assert not await sinks.at_home([{"role": "user", "content": "4111 1111 1111 1111"}])
        assert await sinks.at_home(headers={"x-aio-private": "true"})
    finally:
        await reloaded(sinks, new, TABLE)
        await reloaded(sinks, EMPTY, TABLE)


async def test_the_decision_can_be_replayed(sinks: SinkGateway) -> None:
    from classifier.decision import PolicyInputs
    from classifier.policy.decide import decide

    answer = await sinks.chat([{"role": "user", "content": MAIL}])
    record = await eventually(lambda: sinks.aio.serving.records.find(answer.json()["id"]))
    stored = msgspec.json.decode(msgspec.json.encode(record.decision.inputs), type=PolicyInputs)
    assert decide(stored) == record.decision
