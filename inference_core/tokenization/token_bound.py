"""A lower bound on the number of tokens of a text, from its bytes: text that cannot fit a context is not tokenised."""

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt

from inference_core.tokenization.control_tokens import SPM_SPACE, byte_level_alphabet

Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int64]

# The longest UTF-8 form of a text has less than this many times the bytes of its NFC (U+0390: 3.5 times).
NFC_SHRINKAGE = 4
# Characters counted at a time, so that the interpreter lock is not held for long.
_WINDOW = 1 << 16
# A margin above the rounding errors of a sum.
_EXACT = 1 - 1e-9


class TokenBound:
    """Each byte counts as 1 over the length of the longest token that contains it. The bytes of one token then add up
    to at most 1, so the sum over a text is at most its number of tokens.

    `data`: the bytes of every token that text can produce, one after another; `lengths`: how many are of each. `lost`:
    bytes that produce no token. `spelling`: the tokeniser's form of a space. `composed`: it normalises text to NFC
    first, which may shorten it.
    """

    def __init__(
        self, data: Bytes, lengths: Lengths, *, lost: bytes = b"", spelling: bytes = b" ", composed: bool = False
    ) -> None:
        # Of the tokens with a byte.
        longest = np.zeros(256, np.int64)
        np.maximum.at(longest, data, lengths.repeat(lengths))
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
    tokens, alphabet = list(tokens), byte_level_alphabet()
    data, lengths = _spelled(tokens, alphabet)
    if data.size < lengths.sum():
        # Text is mapped to the byte alphabet first, which cannot produce a token with another character.
        tokens = [token for token in tokens if alphabet.keys() >= set(token)]
        data, lengths = _spelled(tokens, alphabet)
    alone = data[(lengths.cumsum() - lengths)[lengths == 1]]
    lost = bytes(set(alphabet.values()).difference(alone.tolist()))
    pieces = _joined([literal.encode() for literal in literals])
    return TokenBound(np.append(data, pieces[0]), np.append(lengths, pieces[1]), lost=lost, composed=composed)


def _spelled(tokens: Sequence[str], alphabet: Mapping[str, int]) -> tuple[Bytes, Lengths]:
    """The bytes that the letters of `tokens` stand for, without those that stand for none, and the tokens' lengths."""
    unknown = len(alphabet)
    byte_of = np.full(max(map(ord, alphabet)) + 2, unknown)
    byte_of[[*map(ord, alphabet)]] = [*alphabet.values()]
    letters = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), np.uint32)
    codes = byte_of.take(letters, mode="clip")
    return codes[codes != unknown].astype(np.uint8), np.fromiter(map(len, tokens), np.int64, len(tokens))


def _joined(pieces: Sequence[bytes]) -> tuple[Bytes, Lengths]:
    return np.frombuffer(b"".join(pieces), np.uint8), np.fromiter(map(len, pieces), np.int64, len(pieces))


def byte_fallback_bound(tokens: Iterable[str], literals: Iterable[str]) -> TokenBound | None:
    """The bound of a SentencePiece vocabulary, where a character without a token becomes its byte tokens; None if byte
    tokens are missing."""
    vocabulary = set(tokens)
    if not vocabulary.issuperset(f"<0x{byte:02X}>" for byte in range(256)):
        return None
    pieces = [token.replace(" ", SPM_SPACE).encode() for token in (*vocabulary, *literals)]
    return TokenBound(*_joined([*pieces, *(bytes([byte]) for byte in range(256))]), spelling=SPM_SPACE.encode())
