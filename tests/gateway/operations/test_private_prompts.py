"""A private prompt never reaches a server elsewhere, whatever asks for its answer: the server's bytes are counted."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.gateway.sinks import Sinks, running_sinks
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.processes]
CHAT = "/v1/chat/completions"
# Each way to say that only tier 1 may see a request: terms of its key, or its own header.
PRIVATE: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "key with tiers": ({"tiers": [1]}, {}),
    "key with models": ({"models": ["home"]}, {}),
    "key for local tiers": ({"local_only": True}, {}),
    "header": ({}, {"x-aio-consent": "local"}),
    "private header": ({}, {"x-aio-private": "true"}),
    "prompt": ({}, {}),
}
# What a rule of the catalogue finds in the prompts of who has no terms and no header.
FOUND = "Write to ada@example.com."


class World:
    """The gateway with its servers; `keys` by the names of `PRIVATE`, and `public`."""

    def __init__(self, aio: RunningGateway, sinks: Sinks) -> None:
        self.aio, self.sinks = aio, sinks
        self.keys: dict[str, str] = {}
        self.who = "public"

    @property
    def headers(self) -> dict[str, str]:
        """Of requests by `who`."""
        return {"authorization": f"Bearer {self.keys[self.who]}"} | PRIVATE.get(self.who, ({}, {}))[1]

    @property
    def prompt(self) -> str:
        """Of requests by `who`."""
        return f"What is 3 + 4? {FOUND if self.who == 'prompt' else 'It is a secret.'}"

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.prompt}]

    async def post(self, path: str = CHAT, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """Ask as `who`; a chat is of `messages` unless the body has others."""
        if path == CHAT:
            body = {"model": "auto", "messages": self.messages} | body
        return await self.aio.http.post(path, json=body, headers=self.headers | (headers or {}))

    async def order(self, path: str, **body: Any) -> None:
        """Change something as the administrator."""
        changed = await self.aio.http.patch(path, json=body | {"reason": "a test"})
        assert changed.status_code == 200, changed.text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    data = tmp_path_factory.mktemp("data")
    async with running_sinks() as sinks:
        settings = Settings(
            catalog=str(sinks.write_catalog(data / "catalog.toml", "\n[private]\n")),
            data_dir=str(data),
            drain_seconds=5,
            monitor=False,
        )
        async with running_gateway(settings, scripted=False) as aio:
            world = World(aio, sinks)
            for name, terms in {"public": {}, **{name: terms for name, (terms, _) in PRIVATE.items()}}.items():
                world.keys[name] = await aio.key(name, **terms)
            yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: World) -> AsyncIterator[World]:
    """With nothing asked, and tier 1 the choice of the classifier."""
    shared.sinks.reset()
    shared.aio.classifier.reset()
    shared.aio.classifier.p_ok = (0.99, 0.99, 1.0)
    shared.who = "public"
    yield shared
    await shared.order("/v1/admin/knobs/routing", mode=None)


async def by_class(world: World) -> None:
    """The classifier says that only the strongest tier is good enough."""
    world.aio.classifier.p_ok = (0.01, 0.01, 1.0)
    await world.post()


async def fall_over(world: World) -> None:
    world.sinks.fails = True
    await world.post()


async def fall_over_of_a_stream(world: World) -> None:
    world.sinks.fails = True
    await world.post(stream=True)


async def minimum_tier(world: World) -> None:
    await world.post(headers={"x-aio-min-tier": "2"})


async def hedged_replicas(world: World) -> None:
    """Named, so that nothing else may answer."""
    await world.post(model="tier-3")


async def observed_routing(world: World) -> None:
    """The strongest tier answers everything."""
    await world.order("/v1/admin/knobs/routing", mode="observe")
    await world.post()


async def completion(world: World) -> None:
    world.sinks.fails = True
    await world.post("/v1/completions", model="auto", prompt=world.prompt)


async def messages(world: World) -> None:
    world.sinks.fails = True
    await world.post("/v1/messages", model="auto", messages=world.messages, max_tokens=8)


async def several_choices(world: World) -> None:
    world.sinks.fails = True
    await world.post(n=2, best_of=None)


async def refreshed_cache(world: World) -> None:
    """An answer is kept; the next one must be made, and the tier that made it fails."""
    await world.post(temperature=0)
    world.sinks.fails = True
    await world.post(headers={"x-aio-cache": "refresh"}, temperature=0)


async def stored_response(world: World) -> None:
    """Its conversation goes on, in a request that says nothing of its own."""
    first = await world.post("/v1/responses", model="auto", input=world.prompt)
    assert first.status_code == 200, first.text
    world.sinks.fails = True
    body = {"model": "auto", "input": "And 3 + 5?", "previous_response_id": first.json()["id"]}
    await world.aio.http.post("/v1/responses", json=body, headers={"authorization": f"Bearer {world.keys[world.who]}"})


async def batch(world: World) -> None:
    """A batch with the header is refused; with a key's terms its lines are answered by these."""
    world.sinks.fails = True
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "auto", "messages": world.messages}}
    upload = await world.aio.http.post(
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("lines.jsonl", json.dumps(line).encode())},
        headers=world.headers,
    )
    order = {"input_file_id": upload.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    made = await world.post("/v1/batches", **order)
    if header := next(iter(PRIVATE.get(world.who, ({}, {}))[1]), None):
        assert (made.status_code, made.json()["error"]["param"]) == (400, header)
        return

    await eventually(lambda: world.sinks.home.calls or world.sinks.away)
    await world.post(f"/v1/batches/{made.json()['id']}/cancel")


USES = [
    by_class, fall_over, fall_over_of_a_stream, minimum_tier, hedged_replicas, observed_routing, completion,
    messages, several_choices, refreshed_cache, stored_response, batch,
]  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_an_open_request_leaves_the_network(world: World, use: Callable[[World], Awaitable[None]]) -> None:
    """What the tests below show is due to consent alone."""
    await use(world)
    await eventually(lambda: world.sinks.away)


@pytest.mark.parametrize("who", PRIVATE)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_a_private_request_does_not(world: World, use: Callable[[World], Awaitable[None]], who: str) -> None:
    world.who = who
    await use(world)
    assert world.sinks.away == []


async def test_a_private_request_joins_no_open_one_that_may_go_elsewhere(world: World) -> None:
    """Equal requests of one key share an answer under way; its first caller's consent is not another's."""
    went_on, another = asyncio.Event(), [{"role": "user", "content": "Another secret"}]
    answer = world.sinks.home.handler

    async def held(call: Any) -> None:
        await went_on.wait()
        await answer(call)

    world.sinks.home.handler = held
    try:
        open_one = asyncio.create_task(world.post(temperature=0, messages=another))
        await eventually(lambda: len(world.sinks.home.calls) == 1)
        private = asyncio.create_task(world.post(headers={"x-aio-consent": "local"}, temperature=0, messages=another))
        await eventually(lambda: len(world.sinks.home.calls) == 2)
        open_one.cancel()
        world.sinks.fails = True
        went_on.set()
        assert (await private).status_code >= 500
    finally:
        world.sinks.home.handler = answer
    assert world.sinks.away == []


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"x-aio-consent": "local", "x-aio-min-tier": "2"}, 403, "no_tier_may_see"),
        ({"x-aio-consent": "nobody"}, 400, "invalid_value"),
        ({"x-aio-consent": "answer, local"}, 200, ""),
    ],
)
async def test_what_cannot_be_kept_private_is_refused(
    world: World, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await world.post(headers=headers)
    assert answer.status_code == status, answer.text
    if code:
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, "x-aio-consent")


async def test_each_of_several_headers_binds(world: World) -> None:
    world.sinks.fails = True
    twice = [*world.headers.items(), ("x-aio-consent", "local"), ("x-aio-consent", "answer")]
    answer = await world.aio.http.post(CHAT, json={"model": "auto", "messages": world.messages}, headers=twice)
    assert answer.status_code >= 500
    assert world.sinks.away == []


@pytest.mark.parametrize("headers", [{"x-aio-consent": "answer"}, {"x-aio-consent": "answer, local"}])
async def test_a_request_for_its_answer_alone_leaves_no_text(world: World, headers: dict[str, str]) -> None:
    answer = await world.post("/v1/completions", headers=headers, model="auto", prompt="A secret")
    record = await eventually(lambda: world.aio.serving.records.find(answer.json()["id"]))
    assert (record.messages, record.answer, record.consent.reuse) == (None, None, False)


async def test_the_terms_of_a_key_are_recorded_with_its_texts(world: World) -> None:
    world.who = "key for local tiers"
    answer = await world.post()
    record = await eventually(lambda: world.aio.serving.records.find(answer.json()["id"]))
    assert record.consent.local
    assert record.messages == world.messages
