"""How much longer first tokens take the more others decode beside them (SPEC BS-12)."""

from dataclasses import dataclass

from inference_core.protocol import JoinStats
from inference_core.scheduling.sequence import Sequence


@dataclass(slots=True)
class _Joins:
    count: int = 0
    seconds: float = 0.0
    tokens: int = 0


class JoinStatistics:
    """Counts since start, by powers of two of the sequences that decoded when a newcomer joined."""

    def __init__(self) -> None:
        self._by_occupancy: dict[int, _Joins] = {}

    def record(self, sequence: Sequence, now: float) -> None:
        """`sequence`, never preempted, has its first token."""
        joins = self._by_occupancy.setdefault(sequence.joined_beside.bit_length(), _Joins())
        joins.count += 1
        joins.seconds += now - sequence.joined_at
        joins.tokens += len(sequence.prompt_token_ids) - sequence.cached_tokens

    def rows(self) -> list[JoinStats]:
        """From those who joined nobody to those who joined most."""
        return [
            JoinStats(1 << level >> 1, joins.count, joins.seconds / joins.count, joins.seconds / joins.tokens)
            for level, joins in sorted(self._by_occupancy.items())
        ]
