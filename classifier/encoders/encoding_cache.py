"""A cache of the last encodings by a slow encoder."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from classifier.encoders.static_encoder import Encoding

# The cache holds encodings computed ahead of a decision, and those of repeated prompts.
REMEMBERED = 512


class RememberedEncodings:
    """The encodings of the last `REMEMBERED` turns; thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Encoding] = OrderedDict()
        self._lock = Lock()

    def get(self, turn: str) -> Encoding | None:
        """Return the encoding of `turn`, or None."""
        with self._lock:
            return self._known.get(turn)

    def put(self, turns: Sequence[str], encodings: Sequence[Encoding]) -> None:
        """Add these, and evict the oldest."""
        with self._lock:
            self._known.update(zip(turns, encodings, strict=True))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
