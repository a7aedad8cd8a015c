"""Where one sequence is in its grammar: which tokens may come next, and which one must."""

from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from inference_core.errors import InvalidRequestError
from inference_core.grammar.wire import remaining_forced

_FINE_ENDS = ("NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence")


class GrammarMatcher:
    """The state of a compiled grammar after a sequence's output tokens, and nothing else: it moves by `accept` alone.

    So it needs no care when a sequence is preempted, or a step is run again. Where the grammar leaves only one text to
    go on with, its tokens are forced: the text's own tokenisation, as the model learned it, instead of any other way
    to spell the text. What is forced depends on the output tokens alone, so that skipping ahead changes no answer.
    See `Matcher`.
    """

    def __init__(self, start: LLMatcher, tokenizer: LLTokenizer) -> None:
        """`start`: the grammar before the first token, which is copied; copies share what they learn of the grammar."""
        self._state = start.deep_copy()
        self._eos_token_ids = frozenset(tokenizer.eos_tokens)
        self._accepted: list[
            int
        ] = []  # not consumed yet: that is done beside the model's next step, not after its last
        self._forced: list[int] | None = None
        self._drafts: Sequence[int] = ()
        self.num_words = (tokenizer.vocab_size + 31) // 32
        self.reason: str | None = None
        """What the library says of the limit that was passed, or of the token that does not fit."""

    @property
    def failure(self) -> InvalidRequestError | None:
        return None if self.reason is None else InvalidRequestError(f"the grammar cannot be followed: {self.reason}")

    def accept(self, token_id: int) -> None:
        self._accepted.append(token_id)

    def ask_forced(self) -> None:
        pass

    def ask_masks(self, drafts: Sequence[int]) -> None:
        self._drafts = drafts

    def send(self) -> None:
        pass

    def forced_tokens(self) -> list[int]:
        for token_id in self._accepted:
            left = remaining_forced(self._known_forced(), token_id)
            if not self._state.consume_token(token_id):
                self._give_up(self._state.get_error() or f"it does not allow token {token_id}")
            self._forced = left
        self._accepted.clear()
        return self._known_forced()

    def masks(self) -> list[bytes]:
        forced, taken = self.forced_tokens(), 0
        masks = [self._mask(forced)]
        for place, token in enumerate(self._drafts):
            if token in self._eos_token_ids or not _holds(masks[-1], token):
                masks += [b"\xff" * (4 * self.num_words)] * (len(self._drafts) - place)
                break
            self._state.consume_token(token)
            taken += 1
            left = remaining_forced(forced, token)
            forced = self._compute_forced() if left is None else left
            masks.append(self._mask(forced))
        if taken and not self._state.rollback(taken):
            self._give_up(f"{taken} tokens cannot be taken back: {self._state.get_error()}")
        return masks

    def _known_forced(self) -> list[int]:
        if self._forced is None:
            self._forced = self._compute_forced()
        return self._forced

    def _mask(self, forced: list[int]) -> bytes:
        if forced and self.reason is None:
            row = bytearray(4 * self.num_words)
            row[forced[0] // 8] = 1 << forced[0] % 8
            return bytes(row)
        mask = bytes(self._state.compute_bitmask()[: 4 * self.num_words]) if self.reason is None else b""
        # On an error, the library has allowed the end of the answer: then it would look finished.
        if self._state.is_error() or self._state.stop_reason() not in _FINE_ENDS:
            self._give_up(self._state.get_error() or self._state.stop_reason())
        return mask if self.reason is None else bytes(4 * self.num_words)

    def _compute_forced(self) -> list[int]:
        if self.reason is not None or self._state.is_stopped():
            return []
        tokens = self._state.compute_ff_tokens()
        # A tokeniser may spell a text differently in the middle of a word; only what fits counts.
        return tokens[: self._state.validate_tokens(tokens)] if tokens else []

    def _give_up(self, reason: str) -> None:
        self.reason = self.reason or " ".join(reason.replace("<non-verbose/>", "").split())


def _holds(mask: bytes, token_id: int) -> bool:
    return bool(mask[token_id // 8] >> token_id % 8 & 1)
