"""Cut an input as a network might, by the input's own hash: a finding fails in the same way whenever it is replayed."""

import zlib
from collections.abc import Iterator
from random import Random

# So many that every place of a short input is cut sometimes, and a long one takes no seconds.
_MOST_PIECES = 256


def random_of(data: bytes) -> Random:
    """Return random numbers that depend on the input alone."""
    return Random(zlib.crc32(data))


def pieces_of(data: bytes, most: int = 0) -> Iterator[bytes]:
    """Yield `data` in pieces of any size; pieces of at most `most` bytes where that is given."""
    random = random_of(data)
    size = most or random.choice((1, 2, 3, 16, 256, 4096, max(1, len(data))))
    size = max(size, len(data) // _MOST_PIECES)
    at = 0
    while at < len(data):
        end = at + random.randint(1, size)
        yield data[at:end]
        at = end
