"""The encodings that a slow encoder computed last."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from classifier.encoders.static_encoder import Encoding

# Turns whose encoding is at hand: what was computed ahead of a decision, and what is asked again.
REMEMBERED = 512


class RememberedEncodings:
    """The encodings of the last `REMEMBERED` turns; safe from many threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Encoding] = OrderedDict()
        self._lock = Lock()

    def get(self, turn: str) -> Encoding | None:
        """The encoding of `turn`, if it is still known."""
        with self._lock:
            return self._known.get(turn)

    def put(self, turns: Sequence[str], encodings: Sequence[Encoding]) -> None:
        """Remember these, and forget the oldest."""
        with self._lock:
            self._known.update(zip(turns, encodings, strict=True))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
