"""A generation that several equal requests read at the same time, each through a reader of its own; and a kept answer:
the deltas of one that ended well, as plain data, and its replay for later requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from classifier.decision import Decision
from gateway.inference.answer import Bill
from gateway.inference.generation import Generation
from quality.records.record import Attempt, CacheUse
from tiers.errors import TierRequestError
from tiers.tier import AnswerEnd, Delta, Restarted, Tier, Usage

# A replay never waits by itself: a long one yields to the event loop now and then.
DELTAS_AT_ONCE = 64


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tier said."""

    tier: int
    p_ok: float
    attempts: list[Attempt]
    usage: Usage
    """The usage at the end."""
    pieces: list[Delta]
    """The pieces of its choices."""
    answered_by: str = msgspec.field(default="", name="maker")
    """See `AnswerEnd.answered_by`."""


def kept_answer(generation: Generation, deltas: Iterable[Delta]) -> KeptAnswer:
    """The part of a finished generation that is replayed: the words, not how they were computed."""
    bill = generation.bill()
    return KeptAnswer(
        tier=generation.tier.number,
        p_ok=generation.p_ok,
        attempts=[msgspec.structs.replace(attempt, replicas=[]) for attempt in bill.unpaid().attempts],
        usage=bill.usage,
        pieces=[_words(delta) for delta in deltas if delta.end is None],
        answered_by=next((delta.end.answered_by for delta in deltas if delta.end is not None), ""),
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
        opaque=delta.opaque,
        refusal=delta.refusal,
        annotations=delta.annotations,
    )


class Replay:
    """Source of an answer that is `kept`; nothing is computed, and its reader owes nothing."""

    # No server gets the request.
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    limit: int | None = None

    def __init__(self, kept: KeptAnswer, decision: Decision, tier: Tier, cached: CacheUse) -> None:
        self.decision, self.tier, self.cached = decision, tier, cached
        self.attempts, self.p_ok = kept.attempts, kept.p_ok
        self._usage = kept.usage
        end = Delta(end=AnswerEnd(usage=kept.usage, answered_by=kept.answered_by))
        self._deltas = enumerate((*kept.pieces, end), start=1)

    async def __anext__(self) -> Delta:
        numbered = next(self._deltas, None)
        if numbered is None:
            raise StopAsyncIteration
        index, delta = numbered
        if index % DELTAS_AT_ONCE == 0:
            await asyncio.sleep(0)
        return delta

    async def aclose(self) -> None:
        """See `AnswerSource`: there is nothing to stop."""

    def unsettled(self) -> list[asyncio.Task[None]]:
        """See `AnswerSource`: there is nothing to charge."""
        return []

    def bill(self) -> Bill:
        return Bill(attempts=self.attempts, usage=self._usage, paid=False)


class SharedGeneration:
    """Runs `generation` while it has readers; late readers get all `deltas` from the beginning of its attempt, which
    `restarted` says.

    It runs in a separate task from the first step: a step cannot move to another task, and a reader that awaited it
    directly would cancel it on leaving.

    The whole bill goes to one reader, the `payer`. `whole`: it ended without an error. `ended` is called at the end,
    before the readers are woken; what it returns is awaited after that.
    """

    def __init__(self, generation: Generation, ended: "Callable[[SharedGeneration], Awaitable[None] | None]") -> None:
        self.generation = generation
        self.restarted = Restarted(time.monotonic())
        self.deltas: list[Delta] = []
        self.over = self.whole = False
        self.error: Exception | None = None
        self._ended = ended
        self._readers: list[SharedGenerationReader] = []
        self._payer: SharedGenerationReader | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._task = asyncio.create_task(self._run())

    @property
    def abandoned(self) -> bool:
        """Whether everybody left before the end."""
        return not self._readers and not self.over

    def next_delta(self) -> asyncio.Future[None]:
        """A future of the next delta or the end. Each reader has its own, because leaving cancels it."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting

    def join(self, reader: "SharedGenerationReader") -> None:
        """`reader` reads from now on."""
        self._readers.append(reader)

    def leave(self, reader: "SharedGenerationReader") -> None:
        """`reader` reads no more. When the last one leaves before the end, all work stops."""
        self._readers.remove(reader)
        if self.abandoned:
            self._settle_on(reader)
            self._task.cancel()

    @property
    def payer(self) -> "SharedGenerationReader":
        """The one reader that is billed: of those there at the end the earliest, or the last to leave before it.

        Before the end it is who would pay now. After the end, and once it is abandoned, it never changes.
        """
        return self._payer or self._readers[0]

    async def stopped(self) -> None:
        """After `abandoned`: wait until the tier's work is freed."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async for event in self.generation:
                if isinstance(event, Restarted):
                    self._restart(event)
                else:
                    self.deltas.append(event)
                self._wake_readers()
            self.whole = True
        except Exception as error:
            self.error = error
        finally:
            try:
                await self.generation.aclose()
            finally:
                self._settle_on(self.payer)
                self.over = True
                after = self._ended(self)
                self._wake_readers()
        if after is not None:
            await after

    def _restart(self, restarted: Restarted) -> None:
        self.restarted, self.deltas = restarted, []
        for reader in self._readers:
            reader.restart(restarted)

    def _settle_on(self, payer: "SharedGenerationReader") -> None:
        if self._payer is None:
            self._payer = payer

    def _wake_readers(self) -> None:
        if not self._waiting:
            return
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


class SharedGenerationReader:
    """Reads a shared generation as the source of one answer.

    `another`: gives a later reader a second generation, once, if the first fails before any of it was passed on.
    """

    def __init__(
        self,
        shared: SharedGeneration,
        decision: Decision,
        *,
        stream: bool,
        another: Callable[[], SharedGeneration] | None = None,
    ) -> None:
        self._decision = decision
        self._stream, self._another = stream, another
        # Those that failed and were left for another one, and the one that is read now.
        self._generations: list[SharedGeneration] = []
        self._left = False
        self._join(shared)

    def _join(self, shared: SharedGeneration) -> None:
        self._generations.append(shared)
        self.restart(shared.restarted)
        shared.join(self)

    def restart(self, restarted: Restarted) -> None:
        """Read the deltas of the generation from the first one, after `restarted`."""
        self._restarted: Restarted | None = restarted
        self._place = 0

    @property
    def _current(self) -> SharedGeneration:
        return self._generations[-1]

    @property
    def decision(self) -> Decision:
        """The reader's own, unless the fast path failed and the ordinary route took its place; it says what failed."""
        generation = self._current.generation
        return generation.decision if generation.rerouted else generation.told(self._decision)

    @property
    def tier(self) -> Tier:
        return self._current.generation.tier

    @property
    def attempts(self) -> list[Attempt]:
        return self._current.generation.attempts

    @property
    def p_ok(self) -> float:
        return self._current.generation.p_ok

    @property
    def dropped(self) -> tuple[str, ...]:
        return self._current.generation.dropped

    @property
    def changed(self) -> tuple[str, ...]:
        return self._current.generation.changed

    @property
    def limit(self) -> int | None:
        return self._current.generation.limit

    @property
    def cached(self) -> CacheUse | None:
        """A miss for the payer of any of its generations, also of one that failed before the one that it shares."""
        return "miss" if any(shared.payer is self for shared in self._generations) else "shared"

    async def __anext__(self) -> Delta | Restarted:
        while not self._left:
            shared = self._current
            if (restarted := self._restarted) is not None:
                self._restarted = None
                return restarted
            if self._place < len(shared.deltas):
                self._place += 1
                return shared.deltas[self._place - 1]
            if not shared.over:
                await shared.next_delta()
            elif shared.error is None:
                self._leave()
            elif self._may_move(shared.error):
                self._move()
            else:
                raise shared.error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop reading; the last one who does frees the tier's work within one step."""
        self._leave()
        if self._current.abandoned:
            await self._current.stopped()

    def unsettled(self) -> list[asyncio.Task[None]]:
        """See `AnswerSource`."""
        paid = [shared.generation for shared in self._generations if shared.payer is self]
        return [task for generation in paid for task in generation.unsettled()]

    def bill(self) -> Bill:
        *failed, last = self._generations
        owed = [attempt for shared in failed if shared.payer is self for attempt in shared.generation.bill().attempts]
        bill = last.generation.bill()
        if last.payer is not self:
            bill = bill.unpaid()
        return msgspec.structs.replace(bill, attempts=owed + bill.attempts)

    def _may_move(self, error: Exception) -> bool:
        started = self._stream and self._place > 0
        return not (self._another is None or started or isinstance(error, TierRequestError))

    def _move(self) -> None:
        another, self._another = self._another, None
        assert another is not None
        self._join(another())

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._current.leave(self)
