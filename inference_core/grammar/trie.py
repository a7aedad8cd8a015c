"""A vocabulary as a trie over bytes, which the grammar library walks."""

from collections.abc import Callable, Sequence

from llguidance import LLTokenizer

from inference_core.grammar.vocabulary import Vocabulary, marked_tokens


class _Tokens:
    """The shape that `LLTokenizer` reads, attribute by attribute."""

    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[bytes], eos_token_id: int, encode: Callable[[str], list[int]]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.special_token_ids: list[int] = []  # they carry their mark already
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def trie_of(tokens: list[bytes], eos_token_ids: Sequence[int], encode: Callable[[str], list[int]]) -> LLTokenizer:
    """Takes a good part of a second. `tokens` as of `marked_tokens`; `encode` tokenises a text in its usual way.

    `eos_token_ids`, at least one, are allowed where a grammar accepts and nowhere else.
    """
    wrapper = _Tokens(tokens, eos_token_ids[0], encode)
    return LLTokenizer(wrapper, eos_token=list(eos_token_ids))  # type: ignore[arg-type]


def token_trie(vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The trie of a vocabulary, with as many ids as the model's logits have."""
    return trie_of(marked_tokens(vocabulary, vocab_size), eos_token_ids, vocabulary.encode_continued)
