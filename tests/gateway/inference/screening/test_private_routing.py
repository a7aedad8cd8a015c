"""Private prompts through a running gateway: what marks them, how long, what the decision says, what is refused."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from gateway.base.settings import Settings
from tests.gateway.sinks import Sinks, running_sinks
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
MAIL = "Write to ada@example.com."
OPEN = [{"role": "user", "content": "What is 3 + 4?"}]
TABLE = "\n[private]\npatterns = { project = 'Project Falcon' }\n"
EMPTY = "# no table"
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


class World:
    """A gateway whose classifier says that only the strongest tier, which is elsewhere, is good enough."""

    def __init__(self, aio: RunningGateway, sinks: Sinks) -> None:
        self.aio, self.sinks = aio, sinks

    async def chat(self, messages: Any = None, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        asked = {"model": "auto", "messages": messages or OPEN} | body
        return await self.aio.http.post(CHAT, json=asked, headers=headers)

    async def at_home(self, messages: Any = None, headers: dict[str, str] | None = None, **body: Any) -> bool:
        """Ask, and return whether the local tier answered and nothing left."""
        before = len(self.sinks.away)
        answer = await self.chat(messages, headers, **body)
        assert answer.status_code == 200, answer.text
        stayed = answer.headers["x-aio-tier"] == "1"
        assert stayed == (len(self.sinks.away) == before)
        return stayed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    data = tmp_path_factory.mktemp("data")
    async with running_sinks() as sinks:
        catalog = sinks.write_catalog(data / "catalog.toml", TABLE)
        catalog.write_text(catalog.read_text().replace("local = true", "local = true\ncapabilities = {tools = true}"))
        settings = Settings(catalog=str(catalog), data_dir=str(data), drain_seconds=5, monitor=False)
        async with running_gateway(settings, scripted=False) as aio:
            yield World(aio, sinks)


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: World) -> World:
    shared.sinks.reset()
    shared.aio.reset()
    shared.aio.classifier.p_ok = (0.01, 0.01, 1.0)
    return shared


async def test_a_plain_prompt_goes_where_routing_sends_it(world: World) -> None:
    assert not await world.at_home()


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
async def test_every_text_that_a_server_would_get_is_read(world: World, body: dict[str, Any]) -> None:
    answer = await world.chat(**body)
    # The long one fits no tier at home, and is refused.
    assert (answer.status_code, answer.headers.get("x-aio-tier")) in ((200, "1"), (400, None)), answer.text
    assert world.sinks.away == []


async def test_the_messages_api_and_completions_are_read_too(world: World) -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": MAIL}}
    content = [{"type": "text", "text": "Sum it up."}, document]
    body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    await world.aio.http.post("/v1/messages", json=body)
    await world.aio.http.post("/v1/completions", json={"model": "auto", "prompt": ["Hello", MAIL]})
    assert world.sinks.away == []


async def test_a_chat_over_a_socket_is_read_too(world: World) -> None:
    async with connect(world.aio.url.replace("http", "ws") + f"{CHAT}/ws") as socket:
        await socket.send(json.dumps({"model": "auto", "messages": [{"role": "user", "content": MAIL}]}))
        frame: dict[str, Any] = {}
        while "x_aio" not in frame:
            frame = json.loads(await socket.recv())
    assert frame["x_aio"]["tier"] == 1
    assert world.sinks.away == []


async def test_the_decision_says_why(world: World) -> None:
    body = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "7"}]}
    body["messages"].append({"role": "user", "content": MAIL})
    shown = (await world.aio.http.post("/v1/route", json=body)).json()
    assert shown["tier"] == 1
    assert shown["reason"].startswith("private (email in messages[2]): ")
    assert "ada" not in shown["reason"]

    answer = await world.chat(**body)
    record = await eventually(lambda: world.aio.serving.records.find(answer.json()["id"]))
    assert record.decision.reason == shown["reason"]
    assert record.consent.local
    page = await world.aio.http.get(f"/v1/requests/{record.request_id}")
    assert page.json()["decision"]["inputs"]["private"] == "email in messages[2]"


async def test_a_dry_run_marks_no_session(world: World) -> None:
    headers = {"x-aio-conversation": "dry"}
    await world.aio.http.post("/v1/route", json={"prompt": MAIL}, headers=headers)
    assert not await world.at_home(headers=headers)


@pytest.mark.parametrize("pinned", ["tier-3", "away"])
async def test_a_tier_elsewhere_that_is_named_is_refused_with_the_reason(world: World, pinned: str) -> None:
    answer = await world.chat([{"role": "user", "content": MAIL}], model=pinned)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (403, "invalid_request_error", "no_tier_may_see")
    assert error["param"] == "messages[0]"
    assert "The request is private (email in messages[0])" in error["message"]
    assert world.sinks.away == []


async def test_a_header_that_asks_for_privacy_is_the_parameter_of_its_refusal(world: World) -> None:
    answer = await world.chat(headers={"x-aio-private": "true", "x-aio-min-tier": "2"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "x-aio-private")
    wrong = await world.chat(headers={"x-aio-private": "yes"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-aio-private")
    assert not await world.at_home(headers={"x-aio-private": "false"})


@pytest.mark.parametrize("by", ["conversation id", "messages", "agent's session", "agent that it starts"])
@pytest.mark.parametrize("mark", ["rule", "header"])
async def test_the_rest_of_a_session_is_private_too(world: World, by: str, mark: str) -> None:
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
    assert await world.at_home(first, said)
    if by == "agent that it starts":
        headers |= {"x-claude-code-agent-id": "sub"}
    assert await world.at_home(later, headers)
    assert await world.at_home(later, headers)


async def test_another_session_is_not(world: World) -> None:
    assert await world.at_home([{"role": "user", "content": MAIL}], {"x-aio-conversation": "one"})
    assert not await world.at_home(headers={"x-aio-conversation": "two"})


async def test_a_session_stays_private_where_its_answer_failed(world: World) -> None:
    headers = {"x-aio-conversation": "failed"}
    world.sinks.fails = True
    assert (await world.chat([{"role": "user", "content": MAIL}], headers)).status_code >= 500
    world.sinks.fails = False
    assert await world.at_home(headers=headers)


async def test_what_no_rule_can_read_is_private(world: World) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]
    answer = await world.chat(image)
    assert answer.status_code in (200, 400)
    assert world.sinks.away == []
    ids = await world.aio.http.post("/v1/completions", json={"model": "tier-2", "prompt": [[1, 2, 3]]})
    assert (ids.status_code, ids.json()["error"]["code"]) == (403, "no_tier_may_see")
    assert "token ids, which no rule reads, in prompt[0]" in ids.json()["error"]["message"]


def edit(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


async def reloaded(world: World, old: str, new: str) -> None:
    edit(Path(world.aio.serving.settings.catalog), old, new)
    await world.aio.operations.reload.reload("a test", "")


async def test_a_reload_changes_the_rules(world: World) -> None:
    """Of texts, of what cannot be read, and whether texts are stored."""
    mail = [{"role": "user", "content": MAIL}]
    new = '[private]\nrules = ["card"]\nunreadable = false\nstore = false\n'
    await reloaded(world, TABLE, new)
    try:
        assert not await world.at_home(mail)
        answer = await world.chat([{"role": "user", "content": "4111 1111 1111 1111"}])
        record = await eventually(lambda: world.aio.serving.records.find(answer.json()["id"]))
        assert (record.tier, record.messages, record.answer) == (1, None, None)
        kept = await world.aio.http.post("/v1/responses", json={"model": "auto", "input": "4111 1111 1111 1111"})
        assert kept.json()["store"] is False
        assert (await world.aio.http.get(f"/v1/responses/{kept.json()['id']}")).status_code == 404
        ids = await world.aio.http.post("/v1/completions", json={"model": "tier-2", "prompt": [[1, 2, 3]]})
        assert ids.status_code == 200
        await reloaded(world, new, EMPTY)
        assert world.aio.serving.service.screen is None
        assert not await world.at_home([{"role": "user", "content": "4111 1111 1111 1111"}])
        assert await world.at_home(headers={"x-aio-private": "true"})
    finally:
        await reloaded(world, new, TABLE)
        await reloaded(world, EMPTY, TABLE)


async def test_the_decision_can_be_replayed(world: World) -> None:
    from classifier.decision import PolicyInputs
    from classifier.policy.decide import decide

    answer = await world.chat([{"role": "user", "content": MAIL}])
    record = await eventually(lambda: world.aio.serving.records.find(answer.json()["id"]))
    stored = msgspec.json.decode(msgspec.json.encode(record.decision.inputs), type=PolicyInputs)
    assert decide(stored) == record.decision
