"""An equal request of the same caller gets the kept answer or joins the running generation (SPEC CA-01)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from gateway.inference.answer_stores import MemoryStore
from tests.gateway.inference.api.test_disconnects import only_record
from tests.polling import eventually
from tests.support.app import RunningGateway
from tests.support.clock import Clock
from tiers.conversation import ToolCallDelta
from tiers.errors import TierError

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def clock(gateway: RunningGateway) -> Iterator[Clock]:
    """The clock of another store of the module's gateway."""
    cache, clock = gateway.operations.cache, Clock()
    before = cache.store
    cache.store = MemoryStore(cache.knobs, clock)
    yield clock
    cache.store = before


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "tier-1", "messages": HELLO, "temperature": 0} | changes


async def asked(gateway: RunningGateway, wish: str | None = None, **changes: Any) -> httpx.Response:
    headers = {} if wish is None else {"x-aio-cache": wish}
    answer = await gateway.http.post(CHAT, json=body(**changes), headers=headers)
    assert answer.status_code == 200, answer.text
    await gateway.serving.service.idle()
    return answer


async def results(gateway: RunningGateway, *asks: dict[str, Any]) -> list[str]:
    return [(await asked(gateway, **one)).headers["x-aio-cache"] for one in asks]


async def until_in_flight(gateway: RunningGateway, count: int) -> None:
    await eventually(lambda: gateway.serving.service.in_flight == count)


def content(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_an_answer_is_given_again_for_thirty_seconds(gateway: RunningGateway, clock: Clock) -> None:
    first = await asked(gateway)
    clock.now += 29
    second = await asked(gateway)
    clock.now += 2
    third = await asked(gateway)

    assert [one.headers["x-aio-cache"] for one in (first, second, third)] == ["miss", "hit", "miss"]
    assert content(first) == content(second)
    assert first.json()["usage"] == second.json()["usage"]
    assert len(gateway.tier(1).requests) == 2


async def test_an_answer_that_an_earlier_version_kept_is_made_again(
    gateway: RunningGateway, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await asked(gateway)
    store = gateway.operations.cache.store
    assert isinstance(store, MemoryStore)
    [kept] = store.answers()
    fields = msgspec.msgpack.decode(kept.value)
    fields["deltas"] = [*fields.pop("pieces"), {"usage": fields["usage"]}]
    await store.put(kept.key, msgspec.msgpack.encode(fields))

    assert await results(gateway, {}, {}) == ["miss", "hit"]
    assert "a kept answer cannot be read: " in caplog.text


async def test_a_hit_costs_nothing_and_its_record_says_so(gateway: RunningGateway) -> None:
    await asked(gateway)
    hit = await asked(gateway)

    record = await only_record(gateway, hit.headers["x-aio-decision-id"])
    assert (record.cache, record.cost_usd, record.baseline_cost_usd) == ("hit", 0.0, 0.0)
    assert (record.status, record.tier, record.answer) == ("ok", 1, "Hello there, how are you?")
    assert record.timings.ttft_ms is not None
    assert hit.json()["x_aio"]["cache"] == "hit"
    assert hit.headers["x-aio-cost-usd"] == "0.000000"


async def test_changed_weights_never_answer_from_the_cache(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(gateway)
    # Also those of a tier that did not answer: it may after a failure or an escalation.
    monkeypatch.setattr(type(gateway.tier(4)), "weights", property(lambda tier: "new" if tier.number == 4 else ""))
    changed = await results(gateway, {}, {})
    monkeypatch.undo()

    assert changed == ["miss", "hit"]
    assert await results(gateway, {}) == ["hit"]


async def test_hits_are_no_figures_of_their_tier(gateway: RunningGateway) -> None:
    metrics = gateway.operations.metrics
    await asked(gateway)
    tokens, hits = metrics.requests._answer_tokens.value(("1",)), metrics.requests._cache.value(("hit",))
    seen = metrics.levels.figures()[1].requests

    await asked(gateway)

    assert metrics.requests._answer_tokens.value(("1",)) == tokens
    assert metrics.requests._cache.value(("hit",)) == hits + 1
    assert metrics.levels.figures()[1].requests == seen


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [{"role": "user", "content": "Say hello!"}]},
        {"messages": [{"role": "system", "content": "Say hello."}]},
        {"model": "tier-2"},
        {"max_tokens": 7},
        {"seed": 3},
        {"stop": "x"},
        {"n": 2},
        {"logprobs": True},
        {"presence_penalty": 0.5},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
        {"reasoning_effort": "low"},
    ],
)
async def test_a_request_that_differs_in_anything_is_another(gateway: RunningGateway, changes: dict[str, Any]) -> None:
    await asked(gateway)
    assert (await asked(gateway, **changes)).headers["x-aio-cache"] == "miss"
    assert (await asked(gateway, **changes)).headers["x-aio-cache"] == "hit"


async def test_what_only_words_the_answer_makes_no_other_request(gateway: RunningGateway) -> None:
    await asked(gateway)
    assert (await asked(gateway, user="ada", service_tier="default")).headers["x-aio-cache"] == "hit"


async def test_what_is_drawn_is_kept_only_for_who_asks_for_it(gateway: RunningGateway) -> None:
    drawn, seeded = {"temperature": 0.7}, {"temperature": 0.7, "seed": 5}
    assert await results(gateway, drawn, drawn) == ["bypass", "bypass"]
    assert await results(gateway, seeded, seeded) == ["miss", "hit"]
    assert await results(gateway, {"wish": "use"} | drawn, {"wish": "use"} | drawn, drawn) == ["miss", "hit", "bypass"]


async def test_the_tiers_own_temperature_counts_where_the_caller_names_none(gateway: RunningGateway) -> None:
    unset: dict[str, Any] = {"temperature": None}
    assert gateway.serving.routing.served.spec(1).sampling.temperature > 0
    assert await results(gateway, unset, unset) == ["bypass", "bypass"]


async def test_a_caller_may_want_a_new_answer_or_none_of_this(gateway: RunningGateway) -> None:
    await asked(gateway)
    gateway.tier(1).words = ("Hi",)

    assert (await asked(gateway, "off")).headers["x-aio-cache"] == "bypass"
    assert content(await asked(gateway)) == "Hello there, how are you?"
    assert (await asked(gateway, "refresh")).headers["x-aio-cache"] == "miss"
    again = await asked(gateway)
    assert (content(again), again.headers["x-aio-cache"]) == ("Hi", "hit")


async def test_another_wish_is_refused_by_name(gateway: RunningGateway) -> None:
    answer = await gateway.http.post(CHAT, json=body(), headers={"x-aio-cache": "maybe"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "x-aio-cache", "invalid_value")


async def test_a_hundred_equal_requests_at_once_make_one_generation(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 2
    async with httpx.AsyncClient(base_url=gateway.url, timeout=120, limits=httpx.Limits(max_connections=100)) as client:
        asks = [asyncio.create_task(client.post(CHAT, json=body(model="auto"))) for _ in range(100)]
        await until_in_flight(gateway, 100)
        tier.go.set()
        answers = await asyncio.gather(*asks)

    assert len(tier.requests) == 1
    assert {content(answer) for answer in answers} == {"Hello there, how are you?"}
    said = [answer.headers["x-aio-cache"] for answer in answers]
    assert (said.count("miss"), said.count("shared")) == (1, 99)
    assert sum(float(answer.headers["x-aio-cost-usd"]) > 0 for answer in answers) == 1


async def test_a_leader_who_leaves_takes_nothing_from_those_who_wait(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 2
    leader = asyncio.create_task(gateway.http.post(CHAT, json=body()))
    await tier.holding.wait()
    follower = asyncio.create_task(gateway.http.post(CHAT, json=body()))
    await until_in_flight(gateway, 2)
    leader.cancel()
    await until_in_flight(gateway, 1)
    tier.go.set()
    answer = await follower

    assert (content(answer), tier.closed_early, len(tier.requests)) == ("Hello there, how are you?", 0, 1)
    # Somebody has to pay for the one generation.
    assert answer.headers["x-aio-cache"] == "miss"
    assert float(answer.headers["x-aio-cost-usd"]) > 0


async def test_when_everybody_has_left_the_work_stops(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at = 2
    asks = [asyncio.create_task(gateway.http.post(CHAT, json=body())) for _ in range(2)]
    await until_in_flight(gateway, 2)
    await tier.holding.wait()
    for ask in asks:
        ask.cancel()
    await tier.ended.wait()
    await gateway.serving.service.idle()

    assert (tier.closed_early, len(tier.requests)) == (1, 1)
    tier.hold_at = None
    assert (await asked(gateway)).headers["x-aio-cache"] == "miss"


async def test_a_failed_generation_fails_only_its_leader(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at, tier.fail_at, tier.error = 2, 2, TierError("broke")
    leader = asyncio.create_task(gateway.http.post(CHAT, json=body()))
    await tier.holding.wait()
    followers = [asyncio.create_task(gateway.http.post(CHAT, json=body())) for _ in range(3)]
    await until_in_flight(gateway, 4)
    tier.go.set()
    await tier.ended.wait()
    tier.fail_at, tier.words = None, ("Mended",)
    answers = await asyncio.gather(*followers)

    assert (await leader).status_code == 500
    assert [content(answer) for answer in answers] == ["Mended"] * 3
    assert sorted(answer.headers["x-aio-cache"] for answer in answers) == ["miss", "shared", "shared"]
    assert len(tier.requests) == 2


async def test_who_came_later_tries_once_more_and_not_for_ever(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at, tier.fail_at = 2, 2
    asks = [asyncio.create_task(gateway.http.post(CHAT, json=body())) for _ in range(5)]
    await until_in_flight(gateway, 5)
    tier.go.set()
    answers = await asyncio.gather(*asks)

    assert {answer.status_code for answer in answers} == {500}
    assert len(tier.requests) == 2


async def test_who_inherits_a_generation_that_then_fails_goes_on_and_pays_for_both(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.hold_at, tier.fail_at = 2, 2
    leader = asyncio.create_task(gateway.http.post(CHAT, json=body()))
    await tier.holding.wait()
    follower = asyncio.create_task(gateway.http.post(CHAT, json=body()))
    await until_in_flight(gateway, 2)
    leader.cancel()
    await until_in_flight(gateway, 1)
    tier.go.set()
    await tier.ended.wait()
    tier.fail_at = None
    answer = await follower

    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert content(answer) == "Hello there, how are you?"
    assert [(attempt.status, attempt.cost_usd > 0) for attempt in record.attempts] == [("error", True), ("ok", True)]


async def test_what_failed_is_not_kept(gateway: RunningGateway) -> None:
    gateway.tier(1).fail_at = 3
    assert (await gateway.http.post(CHAT, json=body())).status_code == 500
    gateway.tier(1).fail_at = None
    assert await results(gateway, {}, {}) == ["miss", "hit"]


async def test_a_stream_is_replayed_as_the_stream_that_it_was(gateway: RunningGateway) -> None:
    async def streamed() -> list[Any]:
        stream = await gateway.openai.chat.completions.create(
            model="tier-1", messages=HELLO, temperature=0, stream=True, logprobs=True, top_logprobs=1,
            stream_options={"include_usage": True}, extra_headers={"x-aio-cache": "use"},
        )  # fmt: skip
        return [chunk.model_dump(exclude={"id", "created", "x_aio"}) async for chunk in stream]

    made = await streamed()
    await gateway.serving.service.idle()
    replayed = await streamed()

    assert replayed == made
    assert made[-1]["usage"]["completion_tokens"] == 5
    assert len(gateway.tier(1).requests) == 1


async def test_a_whole_answer_is_given_as_a_stream_and_the_other_way_round(gateway: RunningGateway) -> None:
    await asked(gateway)
    streamed = await asked(gateway, stream=True)
    assert streamed.headers["x-aio-cache"] == "hit"
    assert '" there,"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_calls_of_tools_and_thoughts_are_kept_too(gateway: RunningGateway) -> None:
    tier = gateway.tier(1)
    tier.words, tier.reasoning = (), ("Hm, ", "a call.")
    tier.calls = (ToolCallDelta(index=0, id="call_1", name="look"), ToolCallDelta(index=0, arguments='{"at": "sky"}'))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    first, second = [(await asked(gateway, tools=tools)).json()["choices"] for _ in range(2)]

    assert first == second
    assert first[0]["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "sky"}'}
    assert first[0]["message"]["reasoning_content"] == "Hm, a call."


async def test_text_completions_are_kept_too(gateway: RunningGateway) -> None:
    raw = {"model": "tier-1", "prompt": ["Once", "Twice"], "temperature": 0, "n": 2}
    first = await gateway.http.post("/v1/completions", json=raw)
    await gateway.serving.service.idle()
    second = await gateway.http.post("/v1/completions", json=raw)
    assert (first.headers["x-aio-cache"], second.headers["x-aio-cache"]) == ("miss", "hit")
    assert first.json()["choices"] == second.json()["choices"]


async def test_another_classifier_makes_other_answers(gateway: RunningGateway) -> None:
    auto = {"model": "auto"}
    assert await results(gateway, auto, auto) == ["miss", "hit"]
    gateway.classifier.version = "newer"
    assert await results(gateway, auto, auto) == ["miss", "hit"]


async def test_an_answer_that_a_higher_tier_gave_is_not_given_to_who_may_not_have_that_tier(
    gateway: RunningGateway,
) -> None:
    gateway.tier(1).fail_at = 0
    assert (await asked(gateway, model="auto")).headers["x-aio-tier"] == "2"
    gateway.tier(1).fail_at = None

    hit = await asked(gateway, model="auto")
    bounded = await gateway.http.post(CHAT, json=body(model="auto"), headers={"x-aio-max-cost": "1"})

    assert (hit.headers["x-aio-cache"], hit.headers["x-aio-tier"]) == ("hit", "2")
    assert (bounded.headers["x-aio-cache"], bounded.headers["x-aio-tier"]) == ("miss", "1")


async def test_texts_that_may_not_be_stored_are_shared_but_not_kept(gateway: RunningGateway) -> None:
    private = {"store": False}
    assert await results(gateway, private, private, {}, private) == ["miss", "miss", "miss", "miss"]


async def test_operators_switch_it_off_and_every_change_is_in_the_history(gateway: RunningGateway) -> None:
    admin = gateway.http
    changed = await admin.patch("/v1/admin/knobs/cache", json={"enabled": False, "reason": "a look at the bare tiers"})
    assert changed.json()["knobs"]["enabled"] is False
    assert await results(gateway, {}, {}, {"wish": "use"}) == ["bypass"] * 3

    await admin.patch("/v1/admin/knobs/cache", json={"enabled": None, "ttl_seconds": 50.5})
    assert await results(gateway, {}, {}) == ["miss", "hit"]
    shown = (await admin.get("/v1/admin/knobs/cache")).json()
    assert (shown["store"], shown["entries"], shown["knobs"]["ttl_seconds"]) == ("memory", 1, 50.5)

    unknown = await admin.patch("/v1/admin/knobs/cache", json={"semantic": True})
    assert (unknown.status_code, "semantic" in unknown.text) == (400, True)
    refused = await admin.patch("/v1/admin/knobs/cache", json={"ttl_seconds": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ttl_seconds")
    history = (await admin.get("/v1/admin/knobs/changes", params={"limit": 5})).json()["changes"]
    assert [(one["part"], one["knob"], one["new_value"]) for one in history] == [
        ("cache", "ttl_seconds", 0),
        ("cache", "semantic", True),
        ("cache", "ttl_seconds", 50.5),
        ("cache", "enabled", True),
        ("cache", "enabled", False),
    ]
    assert history[0]["refused"]
    await admin.patch("/v1/admin/knobs/cache", json={"ttl_seconds": None})
