"""Tables on the device, brought up to date by differences, are the tables of the step."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from inference_core.device.block_tables import BlockTables, TooManySequencesError
from inference_core.kv_cache.layout import KVLayout
from inference_core.step_plan import ScheduledSequence

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, dtype="float32")
SLAB_BYTES = LAYOUT.block_bytes * 3 + 8  # the last bytes of a slab are unused


def offset(block: int) -> int:
    return block // 3 * SLAB_BYTES + block % 3 * LAYOUT.block_bytes


class DeviceTables:
    """Tables and what they are compared with."""

    def __init__(self, rows: int, row_blocks: int) -> None:
        self.tables = BlockTables(LAYOUT, SLAB_BYTES, rows=rows, row_blocks=row_blocks)
        self.memory = np.full(rows * row_blocks, -1, np.int64)
        self.sent = 0

    def step(self, tables: dict[str, list[int]], *, renamed: bool = False) -> None:
        update = self.tables.update(
            [ScheduledSequence(name, [1], 0, table, None) for name, table in tables.items()], renamed=renamed
        )
        self.memory[update.places] = update.values
        self.sent += len(update.places)
        for start, table in zip(update.starts, tables.values(), strict=True):
            assert self.memory[start : start + len(table)].tolist() == [offset(block) for block in table]


steps = st.lists(
    st.tuples(
        st.sets(st.integers(0, 5), min_size=1, max_size=3),
        st.sampled_from(["grow", "grow", "grow", "restart", "rename"]),
        st.integers(0, 100),
    ),
    max_size=40,
)


@given(steps)
def test_whatever_happens_a_step_finds_its_tables(happens: list) -> None:
    device = DeviceTables(rows=3, row_blocks=50)
    tables: dict[int, list[int]] = {number: [number] for number in range(6)}
    for numbers, event, block in happens:
        for number in numbers:
            if event == "grow":
                tables[number].append(block)
            elif event == "restart":
                tables[number] = [block]
        if event == "rename":
            for table in tables.values():
                table[:] = [b + 1 for b in table]
        device.step({str(n): tables[n] for n in sorted(numbers)}, renamed=event == "rename")


def test_a_sequence_that_goes_on_sends_its_new_blocks_alone() -> None:
    device, table = DeviceTables(rows=4, row_blocks=50), [5, 6, 7]
    device.step({"a": table, "b": [1]})
    assert device.sent == 4
    device.step({"a": table, "b": [1]} | {"a": table})
    table.append(9)
    before = device.sent
    device.step({"a": table})
    assert device.sent == before + 1


def test_after_a_fault_everything_is_sent_again() -> None:
    device, table = DeviceTables(rows=4, row_blocks=50), [5, 6, 7]
    device.step({"a": table})
    device.memory[:] = -1
    device.tables.forget()
    device.step({"a": table})


def test_more_sequences_than_rows_are_refused() -> None:
    device = DeviceTables(rows=2, row_blocks=50)
    with pytest.raises(TooManySequencesError, match="3 sequences in one step; there is room for 2"):
        device.step({"a": [1], "b": [2], "c": [3]})


def test_a_table_longer_than_a_row_is_refused() -> None:
    device = DeviceTables(rows=2, row_blocks=2)
    with pytest.raises(ValueError, match="a has 3 blocks"):
        device.step({"a": [1, 2, 3]})
