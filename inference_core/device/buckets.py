"""Batch sizes that are captured as CUDA graphs; other small steps are padded to one of them (SPEC AT-08)."""

from bisect import bisect_left
from dataclasses import dataclass

LONGEST_QUERY = 16


@dataclass(slots=True, frozen=True)
class DecodeBuckets:
    """`sizes`: numbers of tokens, ascending. A step is replayed if each of its sequences computes at most
    `LONGEST_QUERY` tokens: decodes with their drafts."""

    sizes: tuple[int, ...]

    @classmethod
    def up_to(cls, most: int) -> "DecodeBuckets":
        """1, 2, 4, then multiples of 8 up to 256 and of 16 beyond, and `most` itself.

        From 64 tokens on, less than an eighth of a step is padding.
        """
        sizes = {1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16), most}
        return cls(tuple(sorted(size for size in sizes if size <= most)))

    def padded(self, tokens: int) -> int | None:
        """The smallest bucket for `tokens`; None if there are more than the largest."""
        place = bisect_left(self.sizes, tokens)
        return self.sizes[place] if place < len(self.sizes) else None
