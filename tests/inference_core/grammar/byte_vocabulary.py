"""A small vocabulary for grammars: every byte, some longer tokens, one control token and an end."""

from llguidance import LLTokenizer

from inference_core.grammar.compiler import GrammarCompiler, trie_of
from inference_core.grammar.vocabulary import marked_tokens

LONGER = [
    b'{"',
    b'": ',
    b'", "',
    b'"}',
    b", ",
    b"true",
    b"false",
    b"null",
    b"name",
    b"na",
    b"12",
    b"ab",
    b" the",
    b"\xc3\xa9",
]
CONTROL = 256 + len(LONGER)
EOS = CONTROL + 1
SIZE = EOS + 1


class ByteVocabulary:
    """Ids 0 to 255 are bytes; then `LONGER`, `CONTROL` and `EOS`."""

    vocab_size = SIZE

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return LONGER[token_id - 256] if token_id < CONTROL else b"<|control|>" if token_id == CONTROL else b"<|end|>"

    def is_control(self, token_id: int) -> bool:
        return token_id >= CONTROL

    def encode_continued(self, text: str) -> list[int]:
        """The longest token first, always."""
        rest, tokens = text.encode(), []
        while rest:
            longest = max((t for t in LONGER if rest.startswith(t)), key=len, default=None)
            tokens.append(rest[0] if longest is None else 256 + LONGER.index(longest))
            rest = rest[1 if longest is None else len(longest) :]
        return tokens

    def text(self, token_ids: list[int]) -> str:
        return b"".join(self.token_bytes(t) for t in token_ids if t < CONTROL).decode()


def byte_trie(vocab_size: int = SIZE) -> LLTokenizer:
    vocabulary = ByteVocabulary()
    return trie_of(marked_tokens(vocabulary, vocab_size), [EOS], vocabulary.encode_continued)


def byte_compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_trie())
