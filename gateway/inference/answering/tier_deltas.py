"""What a tier says to one or several prompts of a request, as one closable stream of deltas."""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from tiers.attempt import ReplicaTry
from tiers.merge_streams import merged_answers
from tiers.tier import Delta, GenerationRequest, Tier


def tier_deltas(tier: Tier, requests: list[GenerationRequest], n: int) -> AsyncGenerator[Delta, None]:
    """Deltas of all `requests` as they come; choice `j` of request `i` has index `i * n + j`, usage is the sum.

    A request for more than `n` choices gives the best `n` of them. The first error ends everything. Closing the
    generator closes every request within one step of its engine.
    """
    if len(requests) == 1:
        return _one(tier, requests[0], n)
    return merged_answers([_one(tier, request, n) for request in requests], n)


def _one(tier: Tier, request: GenerationRequest, n: int) -> AsyncGenerator[Delta, None]:
    # Contract of `Tier`: the iterator can be closed early, so it is a generator.
    drawn = cast(AsyncGenerator[Delta, None], tier.generate(request))
    return _best_of(drawn, request.n, n) if request.n > n else drawn


async def _best_of(drawn: AsyncGenerator[Delta, None], count: int, keep: int) -> AsyncGenerator[Delta, None]:
    """The best `keep` of the `count` choices that `drawn` brings by mean log-probability, as OpenAI's `best_of` has it:
    best first, once all have ended; then the usage.

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
