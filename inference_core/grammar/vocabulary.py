"""What grammars are written in: a model's tokens as exact bytes, control tokens marked, and one style of JSON.

JSON is written, and `oneOf` read, in this style unless a schema sets something else under `x-guidance`.
"""

from typing import Any, Protocol

# A byte that never occurs in UTF-8: the library's mark of tokens that are not text.
_CONTROL_MARK = b"\xff"


class Vocabulary(Protocol):
    """The methods of a tokeniser that grammars need; `inference_core.tokenization.tokenizer.Tokenizer` has them."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_control(self, token_id: int) -> bool: ...

    def encode_continued(self, text: str) -> list[int]: ...


def marked_tokens(vocabulary: Vocabulary, vocab_size: int) -> list[bytes]:
    """The tokens of `vocab_size` ids, the size of the model's logits; b"" for ids without a token."""
    num_tokens = min(vocabulary.vocab_size, vocab_size)
    return [_marked(vocabulary, token) for token in range(num_tokens)] + [b""] * (vocab_size - num_tokens)


def _marked(vocabulary: Vocabulary, token_id: int) -> bytes:
    text = vocabulary.token_bytes(token_id)
    return _CONTROL_MARK + text if vocabulary.is_control(token_id) else text


# The format of `json.dumps`, which models have seen most on one line. With free white space a small model may write
# nothing else, and hardly any token is forced. `oneOf` is read as `anyOf`, and finished answers are validated.
JSON_STYLE: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "coerce_one_of": True}
