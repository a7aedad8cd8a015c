"""The arena's memory: the size asked for, writable, and taken only when it is touched."""

import re
import resource
from pathlib import Path

import pytest

from inference_core.execution.block_memory import allocate_arena


def test_an_arena_is_writable_over_its_whole_length() -> None:
    arena = allocate_arena(3 << 20)
    arena[0], arena[-1] = 7, 9
    assert (len(arena), int(arena[0]), int(arena[-1])) == (3 << 20, 7, 9)


def test_an_untouched_arena_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arena = allocate_arena(8 << 30)
    assert len(arena) == 8 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


_OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not _OFFERED.exists() or "[never]" in _OFFERED.read_text(), reason="the system has no huge pages")
def test_an_arena_may_lie_in_huge_pages() -> None:
    arena = allocate_arena(64 << 20)
    regions = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    for region in regions:
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", region)
        if bounds and int(bounds[1], 16) <= arena.data_ptr() < int(bounds[2], 16):
            assert re.search(r"THPeligible: +1", region)
            return
    pytest.fail("the arena is in no region of the process")
