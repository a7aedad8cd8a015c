"""What is packed for the device is the plan, whatever was packed there before."""

import numpy as np
import pytest

from inference_core.device.block_tables import BlockTables, Padding
from inference_core.device.step_inputs import (
    NO_CACHE_SLOT,
    NO_ROW,
    Capacity,
    StepInputs,
    StepShape,
    arrays_over,
    bytes_of,
    long_prompts,
)
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import SamplingParams
from inference_core.step_plan import PENDING, SampleSpec, ScheduledSequence

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=2, block_size=4, dtype="float32")
SLAB_BYTES = LAYOUT.block_bytes * 8
CAPACITY = Capacity(tokens=32, sequences=8, draws=12, table_updates=16)
PARAMS = SamplingParams(temperature=0.5, top_k=7, top_p=0.75, min_p=0.25)


def share(name: str, tokens: list[int], start: int, table: list[int], seed: int | None = None) -> ScheduledSequence:
    spec = None if seed is None else SampleSpec(PARAMS, [], [], seed, 3, ())
    return ScheduledSequence(name, tokens, start, table, spec)


@pytest.fixture
def inputs() -> StepInputs:
    """Packed before with other things everywhere."""
    inputs = StepInputs(CAPACITY)
    inputs.memory[:] = 0x55
    return inputs


@pytest.fixture
def tables() -> BlockTables:
    return BlockTables(LAYOUT, SLAB_BYTES, rows=8, row_blocks=10)


def values(inputs: StepInputs, name: str, count: int) -> list:
    return inputs.arrays[name][:count].tolist()


def test_a_ragged_step_lies_packed_one_sequence_after_another(inputs: StepInputs, tables: BlockTables) -> None:
    sequences = [share("a", [11, 12, 13], 2, [5, 9]), share("b", [21], 6, [1, 3], seed=-4)]

    shape = inputs.fill(sequences, tables, {}, renamed=False)

    assert (shape.tokens, shape.sequences, shape.sampled) == (4, 2, 1)
    assert (shape.longest_query, shape.context_blocks, shape.table_updates) == (3, 0, 4)
    assert values(inputs, "token_ids", 4) == [11, 12, 13, 21]
    assert values(inputs, "positions", 4) == [2, 3, 4, 6]
    assert values(inputs, "pending", 4) == [NO_ROW] * 4
    block = LAYOUT.block_bytes
    assert values(inputs, "slots", 4) == [5 * block, 5 * block, SLAB_BYTES + block, 3 * block]
    assert values(inputs, "query_start", 3) == [0, 3, 4]
    assert values(inputs, "context_len", 2) == [5, 7]
    assert values(inputs, "sample_rows", 1) == [3]
    drawn = [values(inputs, name, 1)[0] for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position")]
    assert drawn == [0.5, 7, 0.75, 0.25, -4, 3]


def test_a_pending_token_names_the_row_that_draws_it(inputs: StepInputs, tables: BlockTables) -> None:
    sequences = [share("a", [PENDING], 4, [1, 2], seed=1), share("b", [8], 4, [3, 4], seed=1)]
    inputs.fill(sequences, tables, {"a": 5}, renamed=False)
    assert values(inputs, "pending", 2) == [5, NO_ROW]
    assert values(inputs, "token_ids", 2) == [0, 8]


def test_padding_computes_nothing_that_counts(inputs: StepInputs, tables: BlockTables) -> None:
    sequences = [share("a", [8], 4, [1, 2], seed=1), share("b", [9], 0, [3], seed=1)]

    shape = inputs.fill(sequences, tables, {}, renamed=False, pad_to=Padding(4, 4))

    assert (shape.tokens, shape.sequences, shape.sampled, shape.longest_query) == (4, 4, 4, 1)
    assert values(inputs, "query_start", 5) == [0, 1, 2, 2, 2]
    assert values(inputs, "context_len", 4) == [5, 1, 0, 0]
    assert values(inputs, "slots", 4)[2:] == [NO_CACHE_SLOT] * 2
    assert values(inputs, "pending", 4)[2:] == [NO_ROW] * 2
    assert values(inputs, "token_ids", 4)[2:] == [0, 0]


def test_every_drafted_token_is_drawn_for_and_one_more(inputs: StepInputs, tables: BlockTables) -> None:
    drafted = share("a", [8, 30, 31], 4, [1, 2], seed=1)
    drafted.num_drafts = 2
    sequences = [share("chunk", [5, 6], 0, [3]), drafted, share("b", [9], 0, [4], seed=2)]

    shape = inputs.fill(sequences, tables, {}, renamed=False, pad_to=Padding(8, 8))

    assert (shape.tokens, shape.sequences, shape.sampled, shape.longest_query) == (8, 8, 8, 3)
    assert values(inputs, "sample_rows", 4) == [2, 3, 4, 5]
    assert values(inputs, "position", 4) == [3, 4, 5, 3]
    assert values(inputs, "seed", 4) == [1, 1, 1, 2]
    assert values(inputs, "query_start", 9) == [0, 2, 5, *[6] * 6]
    assert values(inputs, "slots", 8)[6:] == [NO_CACHE_SLOT] * 2


def test_a_shape_is_captured_with_one_of_few_bounds_of_its_queries() -> None:
    shapes = [StepShape(96, 8, 8, longest, 5, 7).as_captured() for longest in (1, 2, 4, 5, 16, 17, 96)]
    assert [shape.longest_query for shape in shapes] == [1, 4, 4, 16, 16, 96, 96]
    assert all((shape.context_blocks, shape.table_updates) == (0, 0) for shape in shapes)


def test_contexts_are_copied_for_many_queries_alone(inputs: StepInputs, tables: BlockTables) -> None:
    """A chunk of 64 queries reads its context as often; of decodes in the same step, each reads its own once."""
    inputs = StepInputs(Capacity(tokens=80, sequences=8, draws=12, table_updates=64))
    tables = BlockTables(LAYOUT, SLAB_BYTES, rows=8, row_blocks=40)
    chunk = share("chunk", [1] * 64, 30, list(range(24)))
    decode = share("decode", [1], 25, list(range(7)), seed=1)
    assert inputs.fill([chunk], tables, {}, renamed=False).context_blocks == 24
    assert inputs.fill([chunk, decode], tables, {}, renamed=False).context_blocks == 0
    shorter = share("shorter", [1] * 63, 31, list(range(24)))
    assert inputs.fill([shorter], tables, {}, renamed=False).context_blocks == 0


def test_prompts_are_long_enough_and_not_mostly_padding() -> None:
    """2,049 queries alone would be padded to 3,072."""
    assert long_prompts([1, 2048, 1, 1900], [500, 2048, 9, 1900]) == (1, 1, 2048, 2048)
    assert long_prompts([2049], [2049]) == ()
    assert long_prompts([8189], [8189]) == (0, 0, 8189, 8189)
    assert long_prompts([1023, 1024], [19456, 19456]) == (1, 1023, 1024, 19456)
    assert long_prompts([1024], [19456 + 512]) == ()


def test_more_draws_than_there_is_room_for_are_refused(inputs: StepInputs, tables: BlockTables) -> None:
    drafted = share("a", list(range(13)), 0, [1, 2, 3, 4], seed=1)
    drafted.num_drafts = 12
    with pytest.raises(ValueError, match="a step with 13 draws; there is room for 12"):
        inputs.fill([drafted], tables, {}, renamed=False)


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([share("a", [1] * 33, 0, [1] * 9)], "33 tokens in 1 sequences; there is room for 32 tokens in 8"),
        ([share(str(i), [1], 0, [i]) for i in range(9)], "9 tokens in 9 sequences"),
    ],
)
def test_a_step_beyond_the_capacity_is_refused(
    inputs: StepInputs, tables: BlockTables, sequences: list[ScheduledSequence], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        inputs.fill(sequences, tables, {}, renamed=False)


def test_more_new_blocks_than_there_is_room_for_travel_apart(inputs: StepInputs, tables: BlockTables) -> None:
    sequences = [share(str(i), [1], 0, [i] * 10) for i in range(2)]
    assert inputs.fill(sequences, tables, {}, renamed=False).table_updates == 0
    assert inputs.apart is not None
    assert inputs.apart.places.tolist() == list(range(20))
    assert inputs.apart.values.tolist() == [0] * 10 + [LAYOUT.block_bytes] * 10
    assert inputs.fill(sequences, tables, {}, renamed=False).table_updates == 0
    assert inputs.apart is None


def test_arrays_do_not_overlap_and_lie_aligned() -> None:
    memory = np.zeros(bytes_of(CAPACITY), np.uint8)
    for array in arrays_over(memory, CAPACITY).values():
        assert not array.view(np.uint8).any()
        assert (array.ctypes.data - memory.ctypes.data) % 64 == 0
        array.view(np.uint8)[:] = 1
