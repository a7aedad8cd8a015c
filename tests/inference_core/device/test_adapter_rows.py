"""A step's packed adapters name every row once, with its slot, for any mixture."""

import numpy as np
import pytest
import torch

from inference_core.device.batch import DeviceInputs
from inference_core.device.block_tables import BlockTables, Padding
from inference_core.device.step_inputs import Capacity, StepInputs, adapter_tiles, slots_of_rows
from inference_core.kv_cache.layout import KVLayout
from inference_core.step_plan import ScheduledSequence
from inference_core.triton_kernels.tiles import NO_SLOT, tile_rows_for

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, dtype="float32")
CAPACITY = Capacity(tokens=64, sequences=16, draws=16, table_updates=64, adapter_slots=4)


def share(number: int, tokens: int, adapter: int) -> ScheduledSequence:
    return ScheduledSequence(str(number), [1] * tokens, 0, list(range(16)), None, adapter=adapter)


@pytest.fixture
def tables() -> BlockTables:
    return BlockTables(LAYOUT, LAYOUT.block_bytes * 16, rows=16, row_blocks=16)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_with_an_adapter_is_in_one_tile_of_its_slot(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 1 + generator.choice([1, 40, 400]), 1 + seed).tolist()
    sequences = [share(i, n, int(generator.integers(-1, 4))) for i, n in enumerate(lengths)]
    given, tokens = slots_of_rows(sequences, lengths), sum(lengths)

    rows, tiles = adapter_tiles(given, tokens)

    found = np.full(tokens, NO_SLOT)
    for begin, count, slot in tiles.tolist():
        assert 0 < count <= tile_rows_for(tokens)
        own = rows[begin : begin + count]
        assert (found[own] == NO_SLOT).all()
        found[own] = slot
    assert (found == given).all()


def test_a_step_without_adapters_says_so(tables: BlockTables) -> None:
    inputs = StepInputs(CAPACITY)
    shape = inputs.fill([share(0, 3, -1)], tables, {}, renamed=False)
    assert shape.adapter_tiles == 0
    assert DeviceInputs(CAPACITY, *memory(inputs)).batch(shape).adapted is None


def memory(inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """What a device would hold of them, and block tables."""
    return torch.from_numpy(inputs.memory), torch.zeros(256, dtype=torch.int64)


def test_padded_steps_of_a_size_have_the_same_shape_whatever_their_adapters(tables: BlockTables) -> None:
    inputs = StepInputs(CAPACITY)
    inputs.memory[:] = 0x55
    mixtures = [[0, -1, -1], [3, 2, 1], [1, 1, 1], [-1, 2, -1]]
    shapes = set()
    for mixture in mixtures:
        sequences = [share(number, 1, adapter) for number, adapter in enumerate(mixture)]
        shape = inputs.fill(sequences, tables, {}, renamed=True, pad_to=Padding(4, 4))
        shapes.add(shape.as_captured())
        adapted = DeviceInputs(CAPACITY, *memory(inputs)).batch(shape).adapted
        assert adapted is not None
        seen = {
            row: slot
            for begin, count, slot in adapted.tiles.tolist()
            for row in adapted.rows[begin : begin + count].tolist()
        }
        assert seen == {row: slot for row, slot in enumerate(mixture) if slot != NO_SLOT}
    assert len(shapes) == 1
    assert inputs.fill([share(0, 1, -1)], tables, {}, renamed=True, pad_to=Padding(4, 4)).as_captured() not in shapes


def test_slots_that_are_not_there_are_refused(tables: BlockTables) -> None:
    with pytest.raises(ValueError, match="slot 4 of adapters; there are 4"):
        StepInputs(CAPACITY).fill([share(0, 1, 4)], tables, {}, renamed=False)
