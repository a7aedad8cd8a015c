"""A vocabulary as a trie over bytes, which the grammar library walks."""

from collections.abc import Callable, Sequence

from llguidance import LLTokenizer


class _Tokens:
    """The attributes that `LLTokenizer` reads."""

    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[bytes], eos_token_id: int, encode: Callable[[str], list[int]]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.special_token_ids: list[int] = []  # special tokens are marked in `tokens`
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def trie_of(tokens: list[bytes], eos_token_ids: Sequence[int], encode: Callable[[str], list[int]]) -> LLTokenizer:
    """Build the trie; takes a large part of a second. `tokens`: see `marked_tokens`. `encode` tokenises text.

    `eos_token_ids`, at least one, are allowed only where a grammar accepts.
    """
    wrapper = _Tokens(tokens, eos_token_ids[0], encode)
    return LLTokenizer(wrapper, eos_token=list(eos_token_ids))  # type: ignore[arg-type]
