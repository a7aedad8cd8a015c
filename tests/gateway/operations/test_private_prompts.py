"""A private prompt never reaches a server elsewhere, whatever asks for its answer: the server's bytes are counted."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.gateway.sinks import CHAT, SinkGateway, Sinks, running_sinks
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, gateway_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.processes]
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


class PrivateCallers(SinkGateway):
    """`keys` by the names of `PRIVATE`, and `public`; `who` of them asks."""

    def __init__(self, aio: RunningGateway, sinks: Sinks) -> None:
        super().__init__(aio, sinks)
        self.keys: dict[str, str] = {}
        self.who = "public"

    @property
    def headers(self) -> dict[str, str]:
        """Of requests by `who`."""
        return bearer(self.keys[self.who]) | PRIVATE.get(self.who, ({}, {}))[1]

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
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PrivateCallers]:
    data = tmp_path_factory.mktemp("data")
    async with running_sinks() as sinks, gateway_of(data, sinks.catalog("\n[private]\n")) as aio:
        callers = PrivateCallers(aio, sinks)
        for name, terms in {"public": {}, **{name: terms for name, (terms, _) in PRIVATE.items()}}.items():
            callers.keys[name] = await aio.key(name, **terms)
        yield callers


@pytest_asyncio.fixture(loop_scope="module")
async def callers(shared: PrivateCallers) -> AsyncIterator[PrivateCallers]:
    """With nothing asked, and tier 1 the choice of the classifier."""
    shared.reset(0.99, 0.99, 1.0)
    shared.who = "public"
    yield shared
    await shared.order("/v1/admin/knobs/routing", mode=None)


async def by_class(callers: PrivateCallers) -> None:
    """The classifier says that only the strongest tier is good enough."""
    callers.aio.classifier.p_ok = (0.01, 0.01, 1.0)
    await callers.post()


async def fall_over(callers: PrivateCallers) -> None:
    callers.sinks.fails = True
    await callers.post()


async def fall_over_of_a_stream(callers: PrivateCallers) -> None:
    callers.sinks.fails = True
    await callers.post(stream=True)


async def minimum_tier(callers: PrivateCallers) -> None:
    await callers.post(headers={"x-aio-min-tier": "2"})


async def hedged_replicas(callers: PrivateCallers) -> None:
    """Named, so that nothing else may answer."""
    await callers.post(model="tier-3")


async def observed_routing(callers: PrivateCallers) -> None:
    """The strongest tier answers everything."""
    await callers.order("/v1/admin/knobs/routing", mode="observe")
    await callers.post()


async def completion(callers: PrivateCallers) -> None:
    callers.sinks.fails = True
    await callers.post("/v1/completions", model="auto", prompt=callers.prompt)


async def messages(callers: PrivateCallers) -> None:
    callers.sinks.fails = True
    await callers.post("/v1/messages", model="auto", messages=callers.messages, max_tokens=8)


async def several_choices(callers: PrivateCallers) -> None:
    callers.sinks.fails = True
    await callers.post(n=2, best_of=None)


async def refreshed_cache(callers: PrivateCallers) -> None:
    """An answer is kept; the next one must be made, and the tier that made it fails."""
    await callers.post(temperature=0)
    callers.sinks.fails = True
    await callers.post(headers={"x-aio-cache": "refresh"}, temperature=0)


async def stored_response(callers: PrivateCallers) -> None:
    """Its conversation goes on, in a request that says nothing of its own."""
    first = await callers.post("/v1/responses", model="auto", input=callers.prompt)
    assert first.status_code == 200, first.text
    callers.sinks.fails = True
    body = {"model": "auto", "input": "And 3 + 5?", "previous_response_id": first.json()["id"]}
    await callers.aio.http.post(
        "/v1/responses", json=body, headers={"authorization": f"Bearer {callers.keys[callers.who]}"}
    )


async def batch(callers: PrivateCallers) -> None:
    """A batch with the header is refused; with a key's terms its lines are answered by these."""
    callers.sinks.fails = True
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "auto", "messages": callers.messages}}
    upload = await callers.aio.http.post(
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("lines.jsonl", json.dumps(line).encode())},
        headers=callers.headers,
    )
    order = {"input_file_id": upload.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    made = await callers.post("/v1/batches", **order)
    if header := next(iter(PRIVATE.get(callers.who, ({}, {}))[1]), None):
        assert (made.status_code, made.json()["error"]["param"]) == (400, header)
        return

    await eventually(lambda: callers.sinks.home.calls or callers.sinks.away)
    await callers.post(f"/v1/batches/{made.json()['id']}/cancel")


USES = [
    by_class, fall_over, fall_over_of_a_stream, minimum_tier, hedged_replicas, observed_routing, completion,
    messages, several_choices, refreshed_cache, stored_response, batch,
]  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_an_open_request_leaves_the_network(
    callers: PrivateCallers, use: Callable[[PrivateCallers], Awaitable[None]]
) -> None:
    """What the tests below show is due to consent alone."""
    await use(callers)
    await eventually(lambda: callers.sinks.away)


@pytest.mark.parametrize("who", PRIVATE)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_a_private_request_does_not(
    callers: PrivateCallers, use: Callable[[PrivateCallers], Awaitable[None]], who: str
) -> None:
    callers.who = who
    await use(callers)
    assert callers.sinks.away == []


async def test_a_private_request_joins_no_open_one_that_may_go_elsewhere(callers: PrivateCallers) -> None:
    """Equal requests of one key share an answer under way; its first caller's consent is not another's."""
    went_on, another = asyncio.Event(), [{"role": "user", "content": "Another secret"}]
    answer = callers.sinks.home.handler

    async def held(call: Any) -> None:
        await went_on.wait()
        await answer(call)

    callers.sinks.home.handler = held
    try:
        open_one = asyncio.create_task(callers.post(temperature=0, messages=another))
        await eventually(lambda: len(callers.sinks.home.calls) == 1)
        private = asyncio.create_task(callers.post(headers={"x-aio-consent": "local"}, temperature=0, messages=another))
        await eventually(lambda: len(callers.sinks.home.calls) == 2)
        open_one.cancel()
        callers.sinks.fails = True
        went_on.set()
        assert (await private).status_code >= 500
    finally:
        callers.sinks.home.handler = answer
    assert callers.sinks.away == []


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"x-aio-consent": "local", "x-aio-min-tier": "2"}, 403, "no_tier_may_see"),
        ({"x-aio-consent": "nobody"}, 400, "invalid_value"),
        ({"x-aio-consent": "answer, local"}, 200, ""),
    ],
)
async def test_what_cannot_be_kept_private_is_refused(
    callers: PrivateCallers, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await callers.post(headers=headers)
    assert answer.status_code == status, answer.text
    if code:
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, "x-aio-consent")


async def test_each_of_several_headers_binds(callers: PrivateCallers) -> None:
    callers.sinks.fails = True
    twice = [*callers.headers.items(), ("x-aio-consent", "local"), ("x-aio-consent", "answer")]
    answer = await callers.aio.http.post(CHAT, json={"model": "auto", "messages": callers.messages}, headers=twice)
    assert answer.status_code >= 500
    assert callers.sinks.away == []


@pytest.mark.parametrize("headers", [{"x-aio-consent": "answer"}, {"x-aio-consent": "answer, local"}])
async def test_a_request_for_its_answer_alone_leaves_no_text(callers: PrivateCallers, headers: dict[str, str]) -> None:
    answer = await callers.post("/v1/completions", headers=headers, model="auto", prompt="A secret")
    record = await eventually(lambda: callers.aio.serving.records.find(answer.json()["id"]))
    assert (record.messages, record.answer, record.consent.reuse) == (None, None, False)


async def test_the_terms_of_a_key_are_recorded_with_its_texts(callers: PrivateCallers) -> None:
    callers.who = "key for local tiers"
    answer = await callers.post()
    record = await eventually(lambda: callers.aio.serving.records.find(answer.json()["id"]))
    assert record.consent.local
    assert record.messages == callers.messages
