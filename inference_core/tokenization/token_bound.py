"""A lower bound on the number of tokens of a text, from its bytes: text that cannot fit a context is not tokenised."""

from collections.abc import Iterable, Set

import numpy as np
import numpy.typing as npt

from inference_core.errors import ModelFileError
from inference_core.tokenization.token_bytes import SPM_SPACE, byte_level_alphabet, byte_level_token

# The longest UTF-8 form of a text has less than this many times the bytes of its NFC (U+0390: 3.5 times).
NFC_SHRINKAGE = 4
# Characters counted at a time, so that the interpreter lock is not held for long.
_WINDOW = 1 << 16
# A margin above the rounding errors of a sum.
_EXACT = 1 - 1e-9


class TokenBound:
    """Each byte counts as 1 over the length of the longest token that contains it. The bytes of one token then add up
    to at most 1, so the sum over a text is at most its number of tokens.

    `pieces`: the bytes of every token that text can produce. `lost`: bytes that produce no token. `spelling`: the
    tokeniser's form of a space. `composed`: it normalises text to NFC first, which may shorten it.
    """

    def __init__(
        self, pieces: Iterable[bytes], *, lost: bytes = b"", spelling: bytes = b" ", composed: bool = False
    ) -> None:
        pieces = list(pieces)
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        # Of the tokens with a byte.
        longest = np.zeros(256, np.int64)
        np.maximum.at(longest, np.frombuffer(b"".join(pieces), np.uint8), lengths.repeat(lengths))
        self._weights: npt.NDArray[np.float64] = np.divide(1.0, longest, out=np.zeros(256), where=longest > 0)
        self._weights[list(lost)] = 0.0
        self._weights[ord(" ")] = sum(self._weights[byte] for byte in spelling)
        self._composed = composed
        self._least_composed = float(self._weights.min()) / NFC_SHRINKAGE

    def least(self, text: str) -> int:
        """A lower bound on the tokens of `text`. Takes some milliseconds per MiB. Raises UnicodeEncodeError."""
        if self._composed and not text.isascii():
            return int(len(text.encode()) * self._least_composed * _EXACT)
        total = 0.0
        for start in range(0, len(text), _WINDOW):
            data = np.frombuffer(text[start : start + _WINDOW].encode(), np.uint8)
            total += float(self._weights.take(data).sum())
        return int(total * _EXACT)


def producible(tokens: Iterable[str], controls: Set[str], merged: Iterable[str]) -> list[str]:
    """The `tokens` of a model that text can produce: control tokens only if merges make them or they are a character.
    `merged`: tokens made by merges or looked up whole."""
    never = {control for control in controls if len(control) > 1}.difference(merged)
    return [token for token in tokens if token not in never]


def byte_level_bound(tokens: Iterable[str], literals: Iterable[str], *, composed: bool) -> TokenBound:
    """The bound of a byte-level vocabulary without an unknown token: bytes that it lacks are dropped.

    `tokens`: in the vocabulary's spelling. `literals`: added tokens that stand for their own text.
    """
    pieces = [literal.encode() for literal in literals]
    known = set()
    for token in tokens:
        try:
            pieces.append(byte_level_token(token))
        except ModelFileError:
            continue  # Text is mapped to the byte alphabet first, which cannot produce this token.
        known.add(token)
    lost = bytes(byte for letter, byte in byte_level_alphabet().items() if letter not in known)
    return TokenBound(pieces, lost=lost, composed=composed)


def byte_fallback_bound(tokens: Iterable[str], literals: Iterable[str]) -> TokenBound | None:
    """The bound of a SentencePiece vocabulary, where a character without a token becomes its byte tokens; None if byte
    tokens are missing."""
    known = set(tokens)
    if not known.issuperset(f"<0x{byte:02X}>" for byte in range(256)):
        return None
    pieces = [token.replace(" ", SPM_SPACE).encode() for token in (*known, *literals)]
    return TokenBound([*pieces, *(bytes([byte]) for byte in range(256))], spelling=SPM_SPACE.encode())
