"""The token masks of one step, computed in the processes of the grammars while the model computes the logits."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_core.step_plan import Matcher, SampleSpec


class TokenMask(NamedTuple):
    """What one draw may be: `ids`, ascending, are the only tokens allowed, or, unless `only`, the ones forbidden.

    Grammars allow a handful of tokens or forbid a minority, so either way it is little to write.
    """

    ids: npt.NDArray[np.intp]
    only: bool

    @classmethod
    def of_bytes(cls, mask: bytes) -> "TokenMask":
        """From a matcher's mask."""
        return _unpacked(mask)

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
def _unpacked(mask: bytes) -> TokenMask:
    """Within a string, a number or white space the same few masks come again and again."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").view(np.bool_)
    if 2 * np.count_nonzero(bits) < len(bits):
        return TokenMask(np.flatnonzero(bits), True)
    return TokenMask(np.flatnonzero(~bits), False)


class TokenMasks:
    """Masks of the rows of logits that belong to sequences with a grammar; asked for when made, needed at the draw."""

    def __init__(self, work: list[tuple[int, Matcher, Sequence[int]]]) -> None:
        """`work`: the first row of a sequence, its matcher, and the tokens drafted for it, a row more each."""
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
