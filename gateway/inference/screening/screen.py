"""The screen of a catalogue: every request passes it before it is routed, and every answer before it is sent."""

import logging
from functools import partial

import msgspec

from gateway.base.requests.inference_request import InferenceRequest, PrivateMark
from gateway.inference.answering.answer import AnswerSource
from gateway.inference.routing.router import RoutingService
from gateway.inference.screening.guarded_answer import GuardedAnswer, Judged
from gateway.inference.screening.guardrail import (
    Asked,
    AskedText,
    CountVerdict,
    Guardrail,
    guardrail_of,
    refused,
)
from gateway.inference.screening.rules import PrivateRules
from gateway.inference.screening.sent_texts import SentTexts, texts_of
from gateway.inference.screening.texts import passages, replaced
from tiers.catalog.catalog import Catalog
from tiers.catalog.screening_spec import PrivateSpec, Stage
from tiers.consent import Consent
from tiers.decoding.text_threads import TextThreads

log = logging.getLogger(__name__)

LONG_TEXT = 1 << 12
"""Characters of a request that are searched on a thread."""


class Screen:
    """Marks private requests by the catalogue's rules and by their session, and lets its guardrails judge requests and
    answers. A mark narrows what the request consents to, which every use of it asks (`tiers.consent.hidden_from`)."""

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
        """End what its guardrails hold."""
        for guardrail in self.guardrails:
            await guardrail.close()

    async def mark_of(self, texts: SentTexts, tenant: str, threads: TextThreads) -> PrivateMark | None:
        """The first thing among the texts that a rule finds, or that none can read; None for nothing, and without
        rules."""
        if self._rules is None or self.private is None:
            return None
        if self.private.unreadable and texts.unreadable is not None:
            what, where = texts.unreadable
            return PrivateMark(f"{what}, which no rule reads,", where)
        if texts.size < LONG_TEXT:
            return _search(self._rules, texts)
        return await threads.run(tenant, partial(_search, self._rules, texts))

    async def _judged(self, guardrail: Guardrail, request: InferenceRequest) -> InferenceRequest:
        given, param = passages(request), "messages" if request.prompts is None else "prompt"
        if guardrail.spec.fail == "closed" and any(not isinstance(prompt, str) for prompt in request.prompts or ()):
            raise refused(guardrail.spec, "it cannot read token ids", param)
        asked = _asked("request", request, [AskedText(passage.role, passage.text) for passage in given])
        verdict = await guardrail.verdict(asked, request.consent)
        if verdict.action == "block":
            raise refused(guardrail.spec, verdict.reason, param)
        return replaced(request, given, verdict.texts) if verdict.action == "replace" else request

    async def _judge_answer(self, request: InferenceRequest, texts: list[AskedText]) -> Judged:
        changed = []
        for guardrail in self.guardrails:
            if "answer" not in guardrail.spec.on:
                continue
            verdict = await guardrail.verdict(_asked("answer", request, texts), request.consent)
            if verdict.action == "block":
                return Judged(None, f"blocked by {guardrail.spec.name}")
            if verdict.action == "replace" and verdict.texts != [one.text for one in texts]:
                texts = [AskedText(one.role, text) for one, text in zip(texts, verdict.texts, strict=True)]
                changed.append(guardrail.spec.name)
        return Judged([one.text for one in texts], f"replaced by {', '.join(changed)}" if changed else "")


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
