"""Where one sequence is in its grammar: which tokens may come next, and which one must."""

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

Bits = npt.NDArray[np.uint32]

_FINE_ENDS = ("NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence")


class GrammarMatcher:
    """The state of a compiled grammar after a sequence's output tokens, and nothing else: it moves by `accept` alone.

    So it needs no care when a sequence is preempted, or a step is run again. Where the grammar leaves only one text to
    go on with, its tokens are forced: the text's own tokenisation, as the model learned it, instead of any other way
    to spell the text. What is forced depends on the output tokens alone, so that skipping ahead changes no answer.
    Not thread-safe: one thread at a time.
    """

    def __init__(self, start: LLMatcher, tokenizer: LLTokenizer) -> None:
        """`start`: the grammar before the first token, which is copied; copies share what they learn of the grammar."""
        self._state = start.deep_copy()
        self._eos_token_ids = frozenset(tokenizer.eos_tokens)
        self._accepted: list[
            int
        ] = []  # not consumed yet: that is done beside the model's next step, not after its last
        self._forced: list[int] | None = None
        self.num_words = (tokenizer.vocab_size + 31) // 32

    def accept(self, token_id: int) -> None:
        """The sequence goes on with `token_id`, which its mask allowed."""
        self._accepted.append(token_id)

    def forced_tokens(self) -> list[int]:
        """The next tokens, as far as the grammar leaves no choice; [] where there is one."""
        for token_id in self._accepted:
            left = _after(self._known_forced(), token_id)
            if not self._state.consume_token(token_id):
                logger.error("a grammar refuses token %d, which it had allowed: %s", token_id, self._state.get_error())
            self._forced = left
        self._accepted.clear()
        return self._known_forced()

    def _known_forced(self) -> list[int]:
        if self._forced is None:
            self._forced = self._compute_forced()
        return self._forced

    def fill(self, rows: Bits, drafts: Sequence[int] = ()) -> None:
        """Write the masks of the next draws to `rows` [len(drafts) + 1, num_words]: bit `i % 32` of word `i // 32` is
        set if token `i` is allowed.

        Row k is for the draw after the first k of `drafts`; what follows a draft that is not allowed, or that ends the
        answer, will not be read. If the grammar's limits are passed no bit is set.
        """
        forced, taken = self.forced_tokens(), 0
        for place, row in enumerate(rows):
            if place:
                token = drafts[place - 1]
                if not _holds(rows[place - 1], token) or token in self._eos_token_ids:
                    rows[place:] = 0xFFFFFFFF
                    break
                self._state.consume_token(token)
                taken += 1
                left = _after(forced, token)
                forced = self._compute_forced() if left is None else left
            self._fill_row(row, forced)
        if taken and not self._state.rollback(taken):
            logger.error("a grammar cannot be rolled back by %d tokens: %s", taken, self._state.get_error())

    def _fill_row(self, row: Bits, forced: list[int]) -> None:
        if forced:
            row[:] = 0
            row[forced[0] // 32] = 1 << forced[0] % 32
            return
        self._state.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        # On an error, the library has allowed the end of the answer: then it would look finished.
        if self._state.is_error() or self._state.stop_reason() not in _FINE_ENDS:
            logger.error("a grammar gave up (%s): %s", self._state.stop_reason(), self._state.get_error())
            row[:] = 0

    def _compute_forced(self) -> list[int]:
        if self._state.is_stopped():
            return []
        tokens = self._state.compute_ff_tokens()
        # A tokeniser may spell a text differently in the middle of a word; only what fits counts.
        return tokens[: self._state.validate_tokens(tokens)] if tokens else []


def _after(forced: list[int], token_id: int) -> list[int] | None:
    """What is still forced after `token_id`; None if that has to be found out anew."""
    return forced[1:] if len(forced) > 1 and forced[0] == token_id else None


def _holds(row: Bits, token_id: int) -> bool:
    return bool(int(row[token_id // 32]) >> token_id % 32 & 1)
