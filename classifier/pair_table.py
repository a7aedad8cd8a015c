"""Which row a pair of word ids has: a sparse matrix kept as one dense array, so that a look-up is two gathers."""

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.intp]

_ROW_BITS = 32
_EMPTY = -1
# Places tried at once for a word's pairs.
_CANDIDATES = np.arange(256)


class PairTable:
    """Row displacement: every first word has its own offset at which its second words meet no other word's.

    A slot holds its first word beside the row, which tells a pair from another one that would lie there. Tarjan and
    Yao, "Storing a sparse table", 1979. A binary search in as many pairs costs several times as much.
    """

    def __init__(self, pairs: npt.NDArray[np.int32], words: int, first_row: int) -> None:
        """`pairs` int32 [P, 2] of ids below `words`, in ascending order of (first, second); pair p has row
        `first_row + p`."""
        firsts, starts, counts = np.unique(pairs[:, 0], return_index=True, return_counts=True)
        slots = words + len(pairs) + len(_CANDIDATES)
        self._entries = np.full(slots, _EMPTY, np.int64)
        # Ids from `words` on are no word: their offset leads to the end of the table, which stays empty.
        self._offsets = np.full(words + 1, slots, np.intp)
        # Longest rows first, while there is room for them.
        for place in np.argsort(-counts, kind="stable").tolist():
            first, start, end = int(firsts[place]), int(starts[place]), int(starts[place] + counts[place])
            seconds = pairs[start:end, 1].astype(np.intp)
            offset = self._free_offset(seconds)
            entries = (first << _ROW_BITS) + first_row + np.arange(start, end)
            self._entries[seconds + offset] = entries
            self._offsets[first] = offset
        used = int(np.flatnonzero(self._entries != _EMPTY)[-1]) + 1 if len(pairs) else 0
        self._entries = self._entries[: used + 1].copy()

    def rows(self, firsts: Ids, seconds: Ids, missing: int) -> Ids:
        """The row of every pair, `missing` where there is none. Ids beyond the words are allowed, negative ones not."""
        entries = self._entries.take(self._offsets.take(firsts, mode="clip") + seconds, mode="clip")
        # What remains of an entry of another first word, or of an empty slot, is at least 2**32 as an unsigned number.
        entries -= firsts << _ROW_BITS
        return np.minimum(entries.view(np.uint64), np.uint64(missing)).view(np.intp)

    def _free_offset(self, seconds: Ids) -> int:
        """The least offset at which all slots are empty; the table grows until there is one."""
        base = 0
        while True:
            places = seconds[:, None] + (base + _CANDIDATES)
            if (short := int(places[-1, -1]) + 1 - len(self._entries)) > 0:
                self._entries = np.concatenate((self._entries, np.full(short, _EMPTY, np.int64)))
            free = (self._entries[places] == _EMPTY).all(axis=0)
            if free.any():
                return base + int(free.argmax())
            base += len(_CANDIDATES)
