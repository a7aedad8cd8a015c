"""The token masks of one step, computed in the processes of the grammars while the model computes the logits."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_core.step_plan import Matcher, SampleSpec


class TokenMask(NamedTuple):
    """The mask of one draw: ascending `ids` are the only tokens allowed, or, unless `only`, the ones forbidden.

    Grammars usually allow few tokens or forbid few, so either list is short.
    """

    ids: npt.NDArray[np.intp]
    only: bool

    @classmethod
    def of_bytes(cls, mask: bytes) -> "TokenMask":
        """From a matcher's mask."""
        return _unpacked(mask)

    def apply(self, row: npt.NDArray[np.float32]) -> None:
        """Set the forbidden tokens of a row of logits [vocabulary] to -inf."""
        ids = self.ids[: np.searchsorted(self.ids, len(row))]
        if not self.only:
            row[ids] = -np.inf
            return
        kept = row[ids]
        row.fill(-np.inf)
        row[ids] = kept


@lru_cache(64)
def _unpacked(mask: bytes) -> TokenMask:
    """Cached, since the same few masks repeat within a string, a number or white space."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").view(np.bool_)
    if 2 * np.count_nonzero(bits) < len(bits):
        return TokenMask(np.flatnonzero(bits), True)
    return TokenMask(np.flatnonzero(~bits), False)


class TokenMasks:
    """Masks of the rows of sequences with a grammar; the constructor requests them, `wait` returns them."""

    def __init__(self, work: list[tuple[int, Matcher, Sequence[int]]]) -> None:
        """`work`: per sequence its first row, its matcher, and its drafted tokens, each of which has one more row."""
        self._work = work
        for _, matcher, drafts in work:
            matcher.ask_masks(drafts)
        for _, matcher, _ in work:
            matcher.send()

    def wait(self) -> dict[int, TokenMask]:
        """The masks by row."""
        return {
            first + place: TokenMask.of_bytes(mask)
            for first, matcher, _ in self._work
            for place, mask in enumerate(matcher.masks())
        }


def begin_masks(specs: Sequence[SampleSpec], drafts: Sequence[Sequence[int]] | None = None) -> TokenMasks | None:
    """Request the masks of a step's draws; None if no spec has a grammar.

    `drafts`: per spec its drafted tokens; it has a row of logits for each and one more. None: no drafts.
    """
    work: list[tuple[int, Matcher, Sequence[int]]] = []
    row = 0
    for place, spec in enumerate(specs):
        proposed = () if drafts is None else drafts[place]
        if spec.matcher is not None:
            work.append((row, spec.matcher, proposed))
        row += 1 + len(proposed)
    return TokenMasks(work) if work else None
