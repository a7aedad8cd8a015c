"""A stream that survives its tier: what failed after the first token goes on at the same tier, or at another one.

The text so far becomes the beginning of the assistant's turn, or the end of a raw prompt; nothing else is added.
"""

import logging
from collections.abc import AsyncGenerator
from functools import partial
from itertools import takewhile
from operator import eq
from typing import Any

import msgspec

from gateway.base.inference_request import Caller, InferenceRequest
from gateway.inference.answer import Bill
from gateway.inference.generation import Generation, named
from gateway.inference.tier_attempt import TierAttempt
from gateway.tenancy.admission import Admission
from quality.records.record import Attempt, AttemptStatus
from tiers.catalog.pricing import most_cost_usd
from tiers.catalog.tier_spec import Price
from tiers.conversation import Turn
from tiers.errors import (
    InvalidAnswerError,
    TierAnswerTooLongError,
    TierContextError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.tier import AnswerEnd, Delta, Restarted, Tier, Usage

log = logging.getLogger(__name__)

MOST_CONTINUATIONS = 4
"""Further attempts of one answer."""


def may_continue(request: InferenceRequest) -> bool:
    """Whether a stream of the request may go on after a failure: one choice without log-probabilities or an echo, of no
    caller's own credential."""
    asked, options = request.generation, request.options
    plain = asked.sampling.logprobs is None and not asked.echo and options.credential is None
    return request.stream and request.is_single and plain


def _as_text(request: InferenceRequest) -> bool:
    """Whether an answer may go on from its text alone: one that nothing constrains, and that no thoughts precede."""
    asked = request.generation
    thinks = asked.reasoning_effort not in (None, "none") or bool(asked.reasoning_budget)
    says_thinking = asked.opaque is not None and asked.opaque.says_thinking
    if (
        thinks
        or says_thinking
        or asked.server_tools
        or asked.sampling.grammar is not None
        or asked.response_format is not None
    ):
        return False
    if asked.messages is None:
        return [type(prompt) for prompt in request.prompts or ()] == [str]
    # What goes on from a last turn of the assistant is not known to be the same everywhere.
    return bool(asked.messages) and asked.messages[-1].role != "assistant"


class ContinuedGeneration(Generation):
    """A generation whose stream goes on where it was broken off. See `Generation`.

    The attempts before the last have failed and are billed; the usage counts the prompt once, and each token of the
    answer. Nothing restarts after the first token, because what was passed on holds.
    """

    def __init__(self, request: InferenceRequest, *arguments: Any) -> None:
        self._text: list[str] = []
        self._is_plain = _as_text(request)
        # What servers of the caller's own API say in its form is in terms of their one answer, which another continues.
        asked = request.generation
        self._drops_opaque = self._is_plain and asked.tooling is None and not any(m.media for m in asked.messages or ())
        self._has_finished = False
        self._begun_at = 0
        self._cut: list[Usage] = []
        self._spaces = ""
        super().__init__(request, *arguments)

    @property
    def is_continued(self) -> bool:  # type: ignore[override]
        """Whether more than one attempt gave the answer."""
        return bool(self._cut)

    async def __anext__(self) -> Delta | Restarted:
        while True:
            delta = await super().__anext__()
            if isinstance(delta, Restarted):
                return delta
            if delta.end is not None:
                if self._cut:
                    delta.end = msgspec.structs.replace(
                        delta.end, usage=self._whole(delta.end.usage), streamed_tokens=None
                    )
                return delta
            if delta.opaque is not None and (self._drops_opaque or self._cut):
                delta.opaque = None
                if not (delta.text or delta.reasoning or delta.tool_calls or delta.finish_reason or delta.tries):
                    continue
            if self._cut and delta.reasoning:
                # The turn that it goes on from has ended for this server.
                await self._take_over(TierUnavailableError(f"{named(self.tier)} thinks again, instead of going on"))
                continue
            if self._spaces and delta.text:
                delta.text = self._without_spaces(delta.text)
                if not (delta.text or delta.tool_calls or delta.finish_reason):
                    continue
            if delta.text:
                self._text.append(delta.text)
            if delta.reasoning or delta.tool_calls or delta.opaque is not None or delta.refusal:
                self._is_plain = False
            self._has_finished = self._has_finished or delta.finish_reason is not None
            return delta

    def bill(self) -> Bill:
        """See `Generation.bill`."""
        bill = super().bill()
        return msgspec.structs.replace(bill, usage=self._whole(bill.usage)) if self._cut else bill

    async def _take_over(self, error: Exception) -> None:
        """See `Generation._take_over`: after the first token, go on where that is possible."""
        # A request that has ended several cores is probably the cause.
        is_final = (
            isinstance(error, TierAnswerTooLongError | InvalidAnswerError) or self._attempt.requests[0].sent.read_again
        )
        if self._let_go and self._is_plain and not is_final and len(self._cut) < MOST_CONTINUATIONS:
            try:
                if await self._goes_on(error):
                    return
            except Exception as final:
                error = final
        try:
            await super()._take_over(error)
        finally:
            # See `Generation._take_over`.
            del error

    async def _goes_on(self, error: Exception) -> bool:
        """Go on with another attempt after `error`, or end what was complete. Returns False if nothing can."""
        attempt, text = self._attempt, "".join(self._text)
        used = attempt.usage or attempt.used_so_far(error)
        asking = self._rest(text, sum(cut.completion_tokens for cut in self._cut), used.completion_tokens)
        if asking is None:
            await attempt.deltas.aclose()
            attempt.usage, attempt.deltas = used, _ended(used, has_finished=self._has_finished)
            return True
        self._asking = asking
        if isinstance(error, TierContextError):
            self._lengths.note(error, self.tier, attempt.spec)
        await attempt.deltas.aclose()
        attempt.usage = attempt.usage or attempt.used_so_far(error)
        await self._make_room()
        # A server that took the request may have lost the connection alone.
        has_tried = len(text) == self._begun_at and isinstance(error, TierUnavailableError | TierRequestError)
        tier = self.tier if not has_tried and self._takes(self.tier) else await self._stand_in(is_refused=True)
        if tier is None and has_tried and not isinstance(error, TierRequestError) and self._takes(self.tier):
            tier = self.tier
        if tier is None:
            return False
        self._close_attempt("error", error)
        self._cut.append(attempt.usage or used)
        self._note_fallback(f"{named(self.tier)} broke off ({type(error).__name__}), {named(tier)} went on")
        log.warning("request %s: %s", self.request.request_id, self.fell_over)
        self._go_on_with(tier)
        self._begun_at, self._spaces = len(text), text[len(text.rstrip()) :]
        return True

    def _begun(self, tier: Tier, n: int, *, judged: bool = False) -> TierAttempt:
        """See `Generation._begun`: one that may outlive its core."""
        may = partial(_may_read, self._admission, self.request.caller, self._routing.served.spec_of(tier).price)
        self._asking = self._asking.with_generation(resumes=may)
        return super()._begun(tier, n, judged=judged)

    def _rest(self, text: str, before: int, now: int) -> InferenceRequest | None:
        """Return the request for what follows `text`, of so many tokens `before` this attempt and by it; None if the
        answer is complete."""
        asked, request, drawn = self.request.generation, self.request.without_credential(), before + now
        if (limits := request.limits) is not None:
            name, most = self._attempt.spec.name, self._attempt.most
            limits = limits.after(drawn)
            if most is not None and name in limits.tokens:
                if now >= most.choice:
                    return None
                limits = limits.with_limit(name, most.choice - now)
            request = msgspec.structs.replace(request, limits=limits)
        limit = asked.max_tokens
        if limit is not None:
            limit = max(1, limit - drawn) if request.usual_max_tokens else limit - drawn
        if self._has_finished or (limit is not None and limit <= 0):
            return None
        changes: dict[str, Any] = {"max_tokens": limit, "prompts_read": {}}
        if least := asked.sampling.min_tokens:
            changes["sampling"] = msgspec.structs.replace(asked.sampling, min_tokens=max(0, least - drawn))
        # Servers refuse spaces at the end of a turn, or drop them; they come again with what follows.
        if beginning := text.rstrip():
            if asked.messages is None:
                request = msgspec.structs.replace(request, prompts=[f"{(request.prompts or [''])[0]}{beginning}"])
            else:
                turn = Turn.of("assistant", beginning)
                changes |= {"messages": [*asked.messages, turn], "continues": True}
        return request.with_generation(**changes)

    def _fits(self, tier: Tier) -> bool:
        """See `Generation._fits`; and whether `tier` can go on."""
        return super()._fits(tier) and (tier.continues_chats or not self._asking.generation.continues)

    def _whole(self, usage: Usage) -> Usage:
        """Return the usage of the answer whose last attempt has used `usage`: the caller's prompt, and all tokens."""
        every = [*self._cut, usage]
        first = next((spent for spent in every if spent.completion_tokens), usage)
        return msgspec.structs.replace(
            first,
            completion_tokens=sum(spent.completion_tokens for spent in every),
            reasoning_tokens=sum(spent.reasoning_tokens for spent in every),
            cost_usd=0.0,
        )

    def _without_spaces(self, text: str) -> str:
        """Return `text` without the spaces at the seam that were passed on already."""
        same = sum(takewhile(bool, map(eq, self._spaces, text)))
        self._spaces = self._spaces[same:] if same == len(text) else ""
        return text[same:]

    def _recorded(self, status: AttemptStatus, error: Exception | None) -> Attempt:
        made = super()._recorded(status, error)
        return msgspec.structs.replace(made, continued_at=self._begun_at) if self._cut else made


async def _may_read(admission: Admission, caller: Caller, price: Price, tokens: int) -> bool:
    """Hold what it costs to read so many tokens again; returns whether the budget covers it."""
    usd = most_cost_usd(price, tokens, 0)
    await admission.make_room(caller, usd)
    return admission.affords(usd)


async def _ended(usage: Usage, *, has_finished: bool) -> AsyncGenerator[Delta, None]:
    """The end of an answer of which all tokens have come."""
    if not has_finished:
        yield Delta(finish_reason="length")
    yield Delta(end=AnswerEnd(usage=usage))
