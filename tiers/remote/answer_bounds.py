"""How much a server elsewhere may answer: far more than any honest answer within its limit of tokens has."""

from functools import lru_cache
from typing import NamedTuple

from tiers.errors import TierAnswerTooLongError

# Bytes of texts, thoughts, calls and log-probabilities by token. Four are usual; the longest tokens of known
# vocabularies, runs of spaces, have 128. Servers that take no notice of a small limit are given `SAID_BYTES` more.
SAID_BYTES_PER_TOKEN, SAID_BYTES, MOST_SAID_BYTES = 128, 64 * 1024, 16 * 2**20
# Bytes as sent: most servers repeat the answer's id and model in 250 to 1,000 bytes for each token.
WIRE_BYTES_PER_TOKEN, WIRE_BYTES, MOST_WIRE_BYTES, MOST_WHOLE_BYTES = 2048, 256 * 1024, 256 * 2**20, 64 * 2**20
# Each alternative of a token with log-probabilities has up to 150 bytes as sent, 10 commas, and is an object here.
LOGPROB_WIRE_BYTES, LOGPROB_SAID_BYTES = 512, 128
# A comma of JSON separates what becomes objects: bytes of nothing else are as expensive. Texts have some, too.
COMMAS, COMMAS_PER_TOKEN, COMMAS_PER_LOGPROB, UNCOUNTED_JSON_BYTES = 4096, 32, 16, 32 * 1024
MOST_CALLS = 512
"""Tool calls of a choice."""


class AnswerBounds(NamedTuple):
    """`wire`: bytes of a streamed answer as sent; `whole`: of one in one piece. `said`: bytes of what it says.
    `commas`: of one event, or of a whole answer. `tokens`: what all this follows from."""

    wire: int
    whole: int
    said: int
    commas: int
    tokens: int

    def require_json(self, data: bytes) -> None:
        """Check an event or a whole answer before it becomes objects. Raises `TierAnswerTooLongError`."""
        if len(data) > UNCOUNTED_JSON_BYTES and (commas := data.count(b",")) > self.commas:
            raise TierAnswerTooLongError(self._excess(f"{commas:,} values in one event", self.commas))

    def require_wire(self, size: int, most: int) -> None:
        """Check the `size` of what has arrived. Raises `TierAnswerTooLongError`."""
        if size > most:
            raise TierAnswerTooLongError(self._excess("more bytes", most))

    def require_said(self, size: int) -> None:
        """Check the `size` of what was said. Raises `TierAnswerTooLongError`."""
        if size > self.said:
            raise TierAnswerTooLongError(self._excess("more bytes of text", self.said))

    def _excess(self, what: str, most: int) -> str:
        return f"the server answered {what} than the {most:,} that {self.tokens:,} tokens may have; it was cut off"


@lru_cache(1024)
def bounds_of(n: int, limit: int, logprobs: int | None, *, cumulative: bool = False) -> AnswerBounds:
    """Return the bounds of an answer with `n` choices of at most `limit` tokens. `logprobs`: the alternatives of each
    token that were asked for. `cumulative`: each event repeats the text before it."""
    tokens = n * limit
    scored = 0 if logprobs is None else 1 + logprobs
    said = SAID_BYTES + tokens * (SAID_BYTES_PER_TOKEN + scored * LOGPROB_SAID_BYTES)
    each = WIRE_BYTES_PER_TOKEN + scored * LOGPROB_WIRE_BYTES
    wire = WIRE_BYTES + tokens * each
    return AnswerBounds(
        wire=wire + tokens * limit * SAID_BYTES_PER_TOKEN if cumulative else min(wire, MOST_WIRE_BYTES),
        whole=min(wire, MOST_WHOLE_BYTES),
        said=min(said, MOST_SAID_BYTES * (1 + scored)),
        commas=COMMAS + tokens * (COMMAS_PER_TOKEN + scored * COMMAS_PER_LOGPROB),
        tokens=tokens,
    )
