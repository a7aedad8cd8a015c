"""How the answers of several tiers become one: they are made at once, until it is known which is sent."""

import asyncio
from collections.abc import Callable

from gateway.inference.answering.agreement import AgreementStage, Verdict
from gateway.inference.answering.side_answer import SideAnswer, one_more_over
from quality.records.record import Attempt
from tiers.tier import Usage


class Comparison:
    """`run` it once, and always `aclose` it; then `chosen` is the answer that is sent. If it is None, the higher tier
    answers, or, without a `verdict`, the caller has left."""

    def __init__(
        self, stage: AgreementStage, ask: Callable[[int], SideAnswer], higher_may_answer: Callable[[], bool]
    ) -> None:
        """`ask` starts the answer of a tier by its number."""
        self.stage = stage
        self.chosen: SideAnswer | None = None
        self.verdict: Verdict | None = None
        self._ask, self._higher_may_answer = ask, higher_may_answer
        self._sides: dict[int, SideAnswer] = {}
        self._attempts: dict[int, Attempt] = {}

    async def run(self, first: int) -> None:
        """Ask all tiers at once if what is compared is known, else `first` before the others."""
        stage, sides = self.stage, self._sides
        if stage.kind is None:
            sides[first] = self._ask(first)
            await sides[first].wait()
            if not stage.is_worth_it(sides[first]):
                self.chosen = sides[first]
                return
        sides.update((number, self._ask(number)) for number in stage.group.tiers if number not in sides)
        while (verdict := stage.verdict(sides)) is None:
            await one_more_over(sides.values())
        if verdict.sent is not None:
            self.chosen = sides[verdict.sent]
        elif not self._higher_may_answer():
            # What is being made is all that there will be.
            await asyncio.gather(*(side.wait() for side in sides.values()))
            self.chosen = self._best()
            verdict = verdict._replace(reason=f"{verdict.reason}, but it may not answer now")
        self.verdict = verdict

    async def aclose(self) -> None:
        """Stop the answers that are still being made: their tiers' work is freed within one step."""
        await asyncio.gather(*(side.aclose() for side in self._sides.values()))

    def attempts(self) -> list[Attempt]:
        """Return the attempts of the answers that are not sent."""
        verdict = self.verdict
        agreed, reason = ((), None) if verdict is None else (verdict.agreed, verdict.reason)
        self._attempts = {
            number: side.attempt(self.stage.compared_as, "agreed" if number in agreed else "differed", reason)
            for number, side in self._sides.items()
            if side is not self.chosen
        }
        return list(self._attempts.values())

    @property
    def usage(self) -> Usage:
        """What all answers used."""
        return Usage.total(side.usage for side in self._sides.values())

    @property
    def spare(self) -> tuple[SideAnswer, Attempt] | None:
        """The best answer that is not sent, and its attempt; None where none is whole."""
        best = self._best()
        return None if best is None or best is self.chosen else (best, self._attempts[best.tier.number])

    def _best(self) -> SideAnswer | None:
        """The whole answer that is best by the decision: all are paid."""
        p_ok, whole = self.stage.p_ok, [side for side in self._sides.values() if side.ended]
        return max(whole, key=lambda side: (p_ok[side.tier.number - 1], side.tier.number), default=None)
