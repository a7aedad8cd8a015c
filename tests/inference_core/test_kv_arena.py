"""The arena's memory: the size asked for, writable, and taken only when it is touched."""

import resource

from inference_core.kv_arena import allocate_arena


def test_an_arena_is_writable_over_its_whole_length() -> None:
    arena = allocate_arena(3 << 20)
    arena[0], arena[-1] = 7, 9
    assert (len(arena), int(arena[0]), int(arena[-1])) == (3 << 20, 7, 9)


def test_an_untouched_arena_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arena = allocate_arena(8 << 30)
    assert len(arena) == 8 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
