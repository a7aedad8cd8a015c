"""Of the choices drawn for a prompt those with the highest mean log-probability, as OpenAI's `best_of` has it."""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tiers.attempt import ReplicaTry
from tiers.tier import Delta


async def best_of(drawn: AsyncGenerator[Delta, None], count: int, keep: int) -> AsyncGenerator[Delta, None]:
    """The best `keep` of the `count` choices that `drawn` brings, best first, once all have ended; then the usage.

    The mean is over an answer's own tokens, a repeated prompt's are not among them; of equals the earlier choice goes
    first. Choices without tokens, or whose tier says nothing of their log-probabilities, come last.
    """
    choices = [_Drawn() for _ in range(count)]
    tries: list[ReplicaTry] = []
    async with aclosing(drawn) as deltas:
        async for delta in deltas:
            if delta.end is None:
                tries, delta.tries = tries + delta.tries, []
                choices[delta.index].add(delta)
                continue
            ranked = sorted(choices, key=lambda choice: choice.mean_logprob(), reverse=True)
            for index, choice in enumerate(ranked[:keep]):
                for said in choice.deltas(index):
                    yield said
            delta.tries = tries
            yield delta


class _Drawn:
    """All that one choice said, and how likely it was."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._logprobs: list[float] = []

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if delta.logprobs and not delta.echo:
            self._logprobs += [one.logprob for one in delta.logprobs if one.logprob is not None]

    def mean_logprob(self) -> float:
        return sum(self._logprobs) / len(self._logprobs) if self._logprobs else -math.inf

    def deltas(self, index: int) -> list[Delta]:
        for delta in self._deltas:
            delta.index = index
        return self._deltas
