"""Stop strings of an answer in channels: what a model thinks, or passes to a function, does not end it."""

from inference_core.tokenization.stop_strings import StopStrings
from tiers.harmony.channel_parser import CHANNEL, CONSTRAIN, MARKS, MESSAGE

_MARKS = frozenset(MARKS.values())
_LONGEST_HEADER = 1024


class AnswerStops(StopStrings):
    """`StopStrings` that count only in text for the caller: in messages of any channel but `analysis` that have no
    recipient, and in an answer without a header."""

    _counts = True
    _header: str | None = ""  # of the message that begins; None in a body. The first one may be missing.

    def passes(self, text: str) -> bool:
        """See `StopStrings.passes`."""
        return self._header is None and super().passes(text) and _MARKS.isdisjoint(text)

    def push(self, text: str) -> tuple[str, str | None]:
        """See `StopStrings.push`."""
        self.skip(text)
        return super().push(text) if self._counts else (self.flush() + text, None)

    def skip(self, text: str) -> None:
        """See `StopStrings.skip`."""
        if self._header is None and _MARKS.isdisjoint(text):
            return
        for character in text:
            header = self._header
            if character == CHANNEL or (character == CONSTRAIN and header is not None):
                self._header, self._counts = f"{header or ''} ", False
            elif character == MESSAGE and header is not None:
                self._header, self._counts = None, "analysis" not in header.split() and "to=" not in header
            elif character in _MARKS and character not in (MESSAGE, CONSTRAIN):
                self._header, self._counts = "", False
            elif header is not None and len(header) < _LONGEST_HEADER:
                self._header = header + character
