"""What a server needs back of its earlier turns: kept for the next step, and given back to the server that said it.

A turn is found by its first call, or by the result that it follows; who made it is known even where its client carries
all that is needed.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.answering.answer import Answer
from gateway.inference.answering.turn_stores import SECONDS, KeptTurn, TurnStore
from tiers.chat_state import FORM, MOST_STATE_BYTES, collected_state, has_state, kept_state
from tiers.collected_choice import CollectedChoice
from tiers.native_content import NativeBlock, NativeContent
from tiers.tier import ChatMessage
from tiers.tool_types import ToolCall

K = TypeVar("K")
V = TypeVar("V")
MOST_BYTES = 64 * 2**20
"""Of all that this process has in memory."""
MOST_KNOWN = 100_000
"""Of turns of which nothing is kept, and of thoughts whose maker is known."""
_HERE = "here"
"""The maker of what a tier in process thought."""
FRESH_SECONDS = 600.0
"""For how long a process trusts its memory where a store is shared: others may have erased a user meanwhile."""


class _Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who made a turn, a digest of its text and calls, and what is given back of it."""

    maker: str
    said: bytes
    content: NativeContent | None = None


class _InMemory(NamedTuple):
    turn: _Turn
    until: float
    key_id: str | None


class KeptReasoning:
    """Turns of the requests whose texts may be stored, each only for the key that it belongs to. Of other requests it
    is known who made a turn, in memory alone.

    `store`: shared by all processes; without one there is this memory, of at most `most_bytes`, each for `seconds`.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
        store: TurnStore | None = None,
    ) -> None:
        self.store = store
        self._most_bytes, self._seconds, self._clock = most_bytes, seconds, clock
        self._turns: dict[str, _InMemory] = {}  # oldest first
        self._absent: dict[str, float] = {}  # until when nothing is there, oldest first
        self._state: dict[bytes, str] = {}  # makers by digest, oldest first
        self._size = 0

    def __len__(self) -> int:
        return len(self._turns)

    def keep(self, answer: Answer) -> list[KeptTurn]:
        """Keep what an answer's server said, and return what is for the store, too."""
        request, maker = answer.request, answer.maker or _HERE
        messages = request.generation.messages
        if messages is None:
            return []
        rows: list[KeptTurn] = []
        after_result = bool(messages) and messages[-1].role == "tool"
        for choice in answer.choices:
            if not (after_result or choice.reasoning or choice.tool_calls or choice.native):
                # Only a text, as most answers are.
                continue
            for said in _state_of(choice.reasoning, collected_state(choice), choice.tool_calls):
                _note(self._state, said, maker)
            turn_id = _turn_id(request, choice.text, choice.tool_calls, messages[-1] if messages else None)
            if turn_id is None:
                continue
            turn = _Turn(maker, _said(choice.text, choice.tool_calls), _content(request, choice))
            is_sealed = any(piece.block is not None and piece.block.seal for piece in choice.native)
            if turn.content is None and not is_sealed and not choice.reasoning:
                _note(self._absent, turn_id, self._clock() + self._lifetime)
                continue
            self._put(turn_id, turn, request.key_id)
            if maker != _HERE and self.store is not None and _may_keep(request):
                rows.append(_row(request, turn_id, turn))
        return rows

    async def save(self, rows: Sequence[KeptTurn]) -> None:
        """Put turns into the store."""
        if self.store is not None:
            await self.store.put(rows)

    async def given_back(self, request: InferenceRequest) -> Sequence[ChatMessage]:
        """The turns of `request`, each with its maker and what is kept of it."""
        messages = request.generation.messages or []
        ids = {
            place: turn_id
            for place, message in enumerate(messages)
            if message.role == "assistant"
            and (turn_id := _turn_id(request, message.content, message.tool_calls, messages[place - 1]))
        }
        now = self._clock()
        unknown = [turn_id for turn_id in ids.values() if not self._knows(turn_id, now)]
        if unknown and self.store is not None and _may_keep(request):
            found = await self.store.get(unknown)
            for turn_id in unknown:
                if (content := found.get(turn_id)) is not None:
                    self._put(turn_id, _decode(content), request.key_id)
                else:
                    _note(self._absent, turn_id, now + self._lifetime)
        may_keep = _may_keep(request)
        return [self._with_kept(message, ids.get(place), may_keep) for place, message in enumerate(messages)]

    def _knows(self, turn_id: str, now: float) -> bool:
        kept = self._turns.get(turn_id)
        if kept is not None and kept.until <= now:
            self._drop([turn_id])
            kept = None
        return kept is not None or self._absent.get(turn_id, 0.0) > now

    def _with_kept(self, message: ChatMessage, turn_id: str | None, may_keep: bool) -> ChatMessage:
        if message.role != "assistant":
            return message
        kept = None if turn_id is None else self._turns.get(turn_id)
        turn = None if kept is None else kept.turn
        # Some servers give every call the same id: what the turn itself has is surer.
        carried = _state_of(message.reasoning, message.state, message.tool_calls)
        maker = next((self._state[said] for said in carried if said in self._state), None)
        if turn is None or maker not in (None, turn.maker):
            return message if maker is None else msgspec.structs.replace(message, maker=maker)
        content = turn.content if may_keep else None
        if content is not None and content.form != FORM and turn.said != _said(message.content, message.tool_calls):
            # The whole turn would be replaced, which its client has changed.
            content = None
        if content is None and not has_state(message) and message.native is None:
            return message
        return msgspec.structs.replace(message, kept=content or message.kept, maker=turn.maker)

    @property
    def _lifetime(self) -> float:
        return self._seconds if self.store is None else min(self._seconds, FRESH_SECONDS)

    async def erase(self, key_id: str) -> None:
        """Drop what is kept for this key; other processes forget it within `FRESH_SECONDS`."""
        self.forget(key_id)
        if self.store is not None:
            await self.store.forget(key_id, time.time())

    def forget(self, key_id: str) -> None:
        """Drop what this process has of this key."""
        self._drop([turn for turn, kept in self._turns.items() if kept.key_id == key_id])

    def _put(self, turn_id: str, turn: _Turn, key_id: str | None) -> None:
        self._drop([turn_id] if turn_id in self._turns else [])
        self._absent.pop(turn_id, None)
        now = self._clock()
        self._turns[turn_id] = _InMemory(turn, now + self._lifetime, key_id)
        self._size += _size(turn)
        while self._turns and (self._size > self._most_bytes or next(iter(self._turns.values())).until <= now):
            self._drop([next(iter(self._turns))])

    def _drop(self, turn_ids: Iterable[str]) -> None:
        for turn_id in turn_ids:
            self._size -= _size(self._turns.pop(turn_id).turn)


def _row(request: InferenceRequest, turn_id: str, turn: _Turn) -> KeptTurn:
    return KeptTurn(
        turn_id=turn_id,
        key_id=request.key_id,
        tenant=request.caller.tenant,
        content=_encode(turn),
        created_at=request.created_at,
    )


def _may_keep(request: InferenceRequest) -> bool:
    """Whether its texts may be stored, and belong to somebody."""
    return request.consent.reuse and (request.credential is None or request.key_id is not None)


def _content(request: InferenceRequest, choice: CollectedChoice) -> NativeContent | None:
    """What is given back of an answer: its server's own form, unless the client carries that; else thoughts and other
    state of a chat, which many clients drop although the API has fields for it."""
    if not _may_keep(request):
        return None
    blocks = tuple(piece.block for piece in choice.native if piece.form != FORM and piece.block is not None)
    if not blocks:
        return kept_state(choice)
    content = NativeContent(next(piece.form for piece in choice.native if piece.form != FORM), blocks)
    carried = None if request.generation.native is None else request.generation.native.form
    is_needed = content.is_sealed and content.form != carried and content.size <= MOST_STATE_BYTES
    return content if is_needed else None


def _turn_id(request: InferenceRequest, text: str, calls: Sequence[ToolCall], before: ChatMessage | None) -> str | None:
    """What a turn is found by: its first call, or its text after the result of one; None for a turn of neither."""
    if calls:
        key: tuple[str, ...] = ("call", calls[0].id, calls[0].name, _canonical(calls[0].arguments))
    elif before is not None and before.role == "tool":
        key = "after", before.tool_call_id or "", text.strip()
    else:
        return None
    whose = request.caller.tenant, request.key_id or ""
    return hashlib.blake2b(_json((whose, key)), digest_size=32).hexdigest()


def _said(text: str, calls: Sequence[ToolCall]) -> bytes:
    said = text.strip(), [(call.id, call.name, _canonical(call.arguments)) for call in calls]
    return hashlib.blake2b(_json(said), digest_size=16).digest()


def _canonical(arguments: str) -> str:
    """Arguments as any client may write them again; those that are no JSON stay as they are."""
    try:
        return _json(msgspec.json.decode(arguments)).decode()
    except (msgspec.DecodeError, RecursionError, ValueError):
        return arguments


def _state_of(reasoning: str, state: Sequence[NativeBlock], calls: Sequence[ToolCall]) -> Iterator[bytes]:
    """Digests of what a turn has that is for its maker alone."""
    if reasoning:
        yield _digest(reasoning)
    for block in state:
        yield _digest(block.json.decode(errors="replace"))
    for call in calls:
        if call.extra_content:
            yield _digest(call.extra_content.decode(errors="replace"))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).digest()


def _size(turn: _Turn) -> int:
    return 256 + (0 if turn.content is None else turn.content.size)


def _note(known: dict[K, V], key: K, value: V) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]


_json = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Turn).decode
