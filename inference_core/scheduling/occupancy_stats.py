"""First-token latency by the number of sequences that decoded when a sequence joined (SPEC BS-12)."""

from dataclasses import dataclass

from inference_core.protocol import JoinStats
from inference_core.scheduling.sequence import Sequence


@dataclass(slots=True)
class _Joins:
    count: int = 0
    seconds: float = 0.0
    tokens: int = 0


class JoinStatistics:
    """Counts since start, by powers of two of the sequences that decoded."""

    def __init__(self) -> None:
        self._by_occupancy: dict[int, _Joins] = {}

    def record(self, sequence: Sequence, now: float) -> None:
        """Record the first token of `sequence`, which was never preempted."""
        joins = self._by_occupancy.setdefault(sequence.joined_beside.bit_length(), _Joins())
        joins.count += 1
        joins.seconds += now - sequence.joined_at
        joins.tokens += len(sequence.prompt_token_ids) - sequence.cached_tokens

    def rows(self) -> list[JoinStats]:
        """Return the statistics, fewest decoding sequences first."""
        return [
            JoinStats(1 << level >> 1, joins.count, joins.seconds / joins.count, joins.seconds / joins.tokens)
            for level, joins in sorted(self._by_occupancy.items())
        ]
