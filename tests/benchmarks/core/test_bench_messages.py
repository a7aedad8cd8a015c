"""The ring in shared memory carries every byte in order, and both ways of two processes are measured."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.core.messages import LOADS, Ring, bench_messages

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="eventfd is Linux's")
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def ring() -> Iterator[Ring]:
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    made = Ring(memoryview(bytearray(16 + 10)), wake)
    yield made
    made.close()
    os.close(wake)


def test_frames_that_pass_the_end_of_a_ring_arrive_whole(ring: Ring) -> None:
    for number in range(20):
        frame = bytes([number]) * 7
        ring.write(frame)
        assert ring.read() == frame
    assert ring.read() == b""


def test_several_frames_are_taken_at_once_and_what_has_no_room_is_refused(ring: Ring) -> None:
    ring.write(b"abcdef")
    ring.write(b"ghi")
    with pytest.raises(BufferError, match="no room"):
        ring.write(b"jk")
    assert ring.read() == b"abcdefghi"
    ring.write(b"jk")
    assert ring.read() == b"jk"


def test_the_page_says_what_the_kept_measurement_says() -> None:
    kept = json.loads((DOCS / "measurements" / "messages.json").read_bytes())["seconds"]
    loads = [of for name, of in kept.items() if "CPU" not in name]
    page = " ".join((DOCS / "results" / "core.md").read_text(encoding="utf-8").split())

    def span(way: str, unit: float, digits: int) -> str:
        values = sorted(load[way]["median"] / unit for load in loads)
        return f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"

    for text in (f"{span('socket', 1e-6, 0)} µs", f"{span('ring', 1e-6, 0)} µs", f"({span('ratio', 1, 2)} of"):
        assert text in page


@pytest.mark.processes
async def test_each_load_is_measured_over_both_ways() -> None:
    found = await bench_messages(2, 5, lambda name, share: None)

    assert len(found) == 2 * len(LOADS)
    assert all(cost.socket.median > 0 and cost.ring.median > 0 for name, cost in found.items() if "CPU" not in name)
