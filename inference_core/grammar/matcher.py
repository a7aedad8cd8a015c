"""One sequence's state in its grammar: which tokens are allowed next, and which are forced."""

from collections.abc import Callable, Sequence

from llguidance import LLMatcher, LLTokenizer

from inference_core.errors import InvalidRequestError
from inference_core.grammar.validation import UNCHECKED
from inference_core.grammar.wire import remaining_forced

_FINE_ENDS = ("NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence")


class GrammarMatcher:
    """The state of a compiled grammar after a sequence's output tokens; only `accept` changes it.

    It is therefore unaffected by preemption and by repeated steps. If the grammar allows only one text next, its tokens
    are forced: those of the tokeniser, as the model learned them, not any other spelling. Forced tokens depend only on
    the output tokens, so skipping ahead changes no answer. See `Matcher`.
    """

    def __init__(
        self,
        start: LLMatcher,
        tokenizer: LLTokenizer,
        error_of: Callable[[str], str | None] | None = None,
        avoided: tuple[list[int], int] | None = None,
    ) -> None:
        """`start`: the grammar before the first token; it is copied, and copies share the library's caches.
        `error_of`: why a text is no finished answer, None if it is one; the end is allowed only after it. `avoided`:
        the start of an answer, and the token that is not allowed after it."""
        self._state = start.deep_copy()
        self._tokenizer, self._error_of = tokenizer, error_of
        self._avoided = avoided
        self._text_ids: list[int] = []  # what the state has consumed, if answers are validated
        self._eos_token_ids = frozenset(tokenizer.eos_tokens)
        self._accepted: list[int] = []  # consumed later, in parallel with the model's next step
        self._forced: list[int] | None = None
        self._drafts: Sequence[int] = ()
        self.num_words = (tokenizer.vocab_size + 31) // 32
        self.reason: str | None = None
        """The library's message about an exceeded limit or a token that does not fit."""
        self.has_invalid_end = False
        """Whether `reason` is that the answer could only end invalid, not that none can be checked."""

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
        if self._error_of is not None:
            self._text_ids += self._accepted
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
        for index, token in enumerate(self._drafts):
            if token in self._eos_token_ids or not _holds(masks[-1], token):
                masks += [b"\xff" * (4 * self.num_words)] * (len(self._drafts) - index)
                break
            self._state.consume_token(token)
            self._text_ids.append(token)
            taken += 1
            left = remaining_forced(forced, token)
            forced = self._compute_forced() if left is None else left
            masks.append(self._mask(forced, drafted=True))
        del self._text_ids[len(self._text_ids) - taken :]
        if taken and not self._state.rollback(taken):
            self._give_up(f"{taken} tokens cannot be taken back: {self._state.get_error()}")
        return masks

    def _known_forced(self) -> list[int]:
        if self._forced is None:
            self._forced = self._compute_forced()
        return self._forced

    def _mask(self, forced: list[int], drafted: bool = False) -> bytes:
        """The mask of the state. Where a `drafted` token leads to no valid end it is empty, and nothing has failed: the
        step is repeated without drafts."""
        if forced and self.reason is None:
            row = bytearray(4 * self.num_words)
            row[forced[0] // 8] = 1 << forced[0] % 8
            return bytes(row)
        mask = bytes(self._state.compute_bitmask()[: 4 * self.num_words]) if self.reason is None else b""
        # On an error the library allows the end of the answer, which would then look finished.
        if self._state.is_error() or self._state.stop_reason() not in _FINE_ENDS:
            reason = f"no token may follow what was written ({self._state.stop_reason()})"
            self._give_up(self._state.get_error() or reason)
        if self._error_of is not None and self.reason is None:
            mask, error = self._without_invalid_end(mask, self._error_of)
            if self._avoided is not None and self._avoided[0] == self._text_ids:
                mask = _without(mask, [self._avoided[1]]) or mask
            if not drafted and error is not None and not any(mask):
                self.has_invalid_end = not error.startswith(UNCHECKED)
                self._give_up(f"the finished answer is not valid: {error}")
        return mask if self.reason is None else bytes(4 * self.num_words)

    def _without_invalid_end(self, mask: bytes, error_of: Callable[[str], str | None]) -> tuple[bytes, str | None]:
        """The mask without the tokens that end the answer, where the text so far is no valid answer, and why."""
        ends = [token for token in self._eos_token_ids if _holds(mask, token)]
        if not ends:
            return mask, None
        error = error_of(self._tokenizer.decode_bytes(self._text_ids).decode("utf-8", "replace"))
        if error is None:
            return mask, None
        return _without(mask, ends) or bytes(len(mask)), error

    def _compute_forced(self) -> list[int]:
        if self.reason is not None or self._state.is_stopped():
            return []
        tokens = self._state.compute_ff_tokens()
        # A tokeniser may split a text differently inside a word; keep only the tokens that fit.
        return tokens[: self._state.validate_tokens(tokens)] if tokens else []

    def _give_up(self, reason: str) -> None:
        self.reason = self.reason or " ".join(reason.replace("<non-verbose/>", "").split())


def _without(mask: bytes, tokens: Sequence[int]) -> bytes | None:
    """The mask without `tokens`; None if it allows no others."""
    rest = bytearray(mask)
    for token in tokens:
        rest[token // 8] &= ~(1 << token % 8)
    return bytes(rest) if any(rest) else None


def _holds(mask: bytes, token_id: int) -> bool:
    return bool(mask[token_id // 8] >> token_id % 8 & 1)
