"""Decodes token ids as they arrive, only in whole characters."""

import codecs
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from inference_core.tokenization.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The texts of all `push` calls and one `flush` together equal `tokenizer.decode` of all ids.

    Works on bytes, so the cost of a token does not grow with the text. Bytes of an incomplete character are held back;
    invalid UTF-8 becomes U+FFFD, as in `bytes.decode("utf-8", "replace")`. Control tokens in `visible` become the
    texts there; others are dropped.
    """

    def __init__(self, tokenizer: Tokenizer, visible: Mapping[int, str] = MappingProxyType({})) -> None:
        self._tokenizer = tokenizer
        self._visible = visible
        self._decoder = _UTF8("replace")
        self._holds = False

    def push(self, token_ids: Iterable[int]) -> str:
        """The text completed by these tokens; control tokens have none."""
        return "".join([self.push_one(token_id) for token_id in token_ids])

    def push_one(self, token_id: int) -> str:
        """The same for a single token."""
        tokenizer = self._tokenizer
        if token_id in self._visible:
            text = self._decoder.decode(b"", final=True) + self._visible[token_id]
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
        """The text of an incomplete character at the end: U+FFFD, or "" if there is none."""
        return self._decoder.decode(b"", final=True)
