"""Streams of deltas: several merged in the order in which their items arrive, one choice collected, its blocks one
after another, and how uncertain its tokens are.

Async generators or answers become one stream; the deltas of a choice become its text, reasoning, log-probabilities and
tool calls.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple, TypeVar

import msgspec

from inference_core.protocol.commands import EvidenceRequest
from tiers.conversation import Call, Dialect, Opaque, OpaquePiece, ToolCallDelta, UrlCitation
from tiers.tier import Delta, FinishReason, GenerationRequest, TextLogprob, Tier, Usage

T = TypeVar("T")


async def merged_answers(answers: Sequence[AsyncGenerator[Delta, None]], n: int) -> AsyncGenerator[Delta, None]:
    """Yield the deltas of all `answers`, with `n` choices each, as those of one: choice `j` of answer `i` has index
    `i * n + j`, and one end comes last."""
    numbered = [_numbered(answer, index * n) for index, answer in enumerate(answers)]
    ends: list[Delta] = []
    async with aclosing(merge(numbered)) as deltas:
        async for delta in deltas:
            if delta.end is None:
                yield delta
            else:
                ends.append(delta)
    yield Delta.last_of(ends)


async def _numbered(answer: AsyncGenerator[Delta, None], first: int) -> AsyncGenerator[Delta, None]:
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            delta.index += first
            yield delta


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all `streams`; the first error ends it. Closing closes every stream before it returns."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield item
        return
    queue: asyncio.Queue[T | _End] = asyncio.Queue(maxsize=len(streams))
    pumps = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        open_streams = len(streams)
        while open_streams:
            received = await queue.get()
            if not isinstance(received, _End):
                yield received
                continue
            if received.error is not None:
                raise received.error
            open_streams -= 1
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


class _End:
    """A stream has ended, with `error` if it is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


async def _pump(stream: AsyncGenerator[T, None], queue: "asyncio.Queue[T | _End]") -> None:
    end = _End()
    try:
        async for item in stream:
            await queue.put(item)
    except Exception as error:
        end = _End(error)
    await queue.put(end)


def joined_call(pieces: Sequence[ToolCallDelta]) -> Call:
    """Return the call that these pieces are."""
    return Call(
        id="".join(piece.id for piece in pieces),
        name="".join(piece.name for piece in pieces),
        arguments="".join(piece.arguments for piece in pieces),
        source=next((Opaque("chat", piece.extra_content) for piece in pieces if piece.extra_content), None),
    )


class CollectedChoice(msgspec.Struct):
    """One choice so far, in pieces: joining them at the end keeps long answers linear."""

    echo: str = ""
    """The prompt that it repeats before its answer."""
    pieces: list[str] = []
    thoughts: list[str] = []
    logprobs: list[TextLogprob] = []
    """Log-probabilities of the prompt and the answer."""
    calls: list[list[ToolCallDelta]] = []
    finish_reason: FinishReason | None = None
    stop_sequence: str | None = None
    usage: Usage | None = None
    """The request's usage, once it has ended."""
    opaque: dict[Dialect, list[Opaque]] = {}
    """The finished blocks that only one dialect reads, by dialect."""
    opaque_end: OpaquePiece | None = None
    """The server's event that ended the answer."""
    refused: list[int] = []
    """The places of the pieces that are a refusal."""
    annotations: list[UrlCitation] = []
    """What the text cites."""

    def take(self, delta: Delta) -> None:
        if delta.echo:
            self.echo = delta.text
        elif delta.text:
            if delta.refusal:
                self.refused.append(len(self.pieces))
            self.pieces.append(delta.text)
        if delta.annotations:
            self.annotations += delta.annotations
        if delta.reasoning:
            self.thoughts.append(delta.reasoning)
        if delta.logprobs and not delta.reasoning:
            self.logprobs += delta.logprobs
        for piece in delta.tool_calls:
            while len(self.calls) <= piece.index:
                self.calls.append([])
            self.calls[piece.index].append(piece)
        if (opaque := delta.opaque) is not None:
            if opaque.block is not None:
                self.opaque.setdefault(opaque.dialect, []).append(opaque.block)
            if delta.finish_reason is not None:
                self.opaque_end = opaque
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_sequence = delta.stop_sequence or self.stop_sequence
        if delta.end is not None:
            self.usage = delta.end.usage

    @property
    def tool_calls(self) -> list[Call]:
        """The tool calls, each joined from its pieces."""
        return [joined_call(pieces) for pieces in self.calls] if self.calls else []

    @property
    def text(self) -> str:
        """The answer, or what the model said instead of one."""
        return "".join(self.pieces)

    @property
    def content(self) -> str:
        """The answer without what is a refusal."""
        if not self.refused:
            return self.text
        refused = set(self.refused)
        return "".join([piece for index, piece in enumerate(self.pieces) if index not in refused])

    @property
    def refusal(self) -> str:
        """What the model said instead of an answer."""
        return "".join([self.pieces[index] for index in self.refused]) if self.refused else ""

    @property
    def reasoning(self) -> str:
        return "".join(self.thoughts)


BlockKey = Literal["thinking", "text", "refusal"] | int

# In text between strings: what opens or closes something. In a string: what ends it, or an escape, which may be cut.
_OUTSIDE = re.compile(r'[{}\[\]"]')
_INSIDE = re.compile(r'"|\\(.|\Z)', re.DOTALL)


class Piece(NamedTuple):
    """A piece of the block `key`: `thinking`, `text`, `refusal`, or the call of that number."""

    key: BlockKey
    text: str
    call: ToolCallDelta | None = None


def pieces_of(delta: Delta) -> list[Piece]:
    """The pieces of one delta, in the order that `Delta` promises."""
    pieces = []
    if delta.reasoning:
        pieces.append(Piece("thinking", delta.reasoning))
    if delta.text:
        pieces.append(Piece("refusal" if delta.refusal else "text", delta.text))
    pieces += [Piece(call.index, call.arguments, call) for call in delta.tool_calls]
    return pieces


class BlockOrder:
    """Passes pieces on such that a block has ended when a piece of another one comes, for dialects whose blocks cannot
    be interleaved. While a call's arguments are incomplete, pieces of anything else wait; servers send calls one after
    another, so that nearly nothing ever does.

    There is one block per call; pieces that come for it after its end are dropped. Thoughts and texts that go on after
    another block are blocks of their own.
    """

    def __init__(self) -> None:
        self._open: BlockKey | None = None
        self._arguments = _Arguments()  # of the open call
        self._ended_calls: set[int] = set()
        self._waiting: dict[BlockKey, list[Piece]] = {}  # by block, oldest first

    @property
    def passes_text(self) -> bool:
        """Whether a piece of text would be passed on at once, as more of the open block."""
        return self._open == "text" and not self._waiting

    def put(self, piece: Piece) -> list[Piece]:
        """Return the pieces that can be shown now; their order is that of blocks."""
        if piece.key != self._open:
            if self._waiting or self._is_incomplete:
                self._waiting.setdefault(piece.key, []).append(piece)
                return []
            if piece.key in self._ended_calls:
                return []
            self._begin(piece.key)
        if piece.call is not None:
            self._arguments.add(piece.text)
        ready = [piece]
        while self._waiting and not self._is_incomplete:
            ready += self._next()
        return ready

    def rest(self) -> list[Piece]:
        """Return what still waits, after the last piece: nothing more comes for the open block."""
        ready: list[Piece] = []
        while self._waiting:
            ready += self._next()
        return ready

    def _next(self) -> list[Piece]:
        """Turn to the block that has waited longest; return its pieces."""
        key = next(iter(self._waiting))
        pieces = self._waiting.pop(key)
        if key in self._ended_calls:
            return []
        self._begin(key)
        for piece in pieces:
            self._arguments.add(piece.text)
        return pieces

    def _begin(self, key: BlockKey) -> None:
        if isinstance(self._open, int):
            self._ended_calls.add(self._open)
        self._open, self._arguments = key, _Arguments()

    @property
    def _is_incomplete(self) -> bool:
        """Whether more of the open call's arguments must come."""
        return isinstance(self._open, int) and not self._arguments.are_whole


class _Arguments:
    """The arguments of a call as they come. Every character is looked at once, and only if someone asks."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._read = 0  # how many pieces have been looked at
        self._depth = 0
        self._in_string = self._cut_escape = False
        self._whole: bool | None = None  # once brackets are closed: whether it is an object

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    @property
    def are_whole(self) -> bool:
        """Whether they are a JSON object, to which nothing can be added."""
        while self._whole is None and self._read < len(self._pieces):
            self._scan(self._pieces[self._read])
            self._read += 1
        return bool(self._whole)

    def _scan(self, text: str) -> None:
        at, self._cut_escape = int(self._cut_escape and text != ""), self._cut_escape and text == ""
        while (match := (_INSIDE if self._in_string else _OUTSIDE).search(text, at)) is not None:
            at, mark = match.end(), match[0]
            if mark == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                self._cut_escape = mark == "\\"
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    self._whole = is_object("".join(self._pieces))
                    return


def is_object(arguments: str) -> bool:
    """Whether the arguments of a call are a whole JSON object."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


# Temperature of a second sample: at a low temperature it would only repeat the first, with which it is compared.
SECOND_TEMPERATURE = 0.8


def asking_uncertainty(request: GenerationRequest, tier: Tier, tells_logprobs: bool) -> GenerationRequest:
    """Return `request` with a request for the entropy of each token's distribution if the tier's model reports it, else
    for log-probabilities where the tier `tells_logprobs`: others may reject that."""
    if tier.num_layers:
        return msgspec.structs.replace(request, evidence=EvidenceRequest(tokens=True))
    if request.sampling.logprobs is not None or not tells_logprobs:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, logprobs=0))


def uncertainty_of(delta: Delta) -> list[float]:
    """Return the uncertainty of each token of the answer's text in `delta`, in nats: the entropy of its distribution if
    reported, else its negative log-probability; empty for thoughts, and if neither is reported."""
    if delta.reasoning or delta.echo:
        return []
    if delta.evidence is not None:
        return [token.entropy for token in delta.evidence.tokens]
    return [-token.logprob for token in delta.logprobs or [] if token.logprob is not None]
