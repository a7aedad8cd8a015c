"""Token ids to text as they arrive, never half a character."""

import codecs
from collections.abc import Iterable

from inference_core.tokenization.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The texts of all `push` calls and one `flush` together are `tokenizer.decode` of all ids.

    Works on bytes, so a token costs the same however long the text already is. Bytes of an unfinished character are
    held back; bytes that can be no UTF-8 become U+FFFD, as `bytes.decode("utf-8", "replace")` has it. Control tokens
    among `visible` are written out, unlike the others.
    """

    def __init__(self, tokenizer: Tokenizer, visible: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._visible = visible
        self._decoder = _UTF8("replace")
        self._holds = False

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that is certain once these tokens are there; control tokens have none."""
        return "".join([self.push_one(token_id) for token_id in token_ids])

    def push_one(self, token_id: int) -> str:
        """The same for a single token."""
        tokenizer = self._tokenizer
        if token_id in self._visible:
            text = self._decoder.decode(b"", final=True) + tokenizer.token_bytes(token_id).decode()
            self._holds = False
            return text
        if not self._holds:
            whole = tokenizer.token_text(token_id)
            if whole is not None:
                return whole
        elif tokenizer.is_control(token_id):
            return ""
        text = self._decoder.decode(tokenizer.token_bytes(token_id))
        self._holds = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """What an unfinished character at the end comes to: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
