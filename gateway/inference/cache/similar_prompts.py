"""Prompts that answers are kept of, to be found by another wording of the same.

The embedding is the classifier's own, which routing has made anyway; the guard is `gist`.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.base.knobs import KnobFile
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.cache.gist import gist
from gateway.inference.cache.stores import CacheKnobs, Clock, MemoryStore

Embedding = npt.NDArray[np.float32]
# Longer prompts seldom come again in other words; bounds what a lookup costs.
MAX_CHARS = 4000
# A vector's cosine to itself is 1 but for rounding.
COSINE_DIGITS = 5


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """`answer`: the key that the answer is kept under. `embedding`: float32, as bytes."""

    answer: bytes
    embedding: bytes


class Wording(NamedTuple):
    """One wording of a prompt: the `key` of the request that has the gist in the prompt's place, so that none is found
    for another tenant, tier or parameter, and the prompt's `embedding`, of unit length."""

    key: bytes
    embedding: Embedding


def wording_of(
    request: InferenceRequest, embedding: Embedding, key: Callable[[InferenceRequest], bytes]
) -> Wording | None:
    """Of a chat of one user turn without tools, after instructions at most; None for every other request."""
    messages = request.generation.messages
    if (
        not messages
        or request.generation.tooling is not None
        or messages[-1].role != "user"
        or len(messages[-1].content) > MAX_CHARS
    ):
        return None
    if any(message.role not in ("system", "developer") for message in messages[:-1]):
        return None
    prompt = msgspec.structs.replace(messages[-1], content=gist(messages[-1].content))
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
        """Forget everything."""
        self._store.clear()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode
