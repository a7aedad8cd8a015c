"""Drafts the tokens that followed an earlier occurrence of the last few tokens.

Saxena, "Prompt Lookup Decoding", 2023; as Yang et al., "Inference with Reference", 2023. It pays if answers copy:
summaries, edits, code, quotations (SPEC SD-11).
"""

from dataclasses import dataclass, field

from inference_core.protocol import Knobs
from inference_core.scheduling.sequence import Sequence
from inference_core.speculation.drafter import Draft, Drafter, Reach


@dataclass(slots=True)
class _Index:
    """An index of one sequence: where each run of `length` tokens last occurred.

    It covers the first `indexed` tokens; `match` is the position after the last run's earlier occurrence.
    """

    length: int
    indexed: int = 0
    follows: dict[tuple[int, ...], int] = field(default_factory=dict)
    match: int = 0

    def extend(self, token_ids: list[int]) -> None:
        length, follows = self.length, self.follows
        for place in range(max(self.indexed, length), len(token_ids)):
            follows[tuple(token_ids[place - length : place])] = place
        self.indexed = len(token_ids)


class PromptLookup(Drafter):
    """Indexes prompt and answer as they grow, so that a proposal costs one look-up at any length."""

    def __init__(self) -> None:
        self._indexes: dict[Sequence, _Index] = {}

    def reach(self, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        index, token_ids = self._indexes.get(sequence), sequence.token_ids
        if index is None or index.length != knobs.lookup_ngram:
            index = self._indexes[sequence] = _Index(knobs.lookup_ngram)
        if len(token_ids) != index.indexed:
            index.extend(token_ids)
        index.match = index.follows.get(tuple(token_ids[-index.length :]), 0)
        return Reach(most, _promise(token_ids, index.match, index.length)) if index.match else Reach(0)

    def propose(self, wanted: list[tuple[Sequence, int]], knobs: Knobs) -> list[Draft]:
        return [Draft(_continuation(s.token_ids, self._indexes[s].match, count)) for s, count in wanted]

    def seconds(self, sequences: int) -> float:
        return 0.0

    def forget(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence, None)


def _promise(token_ids: list[int], match: int, length: int) -> int:
    """Return the class by the length of the match: copied text matches far back, a common phrase does not."""
    agreed, most, last = length, min(4 * length, match), len(token_ids)
    while agreed < most and token_ids[match - agreed - 1] == token_ids[last - agreed - 1]:
        agreed += 1
    return 0 if agreed < 2 * length else 1 if agreed < 4 * length else 2


def _continuation(token_ids: list[int], start: int, count: int) -> list[int]:
    """Return `count` tokens from `start` on, repeating them periodically past the end of the text."""
    period = len(token_ids) - start
    return [token_ids[start + i % period] for i in range(count)]
