"""Token ids to text as they arrive, never half a character."""

import codecs
from collections.abc import Iterable

from inference_core.tokenization.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The texts of all `push` calls and one `flush` together are `tokenizer.decode` of all ids.

    Works on bytes, so a token costs the same however long the text already is. Bytes of an unfinished character are
    held back; bytes that can be no UTF-8 become U+FFFD, as `bytes.decode("utf-8", "replace")` has it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = _UTF8("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that is certain once these tokens are there; control tokens have none."""
        tokenizer = self._tokenizer
        return self._decoder.decode(
            b"".join(tokenizer.token_bytes(i) for i in token_ids if not tokenizer.is_control(i))
        )

    def flush(self) -> str:
        """What an unfinished character at the end comes to: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
