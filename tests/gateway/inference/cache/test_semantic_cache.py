"""A paraphrased prompt gets the kept answer where an operator allows it: never by default, and never another
caller's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from classifier.features.routing_input import RoutingInput
from classifier.registry.artefact import default_artefact, load_artefact
from gateway.base.knobs import KnobFile
from gateway.inference import similar_prompts
from gateway.inference.answer_stores import CacheKnobs, MemoryStore
from gateway.inference.similar_prompts import SimilarPrompts, Wording
from tests.gateway.chats import chat
from tests.gateway.inference.api.test_disconnects import only_record
from tests.gateway.inference.cache.test_response_cache import CHAT, Clock, content
from tests.gateway.running_gateway import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED, REWORDED = "What is the capital of France?", "what is the capital of France"


@pytest.fixture(scope="module")
def embedding() -> Callable[[RoutingInput], npt.NDArray[np.float32]]:
    model = load_artefact(default_artefact())
    return lambda given: model.encode(given).embedding


@pytest_asyncio.fixture(loop_scope="module")
async def semantic(gateway: RunningGateway, embedding: Any) -> AsyncIterator[RunningGateway]:
    """The module's gateway with the semantic cache on, at a threshold that both wordings reach."""
    gateway.classifier.embedding = embedding
    await set_knobs(gateway, semantic=True, semantic_threshold=0.8)
    yield gateway
    await set_knobs(gateway, semantic=None, semantic_threshold=None)


@pytest.fixture
def clock(gateway: RunningGateway) -> Iterator[Clock]:
    """The clock of other stores of the module's gateway."""
    cache, clock = gateway.operations.cache, Clock()
    before = cache.store, cache.similar
    cache.store, cache.similar = MemoryStore(cache.knobs, clock), SimilarPrompts(cache.knobs, clock)
    yield clock
    cache.store, cache.similar = before


async def set_knobs(gateway: RunningGateway, **knobs: Any) -> None:
    changed = await gateway.http.patch("/v1/admin/knobs/cache", json=knobs | {"reason": "a test"})
    assert changed.status_code == 200, changed.text


async def asked(gateway: RunningGateway, prompt: str, wish: str | None = None, **changes: Any) -> httpx.Response:
    body = {"model": "tier-1", "messages": [{"role": "user", "content": prompt}], "temperature": 0} | changes
    headers = {} if wish is None else {"x-aio-cache": wish}
    answer = await gateway.http.post(CHAT, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    await gateway.serving.service.idle()
    return answer


async def use(gateway: RunningGateway, prompt: str, wish: str | None = None, **changes: Any) -> str:
    return (await asked(gateway, prompt, wish, **changes)).headers["x-aio-cache"]


async def test_without_an_operators_word_only_an_equal_request_does(gateway: RunningGateway, embedding: Any) -> None:
    gateway.classifier.embedding = embedding
    assert not CacheKnobs().semantic
    assert [await use(gateway, ASKED), await use(gateway, REWORDED), await use(gateway, ASKED)] == [
        "miss",
        "miss",
        "hit",
    ]
    assert len(gateway.operations.cache.similar) == 0


async def test_another_wording_gets_the_kept_answer_for_nothing_and_says_so(semantic: RunningGateway) -> None:
    counted = semantic.operations.metrics.requests._cache
    before = counted.value(("similar",))
    made, similar = await asked(semantic, ASKED), await asked(semantic, REWORDED)

    assert (made.headers["x-aio-cache"], similar.headers["x-aio-cache"]) == ("miss", "similar")
    assert content(similar) == content(made)
    assert similar.json()["x_aio"]["cache"] == "similar"
    assert len(semantic.tier(1).requests) == 1
    record = await only_record(semantic, similar.headers["x-aio-decision-id"])
    assert (record.cache, record.cost_usd, record.is_made) == ("similar", 0.0, False)
    assert record.messages == [{"role": "user", "content": REWORDED}]
    assert counted.value(("similar",)) == before + 1


async def test_an_equal_request_comes_before_another_wording(semantic: RunningGateway) -> None:
    await asked(semantic, ASKED)
    semantic.tier(1).words = ("Another",)
    assert await use(semantic, REWORDED, "exact") == "miss"
    answer = await asked(semantic, ASKED)
    assert (answer.headers["x-aio-cache"], content(answer)) == ("hit", "Hello there, how are you?")


async def test_it_is_switched_while_serving(semantic: RunningGateway) -> None:
    await asked(semantic, ASKED)
    await set_knobs(semantic, semantic=False)
    assert await use(semantic, "Please what is the capital of France?") == "miss"
    await set_knobs(semantic, semantic=True)
    assert await use(semantic, REWORDED) == "similar"
    await set_knobs(semantic, enabled=False)
    assert await use(semantic, REWORDED) == "bypass"
    await set_knobs(semantic, enabled=None)


async def test_the_cosine_has_to_reach_the_current_threshold(semantic: RunningGateway) -> None:
    angle = {ASKED: 0.0, REWORDED: np.arccos(0.9)}
    semantic.classifier.embedding = lambda given: np.array(
        [np.cos(angle[given.turn]), np.sin(angle[given.turn])], np.float32
    )
    await asked(semantic, ASKED)
    await set_knobs(semantic, semantic_threshold=0.91)
    assert await use(semantic, REWORDED) == "miss"
    semantic.operations.cache.similar.clear()
    semantic.operations.cache.store.clear()  # type: ignore[attr-defined]
    await asked(semantic, ASKED)
    await set_knobs(semantic, semantic_threshold=0.89)
    assert await use(semantic, REWORDED) == "similar"


async def test_a_vector_is_near_enough_to_itself_at_the_highest_threshold(semantic: RunningGateway) -> None:
    await set_knobs(semantic, semantic_threshold=1)
    assert [await use(semantic, ASKED), await use(semantic, ASKED[:-1])] == ["miss", "similar"]


async def test_the_guard_holds_whatever_the_vectors_say(
    semantic: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    semantic.classifier.embedding = lambda given: np.array([1.0, 0.0], np.float32)
    fields = [f"Find the degree of Q(sqrt(2){mark}sqrt(3)) over Q." for mark in (", ", "*")]
    assert [await use(semantic, prompt) for prompt in fields] == ["miss", "miss"]

    monkeypatch.setattr(similar_prompts, "gist", lambda text: "")
    semantic.reset()
    semantic.classifier.embedding = lambda given: np.array([1.0, 0.0], np.float32)
    assert [await use(semantic, prompt) for prompt in fields] == ["miss", "similar"]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "tier-2"},
        {"max_tokens": 7},
        {"seed": 3},
        {"presence_penalty": 0.5},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": REWORDED}]},
        {"messages": [{"role": "user", "content": REWORDED, "name": "ada"}]},
    ],
)
async def test_a_request_that_differs_in_anything_else_is_another(
    semantic: RunningGateway, changes: dict[str, Any]
) -> None:
    await asked(semantic, ASKED)
    assert await use(semantic, REWORDED, **changes) == "miss"


async def test_another_classifier_makes_other_vectors_and_finds_none_of_the_old(semantic: RunningGateway) -> None:
    await asked(semantic, ASKED)
    semantic.classifier.version = "newer"
    assert await use(semantic, REWORDED) == "miss"


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
        {
            "messages": [
                {"role": "user", "content": "Hi."},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": ASKED},
            ]
        },
        {"messages": [{"role": "user", "content": "Hi."}, {"role": "user", "content": ASKED}]},
        {"store": False},
        {"temperature": 0.7},
    ],
)
async def test_only_plain_questions_whose_answers_are_kept_are_looked_for(
    semantic: RunningGateway, changes: dict[str, Any]
) -> None:
    await asked(semantic, ASKED, **changes)
    assert len(semantic.operations.cache.similar) == 0


async def test_instructions_may_come_before_the_question(semantic: RunningGateway) -> None:
    def instructed(prompt: str) -> dict[str, Any]:
        return {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]}

    assert await use(semantic, "", **instructed(ASKED)) == "miss"
    assert await use(semantic, "", **instructed(REWORDED)) == "similar"


async def test_text_completions_and_very_long_prompts_are_left_alone(
    semantic: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similar_prompts, "MAX_CHARS", len(ASKED) - 1)
    raw = {"model": "tier-1", "prompt": ASKED, "temperature": 0}
    assert (await semantic.http.post("/v1/completions", json=raw)).status_code == 200
    await asked(semantic, ASKED)
    assert len(semantic.operations.cache.similar) == 0


async def test_a_route_without_a_vector_finds_none_and_leaves_none(semantic: RunningGateway, embedding: Any) -> None:
    await asked(semantic, ASKED)
    semantic.classifier.error = RuntimeError("away")
    assert await use(semantic, REWORDED, model="auto") == "miss"
    assert len(semantic.operations.cache.similar) == 1


async def test_what_is_drawn_is_given_to_another_wording_only_where_both_ask_for_it(semantic: RunningGateway) -> None:
    drawn = {"temperature": 0.7}
    assert await use(semantic, ASKED, "use", **drawn) == "miss"
    assert await use(semantic, REWORDED, **drawn) == "bypass"
    assert await use(semantic, ASKED, "exact", **drawn) == "bypass"
    assert await use(semantic, REWORDED, "use", **drawn) == "similar"


async def test_a_caller_may_want_equal_requests_only_or_a_new_answer_or_none_of_this(semantic: RunningGateway) -> None:
    await asked(semantic, ASKED)
    semantic.tier(1).words = ("Paris",)
    assert await use(semantic, REWORDED, "off") == "bypass"
    assert await use(semantic, "What is the capital of France", "exact") == "miss"
    assert await use(semantic, "What is the capital of France", "exact") == "hit"
    assert await use(semantic, REWORDED, "refresh") == "miss"
    assert content(await asked(semantic, "please what is the capital of France")) == "Paris"


async def test_it_is_given_for_as_long_as_to_an_equal_request(semantic: RunningGateway, clock: Clock) -> None:
    await asked(semantic, ASKED)
    clock.now += 29
    assert await use(semantic, REWORDED) == "similar"
    clock.now += 2
    assert await use(semantic, REWORDED) == "miss"


async def test_an_evicted_answer_is_generated_again(semantic: RunningGateway) -> None:
    await asked(semantic, ASKED)
    semantic.operations.cache.store.clear()  # type: ignore[attr-defined]
    assert await use(semantic, REWORDED) == "miss"
    assert await use(semantic, ASKED) == "similar"


async def test_the_least_recently_found_goes_first() -> None:
    knobs = KnobFile(CacheKnobs, "cache")
    knobs.change({"max_entries": 2, "semantic_threshold": 0.5})
    similar = SimilarPrompts(knobs)
    a, b, c = (Wording(key, np.array([1.0, 0.0], np.float32)) for key in (b"a", b"b", b"c"))
    await similar.put(a, b"1")
    await similar.put(b, b"2")
    assert await similar.find(a) == b"1"
    await similar.put(c, b"3")
    assert [await similar.find(one) for one in (a, b, c)] == [b"1", None, b"3"]


async def test_a_cosine_is_compared_to_five_digits_and_what_is_forgotten_is_not_found() -> None:
    knobs = KnobFile(CacheKnobs, "cache")
    knobs.change({"semantic_threshold": 1.0})
    similar = SimilarPrompts(knobs)
    await similar.put(Wording(b"a", np.array([1.0, 0.0], np.float32)), b"1")
    near, far = (Wording(b"a", np.array([cosine, 0.0], np.float32)) for cosine in (0.999996, 0.999994))
    assert (await similar.find(near), await similar.find(far), len(similar)) == (b"1", None, 1)
    similar.clear()
    assert (await similar.find(near), len(similar)) == (None, 0)


@pytest.mark.parametrize(("length", "looked_for"), [(similar_prompts.MAX_CHARS, True), (4001, False)])
async def test_prompts_of_up_to_4000_characters_are_looked_for(length: int, looked_for: bool) -> None:
    request = chat("x" * length)
    assert (similar_prompts.wording_of(request, np.ones(1, np.float32), lambda worded: b"k") is not None) == looked_for


async def test_an_abandoned_answer_is_given_to_no_other_wording(semantic: RunningGateway) -> None:
    tier = semantic.tier(1)
    tier.hold_at = 2
    leaving = asyncio.create_task(asked(semantic, ASKED))
    await tier.holding.wait()
    leaving.cancel()
    await tier.ended.wait()
    await semantic.serving.service.idle()
    tier.hold_at = None
    assert await use(semantic, REWORDED) == "miss"


async def test_it_comes_as_the_stream_that_another_wording_asks_for(semantic: RunningGateway) -> None:
    await asked(semantic, ASKED)
    streamed = await asked(semantic, REWORDED, stream=True)
    assert streamed.headers["x-aio-cache"] == "similar"
    assert '" there,"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
