"""Which batch sizes a dynamic batcher should prefer, read off the batches that came together (SPEC BS-10)."""

from collections.abc import Mapping


def suggest_preferred_sizes(gathered: Mapping[int, int], most: int = 4) -> list[int]:
    """At most `most` sizes, ascending, that leave the fewest requests waiting; none without observations.

    `gathered`: how often a batch of each size came together. A batcher with preferred sizes takes the largest of them
    that the waiting requests fill; what is left over waits on, so `n` waiting requests cost `n` minus that size. The
    sizes with the least sum of these costs are found exactly, by dynamic programming over the observed sizes (an
    optimum never needs another), in O(most · sizes²). Of equally good answers the one with fewer sizes is taken.
    """
    sizes = sorted(size for size, count in gathered.items() if size > 0 and count > 0)
    if not sizes or most < 1:
        return []
    before_count, before_sum = [0], [0]  # of all batches smaller than sizes[i]
    for size in sizes:
        before_count.append(before_count[-1] + gathered[size])
        before_sum.append(before_sum[-1] + size * gathered[size])

    def left_over(first: int, end: int) -> int:
        """Requests left over by the batches `first` to `end` (exclusive) if all of them are cut to the first's size."""
        return before_sum[end] - before_sum[first] - sizes[first] * (before_count[end] - before_count[first])

    # best[i]: the least left over by batches smaller than sizes[i] with i itself preferred, and how it is had.
    best: list[tuple[int, list[int]]] = [(before_sum[i], []) for i in range(len(sizes) + 1)]
    answer = best[-1]
    for _ in range(min(most, len(sizes))):
        best = [
            min(((best[j][0] + left_over(j, i), [*best[j][1], sizes[j]]) for j in range(i)), default=(1 << 62, []))
            for i in range(len(sizes) + 1)
        ]
        if best[-1][0] >= answer[0]:
            break
        answer = best[-1]
    return answer[1]
