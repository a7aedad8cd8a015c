"""The memory left for keys and values equals the printed sum (SPEC TI-06)."""

import pytest

from inference_core.device.cards import MemoryProfile
from inference_core.errors import MemoryPlanError

GIB = 2**30
PROFILE = MemoryProfile(total=80 * GIB, others=GIB, weights=16 * GIB, activations=2 * GIB, graphs=GIB // 2)


def test_the_arena_takes_whole_slabs_of_what_is_left() -> None:
    # 80 x 0.9 - 1 - 16 - 2 - 0.5 = 52.5
    assert PROFILE.arena_bytes(0.9, GIB) == 52 * GIB
    assert PROFILE.arena_bytes(0.9, GIB // 2) == 52 * GIB + GIB // 2


def test_the_arithmetic_is_printed_line_by_line() -> None:
    lines = PROFILE.lines(0.9, GIB)
    assert lines[0].startswith("usable: 80.00 GiB")
    assert lines[2].startswith("- weights and buffers: 16.00 GiB")
    assert lines[-1].startswith("= 52.50 GiB")
    assert "52 slabs of 1.00 GiB" in lines[-1]


def test_a_device_without_room_for_a_slab_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(MemoryPlanError, match=r"nothing is left for keys and values:\n  usable: 80.00 GiB"):
        PROFILE.arena_bytes(0.24, GIB)
