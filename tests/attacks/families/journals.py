"""Journals whose disk changed them, with records whose texts look like frames of a journal."""

import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random

from tests.attacks.targets import Target
from tests.hostile.target import Outcome, attack_class

_SECTOR = 512


@attack_class("damaged journals", 1500, "open")
def damaged_journals(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Flipped bits, lost sectors and torn ends: every other record is replayed, each lost one is counted, and no text
    of a caller becomes a record."""
    from quality.ledger.journal import frame, recover
    from quality.records.record import encoded
    from tests.quality.store.records import make_record

    forged = frame(encoded(make_record("forged"))).decode("latin-1")
    written = [encoded(make_record(f"r-{n}", answer=forged * draw.randrange(3))) for n in range(12)]
    frames = [frame(payload) for payload in written]
    ends = list(accumulate(map(len, frames)))
    with tempfile.TemporaryDirectory(prefix="aio-attack-") as folder:
        segment = Path(folder) / "1.journal"
        for _ in range(count):
            label, damaged, (first, last) = _damaged(b"".join(frames), draw)
            segment.write_bytes(damaged)
            found = recover(segment)
            begin = [0, *ends]
            hit = {n for n in range(len(frames)) if begin[n] < last and first < ends[n]}
            whole = [payload for n, payload in enumerate(written) if n not in hit]
            replayed = [payload for _, payload in found.frames]
            bypass = ""
            if replayed != whole:
                bypass = f"{len(replayed)} records were replayed, {len(whole)} were whole"
            elif hit and not found.lost and not (label.startswith("torn") and first in begin):
                bypass = "nothing was counted as lost"
            yield Outcome(label, 200, bypass=bypass)


def _damaged(data: bytes, draw: Random) -> tuple[str, bytes, tuple[int, int]]:
    """Return a name for the damage, the damaged journal, and the range of bytes that changed."""
    damaged = bytearray(data)
    first = draw.randrange(len(data))
    match draw.randrange(4):
        case 0:
            damaged[first] ^= 1 << draw.randrange(8)
            return f"bit of byte {first}", bytes(damaged), (first, first + 1)
        case 1:
            last = min(len(data), first + _SECTOR)
            damaged[first:last] = bytes((~byte) & 255 for byte in damaged[first:last])
            return f"sector at {first}", bytes(damaged), (first, last)
        case 2:
            last = min(len(data), first + draw.randrange(1, _SECTOR))
            damaged[first:last] = b"\0" * (last - first)
            changed = [n for n in range(first, last) if data[n]]
            return f"zeros at {first}", bytes(damaged), (changed[0], changed[-1] + 1) if changed else (first, first)
        case _:
            return f"torn at {first}", bytes(damaged[:first]), (first, len(data))
