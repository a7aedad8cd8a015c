"""Sealed reasoning of answers that called tools, for callers whose API cannot carry it: the next step gets it back."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.answering.answer import Answer
from tiers.native_content import NativeContent
from tiers.tier import ChatMessage
from tiers.tool_types import ToolCall

MOST_BYTES = 64 * 2**20
"""Of all that is kept."""
SECONDS = 3600.0
"""For how long a turn is kept."""
_encode = msgspec.json.Encoder(order="deterministic").encode


class KeptReasoning:
    """Turns of assistants in the form of the server that gave them, in memory alone: at most `most_bytes`, each for
    `seconds`. Only of requests whose texts may be stored, and only for the key that they belong to.

    A turn is known by its text and its calls, so that one which its caller has changed is not replaced.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_bytes, self._seconds, self._clock = most_bytes, seconds, clock
        self._turns: dict[bytes, _Kept] = {}  # oldest first
        self._size = 0

    def __len__(self) -> int:
        return len(self._turns)

    def keep(self, answer: Answer) -> None:
        """Keep what an answer's server said, if its caller cannot give it back."""
        request = answer.request
        carried = None if request.generation.native is None else request.generation.native.form
        if not request.consent.reuse or (request.credential is not None and request.key_id is None):
            return
        for choice in answer.choices:
            blocks = tuple(piece.block for piece in choice.native if piece.block is not None)
            if not choice.calls or not any(block.seal for block in blocks) or choice.native[0].form == carried:
                continue
            content = NativeContent(choice.native[0].form, blocks)
            kept = _Kept(content, self._clock(), request.key_id)
            self._put(_key(request, choice.text, choice.tool_calls), kept)

    def given_back(self, request: InferenceRequest) -> Sequence[ChatMessage]:
        """The turns of `request`, with what is kept of them."""
        messages = request.generation.messages or []
        if not self._turns or not request.consent.reuse:
            return messages
        return [self._with_kept(request, turn) if turn.tool_calls else turn for turn in messages]

    def _with_kept(self, request: InferenceRequest, turn: ChatMessage) -> ChatMessage:
        kept = self._turns.get(_key(request, turn.content, turn.tool_calls))
        if kept is None or kept.at < self._clock() - self._seconds:
            return turn
        return msgspec.structs.replace(turn, kept=kept.content)

    def forget(self, key_id: str) -> None:
        """Drop what is kept for this key."""
        self._drop([turn for turn, kept in self._turns.items() if kept.key_id == key_id])

    def _put(self, key: bytes, kept: "_Kept") -> None:
        self._drop([key] if key in self._turns else [])
        self._turns[key] = kept
        self._size += kept.content.size
        expired = self._clock() - self._seconds
        while self._turns and (self._size > self._most_bytes or next(iter(self._turns.values())).at < expired):
            self._drop([next(iter(self._turns))])

    def _drop(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._size -= self._turns.pop(key).content.size


class _Kept(NamedTuple):
    """What a server said, when, and for which key."""

    content: NativeContent
    at: float
    key_id: str | None


def _key(request: InferenceRequest, text: str, calls: Sequence[ToolCall]) -> bytes:
    said = [(call.id, call.name, call.parsed_arguments()) for call in calls]
    whose = request.caller.tenant, request.key_id or ""
    return hashlib.blake2b(_encode((whose, text.strip(), said)), digest_size=32).digest()
