"""A Flight: a generation under way that everybody reads who asks for the same meanwhile, each by a FlightReader."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from classifier.decision import Decision
from gateway.answering.bill import Bill
from gateway.answering.generation import Generation
from quality.record import Attempt, CacheUse
from tiers.errors import TierRequestError
from tiers.tier import Delta, Tier


class Flight:
    """Runs `generation` on for as long as anybody reads it; late readers get everything from its beginning.

    In a task of its own from the first step, before anybody has joined: a step under way cannot change its task, and
    who awaits it himself takes it along when he leaves.

    Its whole bill goes to one reader: of those who have not left before the end, the one who is there longest. `whole`:
    it ended by itself, and well. `ended` is called at the end, before any reader hears of it; what it returns is
    awaited after.
    """

    def __init__(self, generation: Generation, ended: "Callable[[Flight], Awaitable[None] | None]") -> None:
        self.generation = generation
        self.attempted = generation.attempted
        self.deltas: list[Delta] = []
        self.over = self.whole = False
        self.error: Exception | None = None
        self._ended = ended
        self._readers: list[FlightReader] = []
        self._billed = False
        self._waiting: list[asyncio.Future[None]] = []
        self._task = asyncio.create_task(self._run())

    @property
    def abandoned(self) -> bool:
        """Whether everybody left before the end."""
        return not self._readers and not self.over

    def news(self) -> asyncio.Future[None]:
        """To wait for the next delta, or the end. Each reader has one of his own: who leaves cancels his."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting

    def board(self, reader: "FlightReader") -> None:
        """`reader` reads from now on."""
        self._readers.append(reader)

    def leave(self, reader: "FlightReader") -> bool:
        """`reader` reads no more; whether the bill is his. When the last one leaves before the end, all work stops."""
        pays = not self._billed and self._readers[0] is reader and (self.over or len(self._readers) == 1)
        self._billed = self._billed or pays
        self._readers.remove(reader)
        if self.abandoned:
            self._task.cancel()
        return pays

    def is_first(self, reader: "FlightReader") -> bool:
        """Whether `reader` is the one who would pay if it ended now."""
        return self._readers[0] is reader and not self._billed

    async def stopped(self) -> None:
        """After `abandoned`: wait until the tier's work is freed."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async for delta in self.generation:
                if self.generation.attempted != self.attempted:
                    self.attempted, self.deltas = self.generation.attempted, []
                self.deltas.append(delta)
                self._tell()
            self.whole = True
        except Exception as error:
            self.error = error
        finally:
            await self.generation.aclose()
            self.over = True
            after = self._ended(self)
            self._tell()
        if after is not None:
            await after

    def _tell(self) -> None:
        if not self._waiting:
            return
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


class FlightReader:
    """Source of an answer that is being made, for its first reader or for another one.

    `another`: for one who came later, the flight to go on with, once, if the generation fails before he has let go of
    anything.
    """

    def __init__(
        self, flight: Flight, decision: Decision, *, stream: bool, another: Callable[[], Flight] | None = None
    ) -> None:
        self._decision = decision
        self._stream, self._another = stream, another
        # Of a flight that failed after whoever began it had left.
        self._owed: list[Attempt] = []
        self._bill: Bill | None = None
        self._board(flight)

    def _board(self, flight: Flight) -> None:
        self._flight, self._place = flight, 0
        self.attempted = flight.attempted
        flight.board(self)

    @property
    def decision(self) -> Decision:
        """The reader's own, unless the fast path failed and the ordinary route took its place."""
        generation = self._flight.generation
        return generation.decision if generation.rerouted else self._decision

    @property
    def tier(self) -> Tier:
        """See `Source`."""
        return self._flight.generation.tier

    @property
    def attempts(self) -> list[Attempt]:
        """See `Source`."""
        return self._flight.generation.attempts

    @property
    def p_ok(self) -> float:
        """See `Source`."""
        return self._flight.generation.p_ok

    @property
    def cached(self) -> CacheUse | None:
        """A miss for the one who pays, also where that is one who came later."""
        pays = self._flight.is_first(self) if self._bill is None else self._bill.paid
        return "miss" if pays else "shared"

    async def __anext__(self) -> Delta:
        while self._bill is None:
            flight = self._flight
            if flight.attempted != self.attempted:
                self.attempted, self._place = flight.attempted, 0
            if self._place < len(flight.deltas):
                self._place += 1
                return flight.deltas[self._place - 1]
            if not flight.over:
                await flight.news()
            elif flight.error is None:
                self._leave()
            elif self._may_move(flight.error):
                self._move()
            else:
                raise flight.error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop reading; the last one who does frees the tier's work within one step."""
        self._leave()
        if self._flight.abandoned:
            await self._flight.stopped()

    def bill(self) -> Bill:
        """See `Source`."""
        assert self._bill is not None
        # Anew for who pays: what was stopped by his leaving is on it only now.
        bill = self._flight.generation.bill() if self._bill.paid else self._bill
        return msgspec.structs.replace(bill, attempts=self._owed + bill.attempts)

    def _may_move(self, error: Exception) -> bool:
        begun = self._stream and self._place > 0
        return not (self._another is None or begun or isinstance(error, TierRequestError))

    def _move(self) -> None:
        another, self._another = self._another, None
        assert another is not None
        if self._flight.leave(self):
            self._owed = self._flight.generation.bill().attempts
        self._board(another())

    def _leave(self) -> None:
        if self._bill is None:
            pays = self._flight.leave(self)
            bill = self._flight.generation.bill()
            self._bill = bill if pays else bill.unpaid()
