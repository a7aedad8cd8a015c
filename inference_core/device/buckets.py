"""Step sizes that are captured as CUDA graphs; other steps of few tokens are padded to one of them (SPEC AT-08)."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from inference_core.step_plan import ScheduledSequence

LONGEST_QUERY = 16
# The device computes longer prompts for longer than the host takes to launch their kernels one by one.
_MOST_PROMPT_TOKENS = 512
_PROMPT_ROWS = (8, 64)


@dataclass(slots=True, frozen=True)
class Padding:
    """What a step is padded to: `tokens`, and `rows` of sequences and of draws."""

    tokens: int
    rows: int


@dataclass(slots=True, frozen=True)
class StepBuckets:
    """Numbers of tokens, ascending: `decodes` of steps in which each sequence computes at most `LONGEST_QUERY` tokens
    (decodes with their drafts), with as many rows; `prompts` of others, with one of `prompt_rows` rows."""

    decodes: tuple[int, ...] = ()
    prompts: tuple[int, ...] = ()
    prompt_rows: tuple[int, ...] = ()

    @classmethod
    def up_to(cls, tokens: int, draws: int) -> "StepBuckets":
        """For steps of at most `tokens` and `draws`. Decodes: 1, 2, 4, then multiples of 8 up to 256 and of 16 beyond,
        and the most. Prompts: multiples of 32 up to 256, and of 64 up to 512.

        From 64 tokens on, less than an eighth of a step of decodes is padding, and of prompts less than half.
        """
        most = min(tokens, draws)
        decodes = {1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16), most}
        prompts = (*range(32, 256, 32), *range(256, _MOST_PROMPT_TOKENS + 1, 64))
        return cls(
            tuple(sorted(size for size in decodes if size <= most)),
            tuple(size for size in prompts if size <= tokens),
            (*(rows for rows in _PROMPT_ROWS if rows < most), most),
        )

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest step; 0 if none is captured."""
        return max((*self.decodes, *self.prompts), default=0)

    def padding(self, sequences: Sequence[ScheduledSequence]) -> Padding | None:
        """The smallest bucket for a step; None if it has more tokens or rows than the largest."""
        lengths = [len(s.token_ids) for s in sequences]
        if max(lengths, default=0) <= LONGEST_QUERY:
            tokens = rows = _smallest(self.decodes, sum(lengths))
        else:
            draws = sum(s.num_drafts + 1 for s in sequences if s.sample is not None)
            tokens = _smallest(self.prompts, sum(lengths))
            rows = _smallest(self.prompt_rows, max(len(sequences), draws))
        return None if tokens is None or rows is None else Padding(tokens, rows)


def _smallest(sizes: tuple[int, ...], wanted: int) -> int | None:
    """The smallest of `sizes` of at least `wanted`."""
    place = bisect_left(sizes, wanted)
    return sizes[place] if place < len(sizes) else None
