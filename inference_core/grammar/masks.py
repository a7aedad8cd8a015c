"""The token masks of one step, computed on threads of their own while the model computes the logits."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_core.grammar.matcher_seam import Matcher
from inference_core.step_plan import SampleSpec

Words = npt.NDArray[np.uint32]


class TokenMask(NamedTuple):
    """What one draw may be: `ids`, ascending, are the only tokens allowed, or, unless `only`, the ones forbidden.

    Grammars allow a handful of tokens or forbid a minority, so either way it is little to write.
    """

    ids: npt.NDArray[np.intp]
    only: bool

    @classmethod
    def of_words(cls, words: Words) -> "TokenMask":
        """From 32-bit words: bit `i % 32` of word `i // 32` is set if token `i` is allowed."""
        return _unpacked(words.tobytes())

    def apply(self, row: npt.NDArray[np.float32]) -> None:
        """Set what is forbidden in a row of logits [vocabulary] to -inf."""
        ids = self.ids[: np.searchsorted(self.ids, len(row))]
        if not self.only:
            row[ids] = -np.inf
            return
        kept = row[ids]
        row.fill(-np.inf)
        row[ids] = kept


@lru_cache(64)
def _unpacked(words: bytes) -> TokenMask:
    """Within a string, a number or white space the same few masks come again and again."""
    bits = np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little").view(np.bool_)
    if 2 * np.count_nonzero(bits) < len(bits):
        return TokenMask(np.flatnonzero(bits), True)
    return TokenMask(np.flatnonzero(~bits), False)


class TokenMasks:
    """Masks of the rows of logits that belong to sequences with a grammar; begun when made, needed at the draw."""

    def __init__(self, work: list[tuple[int, Matcher, Sequence[int]]]) -> None:
        """`work`: the first row of a sequence, its matcher, and the tokens drafted for it, a row more each."""
        self._masks: dict[int, TokenMask] = {}
        pool, threads = _pool(), _num_threads()
        self._filling: list[Future[None]] = [
            pool.submit(self._fill, work[first::threads]) for first in range(min(threads, len(work)))
        ]

    def wait(self) -> dict[int, TokenMask]:
        """The masks by row."""
        for filling in self._filling:
            filling.result()
        return self._masks

    def _fill(self, work: list[tuple[int, Matcher, Sequence[int]]]) -> None:
        for first, matcher, drafts in work:
            words = np.zeros((len(drafts) + 1, matcher.num_words), np.uint32)
            matcher.fill(words, drafts)
            for place, row in enumerate(words):
                self._masks[first + place] = TokenMask.of_words(row)


def begin_masks(specs: Sequence[SampleSpec], drafts: Sequence[Sequence[int]] | None = None) -> TokenMasks | None:
    """The masks of a step that draws under `specs`; None if none of them has a grammar.

    `drafts`: per spec the proposed tokens; it has a row of logits for each of them and one more. None: no proposals.
    """
    work: list[tuple[int, Matcher, Sequence[int]]] = []
    row = 0
    for place, spec in enumerate(specs):
        proposed = () if drafts is None else drafts[place]
        if spec.matcher is not None:
            work.append((row, spec.matcher, proposed))
        row += 1 + len(proposed)
    return TokenMasks(work) if work else None


def _num_threads() -> int:
    """Few: the model's own threads want the processors at the same time."""
    return max(1, min(4, (os.cpu_count() or 1) // 4))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_num_threads(), thread_name_prefix="aio-masks")
