"""How many more steps a session is expected to have, learned from ended ones per client and key."""

from bisect import bisect_right
from collections import defaultdict

STEP_EDGES = (1, 3, 6, 11, 21, 41, 81)
"""The first steps of the buckets of a session's step number."""
PRIOR_STEPS = 18.0
"""Before any session ended: the median of 133 recorded runs on terminal tasks."""
N0 = 20.0
"""Sessions by which each level's own mean weighs as much as the one above it."""


def step_bucket(step: int) -> int:
    """Return the bucket of a session's step number, counted from 1."""
    return max(0, bisect_right(STEP_EDGES, step) - 1)


class RemainingSteps:
    """Means of what was left at each bucket of steps, from all sessions to a client's and its key's. Each level moves
    the one above by its sessions: (n0 parent + sum) / (n0 + n). Not thread-safe: one owner writes and reads it."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], list[list[float]]] = defaultdict(lambda: [[0.0, 0.0] for _ in STEP_EDGES])

    def observe(self, client: str, key: str, steps: int) -> None:
        """Learn from a session of `client` at `key` that ended after `steps` steps."""
        for level in _levels(client, key):
            sums = self._sums[level]
            for bucket, first in enumerate(STEP_EDGES):
                if steps >= first:
                    sums[bucket][0] += 1.0
                    sums[bucket][1] += steps - first + 1

    def predict(self, client: str, key: str, step: int) -> float:
        """Return the expected steps from number `step` on, that one included: 1 at least.

        Within a bucket the expectation is that of its first step, since most sessions' hazard is nearly flat.
        """
        bucket = step_bucket(step)
        expected = PRIOR_STEPS
        for level in _levels(client, key):
            if level in self._sums:
                count, total = self._sums[level][bucket]
                expected = (N0 * expected + total) / (N0 + count)
        return max(1.0, expected)


def _levels(client: str, key: str) -> tuple[tuple[str, ...], ...]:
    return (), (client,), (client, key)
