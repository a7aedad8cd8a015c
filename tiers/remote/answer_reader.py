"""From the events of a server elsewhere to deltas: counted, and within the bounds of the answer.

Stop strings that a server does not take: its answer is cut here, as the server would have cut it. Thoughts that it
leaves in the text are moved to where thoughts are.
"""

import re
from collections.abc import Callable

from inference_core.tokenization.tokenizer import StopStrings, possible_start
from tiers.remote.event_stream import ServerSentEvent
from tiers.remote.http_exchange import is_whole
from tiers.remote.lenient_json import SplitCharacters
from tiers.remote.usage_counter import UNCOUNTED_JSON_BYTES, AnswerBounds, Tally
from tiers.remote.wire import RemoteWire
from tiers.tier import Delta


class StopsHere:
    """Cuts the text of each choice of one answer before the first of `stops`."""

    def __init__(self, stops: tuple[str, ...], tally: Tally, *, include: bool) -> None:
        self._stops, self._tally, self._include = stops, tally, include
        self._choices: dict[int, StopStrings] = {}

    def cut(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas up to the end of each choice; what follows it is not read any more."""
        found: list[Delta] = []
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
                    delta.tool_calls = []
                    end = Delta(index=delta.index, finish_reason="stop", stop_sequence=stop, at_once=delta.at_once)
                    found += [delta, end]
                    self._tally.unfinished.discard(delta.index)
                    ended.add(delta.index)
                    continue
            elif delta.finish_reason is not None and (held := choice.flush()):
                found.append(Delta(index=delta.index, text=held))
            found.append(delta)
        return found


_TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
# With the closing ones: of servers that take away all but these.
_STARTS = _TAGS | dict.fromkeys(_TAGS.values(), "")
# Not where it is spoken of.
_CLOSING = re.compile(r"(?<![`'\"])</think>(?![`'\"])")
_ENDED = "\n"


class InlineThoughts:
    """Moves the thoughts of an answer with `n` choices that are in its text: from a tag at the very beginning to the
    closing one, or to the end. Of a whole answer also those whose opening tag was in the prompt."""

    def __init__(self, n: int) -> None:
        # For what each choice waits: "" before its text, its closing tag, or `_ENDED` for the text after that.
        self._waits = dict.fromkeys(range(n), "")
        self._held: dict[int, str] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing of the answer can be a thought any more."""
        return not self._waits

    def moved(self, deltas: list[Delta], *, whole: bool = False) -> list[Delta]:
        """Return `deltas` with their thoughts; what may be half a tag waits. `whole`: nothing more comes."""
        passed: list[Delta] = []
        for delta in deltas:
            if delta.text and delta.index in self._waits and not delta.refusal:
                text = self._held.pop(delta.index, "") + delta.text
                thought, delta.text = self._split(delta.index, text, whole=whole)
                delta.reasoning += thought
                if not (delta.text or delta.reasoning or delta.tool_calls or delta.annotations):
                    continue
            passed.append(delta)
        return passed

    def rest(self) -> list[Delta]:
        """Return what still waits, at the end of the answer."""
        held, self._held = self._held, {}
        return [
            Delta(index=index, reasoning=text) if self._waits[index] else Delta(index=index, text=text)
            for index, text in held.items()
        ]

    def _split(self, index: int, text: str, *, whole: bool) -> tuple[str, str]:
        """Return the thoughts and the text of a piece."""
        if not (closing := self._waits[index]):
            start = text.lstrip()
            tag = next((tag for tag in _STARTS if start.startswith(tag)), None)
            if tag is None:
                if not whole and any(tag.startswith(start) for tag in _STARTS):
                    self._held[index] = text
                    return "", ""
                del self._waits[index]
                if whole and "<think>" not in text and len(parts := _CLOSING.split(text)) == 2:
                    return parts[0].strip(), parts[1].lstrip()
                return "", text
            closing = self._waits[index] = _STARTS[tag] or _ENDED
            text = start[len(tag) :].lstrip()
        thought = ""
        if closing != _ENDED:
            thought, end, text = text.partition(closing)
            if not end:
                cut = possible_start(thought, (closing,))
                if cut < len(thought):
                    self._held[index] = thought[cut:]
                return thought[:cut], ""
            self._waits[index] = _ENDED
        if text := text.lstrip():
            del self._waits[index]
        return thought, text


class AnswerReader:
    """Reads one answer. `ended`: whether a stream's last event was read. `note_seals`: called with deltas, where they
    are wanted in the form of the server's API, too. `thoughts`: of an answer that may have them in its text. Raises
    `TierError`; `TierAnswerTooLongError` beyond `bounds`."""

    def __init__(
        self,
        wire: RemoteWire,
        tally: Tally,
        bounds: AnswerBounds,
        note_seals: Callable[[list[Delta]], None],
        thoughts: InlineThoughts | None = None,
    ) -> None:
        self.ended = False
        self._thoughts = thoughts
        self._wire, self._tally, self._bounds, self._note_seals = wire, tally, bounds, note_seals
        self._characters = SplitCharacters()

    def events(self, events: list[ServerSentEvent]) -> list[Delta]:
        """Return the deltas of events that came at once."""
        tally = self._tally
        said: list[Delta] = []
        if events and len(events[0].data) > UNCOUNTED_JSON_BYTES:
            # Only the first can be larger than the piece that completed it.
            self._bounds.require_json(events[0].data)
        for event in events:
            deltas = self._wire.read_event(event, tally)
            if deltas is None:
                self.ended = True
                said += self._ending(marked=True)
                break
            if tally.joins_characters:
                deltas = self._characters.joined(deltas)
            if self._thoughts is not None:
                deltas = self._thoughts.moved(deltas)
                if self._thoughts.is_over:
                    self._thoughts = None
            deltas = tally.passed(deltas)
            if tally.native:
                self._note_seals(deltas)
            said += deltas
        else:
            if tally.said > self._bounds.said:
                self._bounds.require_said(tally.said)
        return _with_pieces(said)

    def last_events(self, events: list[ServerSentEvent]) -> list[Delta]:
        """Return the deltas of those events that the end of a stream completes, and of the end itself."""
        said = self.events(events)
        if not self.ended:
            said += self._tally.passed(self._wire.read_end(self._tally)) + self._ending(marked=False)
        return _with_pieces(said)

    def whole(self, body: bytes) -> list[Delta]:
        """Return the deltas of an answer in one piece, or of all events of a stream that is sent in its place."""
        bounds, tally = self._bounds, self._tally
        if not is_whole(body):
            parser = self._wire.parser()
            if events := [*parser.feed(body), *parser.flush()]:
                return _at_once(self.last_events(events))
        if len(body) > UNCOUNTED_JSON_BYTES:
            bounds.require_wire(len(body), bounds.whole)
            bounds.require_json(body)
        deltas = self._wire.read_whole(body, tally)
        if tally.joins_characters:
            deltas = self._characters.joined(deltas)
        if self._thoughts is not None:
            deltas = self._thoughts.moved(deltas, whole=True)
        deltas = tally.passed(deltas) + self._ending(marked=True)
        if tally.native:
            self._note_seals(deltas)
        if tally.said > bounds.said:
            bounds.require_said(tally.said)
        self.ended = True
        return _at_once(deltas)

    def _ending(self, *, marked: bool) -> list[Delta]:
        rest = self._characters.rest() if self._tally.joins_characters else []
        if self._thoughts is not None:
            rest += self._thoughts.rest()
        left = self._tally.passed(rest) if rest else []
        return left + self._tally.ended(marked=marked)


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
