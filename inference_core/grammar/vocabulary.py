"""A model's tokens as the grammar library wants them: exact bytes, control tokens marked, ends of generation named."""

from collections.abc import Sequence
from typing import Protocol

from llguidance import LLTokenizer

# A byte that no UTF-8 text holds: the library's mark of tokens that are no text.
_CONTROL_MARK = b"\xff"


class Vocabulary(Protocol):
    """What a grammar must know of a tokeniser; `inference_core.tokenization.tokenizer.Tokenizer` is one."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_control(self, token_id: int) -> bool: ...

    def encode_continued(self, text: str) -> list[int]: ...


class _Tokens:
    """The shape that `LLTokenizer` reads, attribute by attribute."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_id: int) -> None:
        self._vocabulary = vocabulary
        known = min(vocabulary.vocab_size, vocab_size)
        self.tokens = [self._bytes_of(token) for token in range(known)] + [b""] * (vocab_size - known)
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.special_token_ids: list[int] = []  # they carry their mark already

    def _bytes_of(self, token_id: int) -> bytes:
        text = self._vocabulary.token_bytes(token_id)
        return _CONTROL_MARK + text if self._vocabulary.is_control(token_id) else text

    def __call__(self, text: bytes | str) -> list[int]:
        return self._vocabulary.encode_continued(text if isinstance(text, str) else text.decode())


def token_trie(vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The vocabulary as a trie over bytes, of `vocab_size` ids as the model's logits have.

    Takes a good part of a second. `eos_token_ids`, at least one, are allowed where a grammar accepts and nowhere else.
    """
    tokens = _Tokens(vocabulary, vocab_size, eos_token_ids[0])
    return LLTokenizer(tokens, eos_token=list(eos_token_ids))  # type: ignore[arg-type]
