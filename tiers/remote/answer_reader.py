"""From the reply of a server elsewhere to deltas: counted, within the bounds of the answer, in its caller's words.

An answer ends at the caller's stop strings also where its server takes no notice of them, or does not take them. An
answer whose caller has left is read to its end where its provider bills it to the end: counts come last, and without
them a caller who leaves early would pay for what it has read alone.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Literal

from inference_core.io.background_tasks import once
from inference_core.tokenization.tokenizer import StopStrings
from tiers.dialects.adapted_request import Adapted, restored
from tiers.dialects.dialect import ServerDialect
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.lenient_json import NotAnObjectError, SplitCharacters, objects_in
from tiers.dialects.server_error import ErrorObject, ServerSaidError, parse_error
from tiers.dialects.usage_counter import UNCOUNTED_JSON_BYTES, AnswerBounds, Tally
from tiers.dialects.written.inline_text import InlineText
from tiers.remote.http_exchange import is_whole, up_to
from tiers.tier import Delta, GenerationRequest, Usage


class StopsHere:
    """Cuts the text of each choice of one answer before the first of `stops`. `has_cut`: whether one was there."""

    def __init__(self, stops: tuple[str, ...], tally: Tally, *, include: bool) -> None:
        self._stops, self._tally, self._include = stops, tally, include
        self._choices: dict[int, StopStrings] = {}
        self.has_cut = False

    def cut(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas up to the end of each choice; what follows it is not read any more."""
        cut_deltas: list[Delta] = []
        ended: set[int] = set()
        for delta in deltas:
            if delta.index in ended:
                continue
            choice = self._choices.get(delta.index)
            if choice is None:
                choice = self._choices[delta.index] = StopStrings(self._stops, include=self._include)
            if delta.text:
                delta.text, stop = choice.push(delta.text)
                if stop is not None:
                    self.has_cut = True
                    delta.tool_calls = []
                    end = Delta(index=delta.index, finish_reason="stop", stop_sequence=stop, at_once=delta.at_once)
                    cut_deltas += [delta, end]
                    self._tally.unfinished.discard(delta.index)
                    ended.add(delta.index)
                    continue
            elif delta.finish_reason is not None and (held := choice.flush()):
                cut_deltas.append(Delta(index=delta.index, text=held))
            cut_deltas.append(delta)
        return cut_deltas


# How a code block of JSON begins, and what counts of the JSON in it.
_FENCE = re.compile(r"(?:(?:```|~~~)(?:json5?|jsonc|javascript|js)?|^\s*`)\s*(?=[\[{])", re.IGNORECASE)
_STRUCTURE, _IN_STRING = re.compile(r'["\[\]{}]'), re.compile(r'["\\]')
_MOST_BEFORE = 2000
"""Characters before a code block, which wait for it."""
_MOST_TRIED = 16
"""Places of a short answer at which its JSON may begin."""


class _FencedChoice:
    """The text of one choice, which is to be JSON."""

    def __init__(self) -> None:
        self._state: Literal["before", "plain", "json", "behind"] = "before"
        self._held = ""
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def push(self, text: str) -> str:
        """Return what the next piece adds to the JSON; what may stand before a code block waits."""
        if self._state == "before":
            text, self._held = self._held + text, ""
            begun = text.lstrip()[:1]
            if (fence := _FENCE.search(text)) is not None and begun not in tuple('[{"'):
                self._state, text = "json", text[fence.end() :]
            elif begun in tuple('[{"') or len(text) > _MOST_BEFORE:
                self._state = "plain"
            else:
                self._held, text = text, ""
        if self._state == "json":
            return self._json(text)
        return "" if self._state == "behind" else text

    def flush(self) -> str:
        """Return what waits, at the end: the JSON in it, if it has some among other words."""
        held, self._held = self._held, ""
        for opening in "{[":
            for start in [index for index, character in enumerate(held) if character == opening][:_MOST_TRIED]:
                try:
                    value, end = _read_json(held, start)
                except (ValueError, RecursionError):
                    continue
                if value:
                    return held[start:end]
        return held

    def _json(self, text: str) -> str:
        """Return the text up to the end of the JSON."""
        position = 0
        while position < len(text):
            if self._is_escaped:
                self._is_escaped, position = False, position + 1
                continue
            match = (_IN_STRING if self._in_string else _STRUCTURE).search(text, position)
            if match is None:
                break
            position = match.end()
            if match[0] == "\\":
                self._is_escaped = True
            elif match[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if match[0] in "[{" else -1
                if self._depth == 0:
                    self._state = "behind"
                    return text[:position]
        return text


class WithoutFences:
    """Takes the code block from around JSON, and what stands around it, in the choices of one answer."""

    def __init__(self) -> None:
        self._choices: dict[int, _FencedChoice] = {}

    def cut(self, deltas: list[Delta]) -> list[Delta]:
        cut_deltas: list[Delta] = []
        for delta in deltas:
            choice = self._choices.setdefault(delta.index, _FencedChoice())
            if delta.text and not delta.refusal:
                delta.text = choice.push(delta.text)
            if (delta.finish_reason is not None or delta.refusal) and (held := choice.flush()):
                cut_deltas.append(Delta(index=delta.index, text=held, at_once=delta.at_once))
            cut_deltas.append(delta)
        return cut_deltas


_read_json = json.JSONDecoder().raw_decode

# Of an object that comes in several events.
MOST_PARTS, MOST_CUT_BYTES = 16, 256 * 1024
_OPENING = (b"", b"{", b"[", b'"')


class AnswerReader:
    """Reads one answer. `ended`: whether a stream's last event was read. `note_seals`: called with deltas, where they
    are wanted in the form of the server's API, too. `inline`: of an answer that may have more than text in it. Raises
    `TierError`; `TierAnswerTooLongError` beyond `bounds`."""

    def __init__(
        self,
        dialect: ServerDialect,
        tally: Tally,
        bounds: AnswerBounds,
        note_seals: Callable[[list[Delta]], None],
        inline: InlineText | None = None,
    ) -> None:
        self.ended = False
        self._inline = inline
        self._dialect, self._tally, self._bounds, self._note_seals = dialect, tally, bounds, note_seals
        self._characters = SplitCharacters()
        # The parts of an object that is not whole yet, and why the first could not be read: not the error, whose
        # traceback holds the frames that hold this reader.
        self._cut: list[bytes] = []
        self._broken: str | None = None
        # The server's count before the last event with text: a later one counts also the text that `inline` holds back.
        self._count_before_text: Usage | None = None

    def events(self, events: list[ServerSentEvent]) -> list[Delta]:
        """Return the deltas of events that came at once."""
        tally = self._tally
        said: list[Delta] = []
        if events and len(events[0].data) > UNCOUNTED_JSON_BYTES:
            # Only the first can be larger than the piece that completed it.
            self._bounds.require_json(events[0].data)
        for event in events:
            count = tally.reported
            deltas = self._read(event)
            if deltas is None:
                self.ended = True
                said += self._ending(marked=True)
                break
            if tally.joins_characters:
                deltas = self._characters.joined(deltas)
            if self._inline is not None:
                if [True for delta in deltas if delta.text]:
                    self._count_before_text = count
                deltas = self._inline.moved(deltas)
            deltas = tally.passed(deltas)
            if tally.opaque:
                self._note_seals(deltas)
            said += deltas
        else:
            if tally.said > self._bounds.said:
                self._bounds.require_said(tally.said)
        return _with_pieces(said)

    def last_events(self, events: list[ServerSentEvent]) -> list[Delta]:
        """Return the deltas of those events that the end of a stream completes, and of the end itself."""
        said = self.events(events)
        if self._broken is not None:
            raise NotAnObjectError(self._broken)
        if not self.ended:
            said += self._tally.passed(self._dialect.read_end(self._tally))
            said += self._ending(marked=False)
        return _with_pieces(said)

    def whole(self, body: bytes) -> list[Delta]:
        """Return the deltas of an answer in one piece, or of all events of a stream that is sent in its place."""
        bounds, tally = self._bounds, self._tally
        if not is_whole(body):
            parser = self._dialect.parser()
            if events := [*parser.feed(body), *parser.flush()]:
                return _at_once(self.last_events(events))
        if len(body) > UNCOUNTED_JSON_BYTES:
            bounds.require_wire(len(body), bounds.whole)
            bounds.require_json(body)
        try:
            deltas = self._dialect.read_whole(body, tally)
        except NotAnObjectError:
            objects, rest = objects_in(body)
            if rest or not objects:
                raise
            deltas = [delta for json_object in objects for delta in self._dialect.read_whole(json_object, tally)]
        if tally.joins_characters:
            deltas = self._characters.joined(deltas)
        if self._inline is not None:
            deltas = self._inline.moved(deltas, whole=True)
        deltas = tally.passed(deltas) + self._ending(marked=True)
        if tally.opaque:
            self._note_seals(deltas)
        if tally.said > bounds.said:
            bounds.require_said(tally.said)
        self.ended = True
        return _at_once(deltas)

    def _read(self, event: ServerSentEvent) -> list[Delta] | None:
        """Return the deltas of an event, also of one with several objects, or with a part of one: some proxies make an
        event of whatever they read at once. None for the last event."""
        if event.event in ("error", "Error") and not event.is_end:
            raise ServerSaidError(parse_error(event.data))
        if event.data[:1] != b"{" and not event.is_end and event.is_comment:
            return []
        cut, broken = self._cut, self._broken
        self._cut, self._broken = [], None
        if broken is not None and event.is_end:
            raise NotAnObjectError(broken)
        whole = ServerSentEvent(event.event, b"".join((*cut, event.data))) if cut else event
        try:
            return self._dialect.read_event(whole, self._tally)
        except NotAnObjectError as error:
            objects, rest = objects_in(whole.data)
            # What another event follows that is whole was no part.
            is_broken = broken is not None and not objects and not objects_in(event.data)[1]
            if rest[:1] not in _OPENING or is_broken or len(cut) > MOST_PARTS or len(rest) > MOST_CUT_BYTES:
                broken = broken or str(error)
                # Words alone may say what is the matter.
                is_words = not cut and event.data[:1].isalpha()
                raise (ServerSaidError(ErrorObject(broken)) if is_words else NotAnObjectError(broken)) from None
            if rest:
                self._cut, self._broken = [rest] if objects else [*cut, event.data], str(error)
        deltas: list[Delta] = []
        for json_object in objects:
            deltas += self._dialect.read_event(ServerSentEvent(event.event, json_object), self._tally) or []
        return deltas

    def _ending(self, *, marked: bool) -> list[Delta]:
        rest = self._characters.rest() if self._tally.joins_characters else []
        if self._inline is not None:
            rest += self._inline.rest(self._tally)
        if rest and self._tally.reported is not self._count_before_text:
            self._tally.note_counted()
        left = self._tally.passed(rest) if rest else []
        return left + self._tally.ended(marked=marked)


class ReplyReader(AnswerReader):
    """Reads the reply to a request that was sent as `fitted`: deltas have the caller's names of tools, and end at its
    `stops`. `size`: bytes of a stream so far."""

    def __init__(
        self,
        dialect: ServerDialect,
        tally: Tally,
        bounds: AnswerBounds,
        note_seals: Callable[[list[Delta]], None],
        inline: InlineText | None,
        fitted: Adapted,
        stops: tuple[str, ...],
        *,
        include_stop: bool,
        is_json: bool = False,
    ) -> None:
        """`is_json`: the text is to be JSON, of which code blocks are no part."""
        super().__init__(dialect, tally, bounds, note_seals, inline)
        self.inline, self.size = inline, 0
        self._stopping = StopsHere(stops, tally, include=include_stop) if stops else None
        self._parser, self._tool_names = dialect.parser(), fitted.tool_names
        self._unfencing = WithoutFences() if is_json else None
        self._is_adapted = bool(self._stopping or self._tool_names or is_json)

    @property
    def has_cut(self) -> bool:
        """Whether the answer was cut at a stop string."""
        return self._stopping is not None and self._stopping.has_cut

    async def reply(self, pieces: AsyncIterator[bytes]) -> list[Delta]:
        """Return the deltas of a reply that is no stream."""
        deltas = self.whole(await up_to(self._bounds.whole + 1, pieces, lenient=True))
        return self._as_asked(deltas) if self._is_adapted else deltas

    def piece(self, piece: bytes) -> list[Delta]:
        """Return the deltas of the next piece of a stream."""
        self.size += len(piece)
        if self.size > self._bounds.wire:
            self._bounds.require_wire(self.size, self._bounds.wire)
        deltas = self.events(self._parser.feed(piece))
        return self._as_asked(deltas) if self._is_adapted else deltas

    def end(self) -> list[Delta]:
        """Return the deltas of what the end of a stream completes."""
        if self.ended or not self._tally.unfinished:
            return []
        return self._as_asked(self.last_events(self._parser.flush()))

    def _as_asked(self, deltas: list[Delta]) -> list[Delta]:
        if self._tool_names and deltas:
            deltas = restored(deltas, self._tool_names)
        if self._unfencing is not None:
            deltas = self._unfencing.cut(deltas)
        return deltas if self._stopping is None else self._stopping.cut(deltas)


def _at_once(deltas: list[Delta]) -> list[Delta]:
    for delta in deltas:
        delta.at_once, delta.pieces = True, 0
    return deltas


def _with_pieces(deltas: list[Delta]) -> list[Delta]:
    """Note in the first of `deltas` with output, which came at once, how many of them have any."""
    said = [delta for delta in deltas if delta.text or delta.reasoning or delta.tool_calls]
    if said:
        said[0].pieces = len(said)
    return deltas


READ_SECONDS = 120.0
READ_BYTES = 2**20
"""Of texts, thoughts and calls after the caller has left."""
MOST_READ, MOST_READ_OF_ONE = 256, 32
"""Answers of this process, and of one tenant, that are read on at once. Further ones are closed, and estimated."""
AHEAD = 16
"""Deltas that are read before the caller takes them."""


class ReadingOn:
    """The answers of a process that are read on without their callers."""

    def __init__(
        self,
        most: int = MOST_READ,
        most_of_one: int = MOST_READ_OF_ONE,
        seconds: float = READ_SECONDS,
        size: int = READ_BYTES,
    ) -> None:
        self._most, self._most_of_one, self._seconds, self._size = most, most_of_one, seconds, size
        self._tenants: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """The number of answers that are read on now."""
        return self._tenants.total()

    async def answer(
        self,
        deltas: AsyncGenerator[Delta, None],
        request: GenerationRequest,
        tally: Tally,
        left: Callable[[], bool],
        tasks: set[asyncio.Task[None]],
    ) -> AsyncGenerator[Delta, None]:
        """Yield `deltas`. If the caller closes them early, `left` is called; where it returns True, they are read on
        by a task, which is among `tasks` until its end, and in the request's meter. `tally`: counts them.
        """
        reader = _DetachedReader(deltas, tally)
        task = once(reader.read(), "answer of a server elsewhere")
        try:
            while (delta := await reader.next()) is not None:
                yield delta
        finally:
            if not task.done():
                if left() and self._has_room(request.salt):
                    reader.leave(self._size)
                    self._read_on(task, request)
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    task.cancel()
                    await asyncio.wait([task])

    def _has_room(self, tenant: str) -> bool:
        return self.running < self._most and self._tenants[tenant] < self._most_of_one

    def _read_on(self, task: asyncio.Task[None], request: GenerationRequest) -> None:
        tenant = request.salt
        self._tenants[tenant] += 1
        request.meter.unsettled.append(task)
        timer = asyncio.get_running_loop().call_later(self._seconds, task.cancel)

        def end(_: asyncio.Task[None]) -> None:
            timer.cancel()
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]

        task.add_done_callback(end)


class _DetachedReader:
    """Reads `deltas` a few ahead of their caller, and after it has left without it."""

    def __init__(self, deltas: AsyncGenerator[Delta, None], tally: Tally) -> None:
        self._deltas, self._tally = deltas, tally
        self._ahead: asyncio.Queue[Delta | None] = asyncio.Queue(AHEAD)
        self._most: int | None = None
        self._error: Exception | None = None

    async def next(self) -> Delta | None:
        """Return the next delta; None at the end. Raises what ended them."""
        delta = await self._ahead.get()
        if delta is None and self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                # Otherwise the error's traceback would lead back to the error, by this frame.
                del error
        return delta

    def leave(self, size: int) -> None:
        """Drop all that comes, and stop after so many more bytes."""
        self._most = self._tally.said + size
        while not self._ahead.empty():
            self._ahead.get_nowait()

    async def read(self) -> None:
        try:
            async with aclosing(self._deltas):
                async for delta in self._deltas:
                    if self._most is None:
                        await self._ahead.put(delta)
                    elif self._tally.said > self._most:
                        break
        except Exception as error:
            self._error = error
        if self._most is None:
            await self._ahead.put(None)


READING_ON = ReadingOn()
