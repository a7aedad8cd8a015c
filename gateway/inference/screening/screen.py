"""The screen of a catalogue: every request passes it before it is routed, and every answer before it is sent, which is
held back until guardrails have judged all of it."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import msgspec

from classifier.decision import Decision
from gateway.base.inference_request import InferenceRequest, PrivateMark
from gateway.inference.answer import AnswerSource, Bill
from gateway.inference.router import RoutingService
from gateway.inference.screening.guardrail import Asked, AskedText, CountVerdict, Guardrail, guardrail_of, refused
from gateway.inference.screening.rules import PrivateRules
from gateway.inference.screening.texts import SentTexts, passages, replaced, texts_of
from quality.records.record import Attempt, CacheUse
from tiers.catalog.catalog import Catalog, PrivateSpec, Stage
from tiers.catalog.consent import Consent
from tiers.conversation import ToolCallDelta
from tiers.deltas import CollectedChoice
from tiers.local.text_threads import TextThreads
from tiers.tier import Delta, Restarted, Tier


class Judged(msgspec.Struct, frozen=True):
    """What guardrails made of the texts of an answer: the texts that go on, None if it is blocked."""

    texts: list[str] | None
    by: str = ""
    """The guardrails that changed the answer; "" for none."""


Judge = Callable[[list[AskedText]], Awaitable[Judged]]


class GuardedAnswer:
    """An `AnswerSource` whose first delta comes when `source` has ended and `judge` has judged it, so that nothing of a
    stream is out before. An answer that is let pass goes on as it came; of one that is replaced each changed choice
    is its new texts, without log-probabilities; a blocked one is empty and ends with `content_filter`."""

    def __init__(self, request: InferenceRequest, source: AnswerSource, judge: Judge) -> None:
        self._source, self._judge, self._choices = source, judge, request.choices
        self._held: deque[Delta | Restarted] | None = None
        self._by = ""

    @property
    def tier(self) -> Tier:
        return self._source.tier

    @property
    def decision(self) -> Decision:
        return self._source.decision

    @property
    def attempts(self) -> list[Attempt]:
        return self._source.attempts

    @property
    def p_ok(self) -> float:
        return self._source.p_ok

    @property
    def cached(self) -> CacheUse | None:
        return self._source.cached

    @property
    def dropped(self) -> tuple[str, ...]:
        return self._source.dropped

    @property
    def changed(self) -> tuple[str, ...]:
        return self._source.changed

    @property
    def limit(self) -> int | None:
        return self._source.limit

    def __aiter__(self) -> "GuardedAnswer":
        return self

    async def __anext__(self) -> Delta | Restarted:
        if self._held is None:
            self._held = await self._judged()
        if not self._held:
            raise StopAsyncIteration
        return self._held.popleft()

    async def aclose(self) -> None:
        await self._source.aclose()

    def unsettled(self) -> list[asyncio.Task[None]]:
        """See `AnswerSource`."""
        return self._source.unsettled()

    def bill(self) -> Bill:
        """See `AnswerSource`; the last attempt names the guardrails that changed its answer."""
        bill = self._source.bill()
        if not self._by or not bill.attempts:
            return bill
        last = msgspec.structs.replace(bill.attempts[-1], guarded=self._by)
        return msgspec.structs.replace(bill, attempts=[*bill.attempts[:-1], last])

    async def _judged(self) -> deque[Delta | Restarted]:
        restarts: list[Restarted] = []
        deltas: list[Delta] = []
        while (event := await anext(self._source, None)) is not None:
            if isinstance(event, Restarted):
                restarts, deltas = [event], []
            else:
                deltas.append(event)
        choices = [CollectedChoice() for _ in range(self._choices)]
        for delta in deltas:
            if delta.end is None:
                choices[delta.index].take(delta)
        texts = [list(_texts(choice)) for choice in choices]
        judged = await self._judge([text for of_choice in texts for text in of_choice])
        self._by = judged.by
        return deque([*restarts, *(deltas if not judged.by else _changed(deltas, choices, texts, judged.texts))])


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
    new_texts = None if after is None else iter(after)
    for index, choice in enumerate(choices):
        own = [delta for delta in deltas if delta.end is None and delta.index == index]
        yield from (delta for delta in own if delta.echo)
        if new_texts is None:
            yield Delta(index=index, finish_reason="content_filter", at_once=True)
            continue
        texts = [next(new_texts) for _ in before[index]]
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


log = logging.getLogger(__name__)

LONG_TEXT = 1 << 12
"""Characters of a request that are searched on a thread."""


class Screen:
    """Marks private requests by the catalogue's rules and by their session, and lets its guardrails judge requests and
    answers. A mark narrows what the request consents to, which every use of it asks (`consent.hidden_from`)."""

    def __init__(self, private: PrivateSpec | None, guardrails: list[Guardrail]) -> None:
        self.private, self.guardrails = private, guardrails
        self._rules = None if private is None else PrivateRules(private)

    @property
    def has_rules(self) -> bool:
        """Whether texts may be private by what they say."""
        return self._rules is not None

    async def admit(self, request: InferenceRequest, routing: RoutingService) -> InferenceRequest:
        """Return the request as it may be routed: marked, with its session, if it is private, and with the texts that
        the guardrails leave. Raises `ApiError`: 400 `content_filter` if one blocks it, 403 or 503 if one fails closed.

        The mark comes first: what a guardrail elsewhere may see depends on it, and text that it redacts stays private.
        """
        request = await self.marked(request, routing)
        if request.private is not None:
            routing.conversations.note_private(request)
        for guardrail in self.guardrails:
            if "request" in guardrail.spec.on:
                request = await self._judged(guardrail, request)
        return request

    async def marked(self, request: InferenceRequest, routing: RoutingService) -> InferenceRequest:
        """Return the request, for local tiers only if it is private."""
        if self._rules is None or self.private is None:
            return request
        mark = request.private
        store = self.private.store or not request.consent.reuse
        if mark is None and request.consent.local and store:
            return request  # There is nothing left to narrow.
        if mark is None and await routing.conversations.is_private(request):
            mark = PrivateMark("its session is")
        mark = mark or await self.mark_of(texts_of(request), request.caller.tenant, routing.threads)
        if mark is None:
            return request
        own = request.own_consent.narrowed(Consent(local=True, reuse=self.private.store))
        return msgspec.structs.replace(request, own_consent=own, private=mark)

    def guarded(self, request: InferenceRequest, source: AnswerSource) -> AnswerSource:
        """Return `source`, held back until the guardrails have judged its answer, if any judges answers."""
        if any("answer" in guardrail.spec.on for guardrail in self.guardrails):
            return GuardedAnswer(request, source, partial(self._judge_answer, request))
        return source

    async def close(self) -> None:
        for guardrail in self.guardrails:
            await guardrail.close()

    async def mark_of(self, texts: SentTexts, tenant: str, threads: TextThreads) -> PrivateMark | None:
        """The first thing among the texts that a rule finds, or that none can read; None for nothing or no rules."""
        if self._rules is None or self.private is None:
            return None
        if self.private.unreadable and texts.unreadable is not None:
            what, where = texts.unreadable
            return PrivateMark(f"{what}, which no rule reads,", where)
        if texts.size < LONG_TEXT:
            return _search(self._rules, texts)
        return await threads.run(tenant, partial(_search, self._rules, texts))

    async def _judged(self, guardrail: Guardrail, request: InferenceRequest) -> InferenceRequest:
        sent_passages, param = passages(request), "messages" if request.prompts is None else "prompt"
        if guardrail.spec.fail == "closed" and any(not isinstance(prompt, str) for prompt in request.prompts or ()):
            raise refused(guardrail.spec, "it cannot read token ids", param)
        asked = _asked("request", request, [AskedText(passage.role, passage.text) for passage in sent_passages])
        verdict = await guardrail.verdict(asked, request.consent)
        if verdict.action == "block":
            raise refused(guardrail.spec, verdict.reason, param)
        return replaced(request, sent_passages, verdict.texts) if verdict.action == "replace" else request

    async def _judge_answer(self, request: InferenceRequest, texts: list[AskedText]) -> Judged:
        changed = []
        for guardrail in self.guardrails:
            if "answer" not in guardrail.spec.on:
                continue
            verdict = await guardrail.verdict(_asked("answer", request, texts), request.consent)
            if verdict.action == "block":
                return Judged(None, f"blocked by {guardrail.spec.name}")
            if verdict.action == "replace" and verdict.texts != [asked.text for asked in texts]:
                texts = [AskedText(asked.role, text) for asked, text in zip(texts, verdict.texts, strict=True)]
                changed.append(guardrail.spec.name)
        return Judged([asked.text for asked in texts], f"replaced by {', '.join(changed)}" if changed else "")


def _search(rules: PrivateRules, texts: SentTexts) -> PrivateMark | None:
    for where, group in texts.groups:
        if (rule := rules.first_of(group)) is not None:
            return PrivateMark(rule, where)
    for text in texts.joined():
        if (rule := rules.first(text)) is not None:
            return PrivateMark(rule, texts.groups[0][0].partition("[")[0])
    return None


def screen_of(catalog: Catalog, count: CountVerdict) -> Screen:
    """Return the screen of a catalogue. Raises `CatalogError` for a guardrail that cannot be made."""
    if catalog.private is not None and not any(tier.is_local for tier in catalog.tiers):
        log.warning("the catalogue has [private], and no tier is local: private prompts are refused")
    return Screen(catalog.private, [guardrail_of(spec, count) for spec in catalog.guardrails])


def _asked(stage: Stage, request: InferenceRequest, texts: list[AskedText]) -> Asked:
    return Asked(stage=stage, request_id=request.request_id, model=request.requested_model, texts=texts)
