"""A kept answer: the deltas of one that ended well, as plain data, and its replay for later requests."""

import asyncio
import time
from collections.abc import Iterable

import msgspec

from classifier.decision import Decision
from gateway.inference.answering.bill import Bill
from gateway.inference.answering.generation import Generation
from quality.records.record import Attempt, CacheUse
from tiers.tier import AnswerEnd, Delta, Tier, Usage

# A replay never waits by itself: a long one yields to the event loop now and then.
DELTAS_AT_ONCE = 64


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `tier` said: the `pieces` of its choices, and the `usage` at the end. `maker`: as `AnswerEnd.maker`."""

    tier: int
    p_ok: float
    attempts: list[Attempt]
    usage: Usage
    pieces: list[Delta]
    maker: str = ""


def kept_answer(generation: Generation, deltas: Iterable[Delta]) -> KeptAnswer:
    """The part of a finished generation that is replayed: the words, not how they were computed."""
    bill = generation.bill()
    return KeptAnswer(
        tier=generation.tier.number,
        p_ok=generation.p_ok,
        attempts=[msgspec.structs.replace(attempt, replicas=[]) for attempt in bill.unpaid().attempts],
        usage=bill.usage,
        pieces=[_words(delta) for delta in deltas if delta.end is None],
        maker=next((delta.end.maker for delta in deltas if delta.end is not None), ""),
    )


def _words(delta: Delta) -> Delta:
    return Delta(
        index=delta.index,
        text=delta.text,
        reasoning=delta.reasoning,
        logprobs=delta.logprobs,
        tool_calls=delta.tool_calls,
        finish_reason=delta.finish_reason,
        stop_sequence=delta.stop_sequence,
        echo=delta.echo,
        native=delta.native,
        refusal=delta.refusal,
        annotations=delta.annotations,
    )


class Replay:
    """Source of an answer that is `kept`; nothing is computed, and its reader owes nothing."""

    # No server gets the request.
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __init__(self, kept: KeptAnswer, decision: Decision, tier: Tier, cached: CacheUse) -> None:
        self.decision, self.tier, self.cached = decision, tier, cached
        self.attempted = time.monotonic()
        self.attempts, self.p_ok = kept.attempts, kept.p_ok
        self._usage = kept.usage
        end = Delta(end=AnswerEnd(usage=kept.usage, maker=kept.maker))
        self._deltas = enumerate((*kept.pieces, end), start=1)

    async def __anext__(self) -> Delta:
        found = next(self._deltas, None)
        if found is None:
            raise StopAsyncIteration
        place, delta = found
        if place % DELTAS_AT_ONCE == 0:
            await asyncio.sleep(0)
        return delta

    async def aclose(self) -> None:
        """See `AnswerSource`: there is nothing to stop."""

    def bill(self) -> Bill:
        """See `AnswerSource`."""
        return Bill(attempts=self.attempts, usage=self._usage, paid=False)
