"""Finds stop strings in streamed text: which text can be sent, and whether the generation has ended."""

from collections.abc import Iterable

from inference_core.errors import InvalidRequestError


class StopStrings:
    """Cuts the text before the first stop string that is completed, as if it arrived character by character; of
    several completed by the same character, before the one that starts first. The result does not depend on how the
    text is split into pieces. The stop string itself is included only with `include`.
    """

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        if "" in self._stops:
            raise InvalidRequestError("a stop string must not be empty", "stop")
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._matched: str | None = None

    def passes(self, text: str) -> bool:
        """Whether `push` would return `text` unchanged and hold nothing back: no stop string can start in it."""
        return self._matched is None and not self._held and self._first_characters.isdisjoint(text)

    def push(self, text: str) -> tuple[str, str | None]:
        """Returns (text that no stop string can still include, the stop string that ended the generation or None)."""
        if self._matched is not None:
            return "", self._matched
        text = self._held + text
        # (end, start, stop): the smallest end is completed first, then the smallest start.
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, start, self._matched = min(found)
            self._held = ""
            return text[: end if self._include else start], self._matched
        keep = self._first_possible_start(text)
        self._held = text[keep:]
        return text[:keep], None

    def skip(self, text: str) -> None:
        """Take note of text in which no stop string counts, in place of `push`."""

    def flush(self) -> str:
        """The text held back, for when the generation ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _first_possible_start(self, text: str) -> int:
        for position in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[position:]
            if any(stop.startswith(tail) for stop in self._stops):
                return position
        return len(text)
