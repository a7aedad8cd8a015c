"""Prompts that answers are kept of, to be found by another wording of the same.

The embedding is the classifier's own, which routing has made anyway; the guard is the `gist` of a prompt, its text
without what says nothing: one answer does for two prompts only if theirs are equal. Vectors of whole prompts do not
tell "speed doubles the momentum" from "momentum doubles the speed", nor one unknown name from another. So what may
differ is listed here; all else has to be the same to the letter, in the same order.
"""

import re
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.base.inference_request import InferenceRequest
from gateway.base.knobs import KnobFile
from gateway.inference.answer_stores import CacheKnobs, Clock, MemoryStore

# Code, quotations, what follows a colon, and prompts about a text: there the very form may be what is asked about.
_FORM_COUNTS = re.compile(
    r"[`\"“”„«»:{}\[\]<>=|\\_~^$#@\t]|^[ ]+\S|(?<!\w)['‘’]"
    r"|\b(?:translat|spell|pronounc|proofread|punctuat|capitali[sz]|contract|abbreviat|grammar|rewrit|rephras|paraphras"
    r"|correct|word|letter|character|sentence|line|paragraph|comma|apostrophe|space)",
    re.IGNORECASE | re.MULTILINE,
)
_COURTESY = re.compile(
    r"\A(?:(?:hi|hello|hey)[,!.]\s+)?(?:(?:please|kindly|(?:can|could|would) you please)\s+)?", re.IGNORECASE
)
_THANKS = re.compile(r"(?:(?<=[.?!])|,)\s+(?:please|thanks|thank you)[.!]?\Z|\s+please(?=[.?]?\Z)", re.IGNORECASE)
_CONTRACTIONS = (
    (re.compile(r"\b(can)(?:'t|not)\b", re.IGNORECASE), r"\1 not"),
    (re.compile(r"\b(w)on't\b", re.IGNORECASE), r"\1ill not"),
    (
        re.compile(r"\b(are|could|did|does|do|had|has|have|is|must|should|was|were|would)n't\b", re.IGNORECASE),
        r"\1 not",
    ),
    (re.compile(r"\b(what|who|where|when|how|that|there|it|he|she)'s\b", re.IGNORECASE), r"\1 is"),
    (re.compile(r"\b(we|you|they|who|what)'re\b", re.IGNORECASE), r"\1 are"),
    (re.compile(r"\b(i)'m\b", re.IGNORECASE), r"\1 am"),
    (re.compile(r"\b(i|we|you|they)'ve\b", re.IGNORECASE), r"\1 have"),
)
# A line break after the end of a sentence is a space; elsewhere it may part what a space does not.
_SPACE = re.compile(r"(?<=[.?!])\s+|[^\S\n]+")
_BREAK = re.compile(r"\s*\n\s*")
_ASKS = re.compile(
    r"(?:what|who|whom|whose|when|where|why|which|how|is|are|was|were|do|does|did|has|have|should)\b", re.IGNORECASE
)
_LAST_STOP = re.compile(r"(?<=[^\W\d_]{2})\.\Z")
_LAST_QUESTION_MARK = re.compile(r"(?<=[^\W\d_]{2})\?\Z")


def gist(text: str) -> str:
    """`text` without a courtesy at its ends, without the mark that ends it where the words tell it too, contractions
    written out, white space between words as one space, and its first letter small; where the form of the text may
    count, only without the white space around it. Pure."""
    text = text.strip()
    if _FORM_COUNTS.search(text):
        return text
    text = _BREAK.sub("\n", _SPACE.sub(" ", text)).replace("’", "'")
    text = _THANKS.sub("", _COURTESY.sub("", text))
    if "'" in text or "annot" in text:
        for contracted, written_out in _CONTRACTIONS:
            text = contracted.sub(written_out, text)
    text = (_LAST_QUESTION_MARK if _ASKS.match(text) else _LAST_STOP).sub("", text)
    # A capital alone, or one of several, is more than the beginning of a sentence.
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


Embedding = npt.NDArray[np.float32]
# Longer prompts seldom come again in other words; bounds what a lookup costs.
MAX_CHARS = 4000
# A vector's cosine to itself is 1 but for rounding.
COSINE_DIGITS = 5


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A kept answer and its prompt."""

    answer: bytes
    """The key that the answer is kept under."""
    embedding: bytes
    """float32, as bytes."""


class Wording(NamedTuple):
    """One wording of a prompt."""

    key: bytes
    """The key of the request that has the gist in the prompt's place, so that none is found for another tenant, tier or
    parameter.
    """
    embedding: Embedding
    """The prompt's embedding, of unit length."""


def wording_of(
    request: InferenceRequest, embedding: Embedding, key: Callable[[InferenceRequest], bytes]
) -> Wording | None:
    """Of a chat of one user turn without tools, after instructions at most; None for every other request."""
    messages = request.generation.messages
    if (
        not messages
        or request.generation.tooling is not None
        or messages[-1].role != "user"
        or len(messages[-1].text) > MAX_CHARS
    ):
        return None
    if any(message.role not in ("system", "developer") for message in messages[:-1]):
        return None
    prompt = messages[-1].with_text(gist(messages[-1].text))
    return Wording(key(request.with_generation(messages=[*messages[:-1], prompt])), embedding)


class SimilarPrompts:
    """The last prompt of each gist that an answer is kept of. In this process alone, with the age and the bounds of a
    `MemoryStore` in addition to that of the answers."""

    def __init__(self, knobs: KnobFile[CacheKnobs], clock: Clock = time.monotonic) -> None:
        self._knobs = knobs
        self._store = MemoryStore(knobs, clock)

    def __len__(self) -> int:
        return len(self._store)

    async def find(self, wording: Wording) -> bytes | None:
        """The key of the answer to another wording, if its cosine to this one reaches the current threshold."""
        value = await self._store.get(wording.key)
        if value is None:
            return None
        kept = _decode(value)
        cosine = round(float(wording.embedding @ np.frombuffer(kept.embedding, np.float32)), COSINE_DIGITS)
        return kept.answer if cosine >= self._knobs.active.semantic_threshold else None

    async def put(self, wording: Wording, answer: bytes) -> None:
        """Note that an answer to this wording is kept under the key `answer`."""
        embedding = wording.embedding.astype(np.float32, copy=False).tobytes()
        await self._store.put(wording.key, _encode(_Kept(answer, embedding)))

    def clear(self) -> None:
        self._store.clear()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode
