"""An answer restarts with another attempt: every reader drops exactly what came before, and nothing else."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.inference.answer import Answer
from gateway.inference.continuation import ContinuedGeneration
from gateway.inference.generation import Generation
from gateway.inference.router import RoutingService
from gateway.inference.screening.guardrail import AskedText
from gateway.inference.screening.screen import GuardedAnswer, Judged
from gateway.inference.shared_generation import SharedGeneration, SharedGenerationReader
from gateway.tenancy.admission import Admission
from tests.examples import examples
from tests.gateway.chats import chat
from tests.support.app import scripted_tiers
from tests.support.scripted_classifier import ScriptedClassifier
from tests.support.scripted_tier import WORDS
from tiers.catalog.load import load_catalog
from tiers.deltas import CollectedChoice
from tiers.tier import AnswerEnd, Delta, Restarted, Usage

END = AnswerEnd(usage=Usage())


class Attempts:
    """A source of an answer: the words of several attempts, of which the last one ends."""

    rerouted, decision = False, None

    def __init__(self, attempts: list[list[str]]) -> None:
        self._events = self._script(attempts)

    def _script(self, attempts: list[list[str]]) -> Iterator[Delta | Restarted]:
        for began, words in enumerate(attempts):
            if began:
                yield Restarted(float(began))
            yield from (Delta(text=word) for word in words)
        yield Delta(finish_reason="stop")
        yield Delta(end=END)

    def __aiter__(self) -> "Attempts":
        return self

    async def __anext__(self) -> Delta | Restarted:
        await asyncio.sleep(0)
        for event in self._events:
            return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Nothing is open."""


async def read(source: Any) -> tuple[str, float | None]:
    """Return the text of an answer from `source`, and when it began if it restarted."""
    answer = Answer(chat(), source, None, lambda answer, record: None)  # type: ignore[arg-type]
    first = answer.stamps.began
    while (await anext(answer)).end is None:
        pass
    began = answer.stamps.began
    return answer.choices[0].text, None if began == first else began


@settings(max_examples=examples(100), deadline=None)
@given(
    attempts=st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=4), min_size=1, max_size=3),
    turns=st.integers(0, 20),
)
@example(attempts=[["a"], ["b"]], turns=3)
@example(attempts=[["a", "b"], [], ["c"]], turns=0)
async def test_every_reader_has_the_words_of_the_last_attempt_alone(attempts: list[list[str]], turns: int) -> None:
    words, began = "".join(attempts[-1]), None if len(attempts) == 1 else float(len(attempts) - 1)
    judged: list[str] = []

    async def judge(texts: list[AskedText]) -> Judged:
        judged.extend(text.text for text in texts if text.role == "answer")
        return Judged([text.text for text in texts])

    assert await read(Attempts(attempts)) == (words, began)
    assert await read(GuardedAnswer(chat(), Attempts(attempts), judge)) == (words, began)  # type: ignore[arg-type]
    assert judged == [words]

    shared = SharedGeneration(Attempts(attempts), lambda shared: None)  # type: ignore[arg-type]
    early = SharedGenerationReader(shared, None, stream=False)  # type: ignore[arg-type]
    reading = asyncio.create_task(read(early))
    for _ in range(turns):
        await asyncio.sleep(0)
    late = SharedGenerationReader(shared, None, stream=False)  # type: ignore[arg-type]
    assert [(await reading)[0], (await read(late))[0]] == [words, words]
    assert "".join(delta.text for delta in shared.deltas) == words
    assert shared.restarted.began == began or began is None


@pytest.mark.parametrize("fail_at", range(len(WORDS)))
@pytest.mark.parametrize("kind", [Generation, ContinuedGeneration])
async def test_a_generation_restarts_before_its_second_attempt_unless_that_goes_on(
    kind: type[Generation], fail_at: int
) -> None:
    tiers = scripted_tiers()
    tiers[1].continues_chats = True
    tiers[0].fail_at, tiers[1].words = fail_at, ("And", " on.")
    routing = RoutingService(load_catalog("laptop"), {tier.number: tier for tier in tiers}, ScriptedClassifier(), None)
    request = chat(stream=kind is ContinuedGeneration)
    decision = routing.route(request)
    generation = kind(request, decision, tiers[0], routing, Admission(), None)
    events = [msgspec.structs.replace(event) async for event in generation]

    restarts = [place for place, event in enumerate(events) if isinstance(event, Restarted)]
    goes_on = fail_at and kind is ContinuedGeneration
    assert restarts == ([] if goes_on else [fail_at])
    choice = CollectedChoice()
    for event in events[fail_at if restarts else 0 :]:
        if isinstance(event, Delta):
            choice.take(event)
    assert choice.text == ("".join(WORDS[:fail_at]) if goes_on else "") + "And on."
