"""An answer that is held back until guardrails have judged all of it."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from classifier.decision import Decision
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.answering.answer import AnswerSource
from gateway.inference.answering.bill import Bill
from gateway.inference.screening.guardrail import AskedText
from quality.records.record import Attempt, CacheUse
from tiers.collected_choice import CollectedChoice
from tiers.tier import Delta, Tier
from tiers.tool_types import ToolCallDelta


class Judged(msgspec.Struct, frozen=True):
    """What guardrails made of the texts of an answer: the texts that go on, None if it is blocked. `by`: the guardrails
    that changed it, "" for none."""

    texts: list[str] | None
    by: str = ""


Judge = Callable[[list[AskedText]], Awaitable[Judged]]


class GuardedAnswer:
    """An `AnswerSource` whose first delta comes when `source` has ended and `judge` has judged it, so that nothing of a
    stream is out before. An answer that is let pass goes on as it came; of one that is replaced each changed choice
    is its new texts, without log-probabilities; a blocked one is empty and ends with `content_filter`."""

    def __init__(self, request: InferenceRequest, source: AnswerSource, judge: Judge) -> None:
        self._source, self._judge, self._choices = source, judge, request.choices
        self._held: deque[Delta] | None = None
        self._by = ""

    @property
    def tier(self) -> Tier:
        """See `AnswerSource`."""
        return self._source.tier

    @property
    def decision(self) -> Decision:
        """See `AnswerSource`."""
        return self._source.decision

    @property
    def attempted(self) -> float:
        """See `AnswerSource`."""
        return self._source.attempted

    @property
    def attempts(self) -> list[Attempt]:
        """See `AnswerSource`."""
        return self._source.attempts

    @property
    def p_ok(self) -> float:
        """See `AnswerSource`."""
        return self._source.p_ok

    @property
    def cached(self) -> CacheUse | None:
        """See `AnswerSource`."""
        return self._source.cached

    @property
    def dropped(self) -> tuple[str, ...]:
        """See `AnswerSource`."""
        return self._source.dropped

    @property
    def changed(self) -> tuple[str, ...]:
        """See `AnswerSource`."""
        return self._source.changed

    def __aiter__(self) -> "GuardedAnswer":
        return self

    async def __anext__(self) -> Delta:
        if self._held is None:
            self._held = deque(await self._judged())
        if not self._held:
            raise StopAsyncIteration
        return self._held.popleft()

    async def aclose(self) -> None:
        """See `AnswerSource`."""
        await self._source.aclose()

    def bill(self) -> Bill:
        """See `AnswerSource`; the last attempt names the guardrails that changed its answer."""
        bill = self._source.bill()
        if not self._by or not bill.attempts:
            return bill
        last = msgspec.structs.replace(bill.attempts[-1], guarded=self._by)
        return msgspec.structs.replace(bill, attempts=[*bill.attempts[:-1], last])

    async def _judged(self) -> list[Delta]:
        deltas: list[Delta] = []
        attempted = self._source.attempted
        while (delta := await anext(self._source, None)) is not None:
            if self._source.attempted != attempted:
                # Another tier has taken over.
                deltas, attempted = [], self._source.attempted
            deltas.append(delta)
        choices = [CollectedChoice() for _ in range(self._choices)]
        for delta in deltas:
            if delta.end is None:
                choices[delta.index].take(delta)
        texts = [list(_texts(choice)) for choice in choices]
        judged = await self._judge([text for of_choice in texts for text in of_choice])
        self._by = judged.by
        return deltas if not judged.by else list(_changed(deltas, choices, texts, judged.texts))


def _texts(choice: CollectedChoice) -> Iterator[AskedText]:
    """Yield the texts of a choice: always its reasoning and its answer first."""
    yield AskedText("reasoning", choice.reasoning)
    yield AskedText("answer", choice.text)
    for call in choice.tool_calls:
        yield AskedText("arguments", call.arguments)


def _changed(
    deltas: Sequence[Delta],
    choices: Sequence[CollectedChoice],
    before: Sequence[Sequence[AskedText]],
    after: Sequence[str] | None,
) -> Iterator[Delta]:
    """Yield the deltas of the changed answer."""
    given = None if after is None else iter(after)
    for index, choice in enumerate(choices):
        own = [delta for delta in deltas if delta.end is None and delta.index == index]
        yield from (delta for delta in own if delta.echo)
        if given is None:
            yield Delta(index=index, finish_reason="content_filter", at_once=True)
            continue
        texts = [next(given) for _ in before[index]]
        if texts == [asked.text for asked in before[index]]:
            yield from (delta for delta in own if not delta.echo)
        else:
            yield from _rewritten(index, choice, texts)
    yield from (delta for delta in deltas if delta.end is not None)


def _rewritten(index: int, choice: CollectedChoice, texts: Sequence[str]) -> Iterator[Delta]:
    reasoning, text, *arguments = texts
    if reasoning:
        yield Delta(index=index, reasoning=reasoning, at_once=True)
    if text:
        yield Delta(index=index, text=text, refusal=bool(choice.refused) and not choice.content, at_once=True)
    for number, (call, new) in enumerate(zip(choice.tool_calls, arguments, strict=True)):
        piece = ToolCallDelta(index=number, id=call.id, name=call.name, arguments=new)
        yield Delta(index=index, tool_calls=[piece], at_once=True)
    yield Delta(index=index, finish_reason=choice.finish_reason, stop_sequence=choice.stop_sequence, at_once=True)
