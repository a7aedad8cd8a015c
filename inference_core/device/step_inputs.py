"""The inputs of a step, packed into one buffer that is copied to the device at once. No torch.

They include the sampling parameters per row of logits, as columns, and which rows use which adapter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from inference_core.device.block_tables import LONGEST_QUERY, BlockTables, Padding, TableUpdate
from inference_core.step_plan import PENDING, SampleSpec, ScheduledSequence
from inference_core.triton_kernels.tiles import NO_SLOT, PROMPT_GRAIN, most_tiles, most_tiles_up_to, tile_rows_for
from inference_core.triton_kernels.tiles import NO_SLOT as NO_ADAPTER

PARAM_FIELDS: tuple[tuple[str, DTypeLike], ...] = (
    ("temperature", np.float64),
    ("top_k", np.int32),
    ("top_p", np.float64),
    ("min_p", np.float64),
    ("seed", np.int64),
    ("position", np.int64),
)
"""The parameters of a draw besides its logits, in the order of the arguments of `aio::draw_tokens`."""
_INT32 = (1 << 31) - 1


def param_columns(specs: Sequence[SampleSpec]) -> dict[str, Sequence[float]]:
    """One column [R] per field of `PARAM_FIELDS`. `temperature` 0: greedy; `top_k` 0: all tokens."""
    params = [spec.params for spec in specs]
    return {
        "temperature": [p.temperature for p in params],
        "top_k": [min(max(p.top_k, 0), _INT32) for p in params],
        "top_p": [p.top_p for p in params],
        "min_p": [p.min_p for p in params],
        "seed": [_as_int64(spec.seed) for spec in specs],
        "position": [spec.position for spec in specs],
    }


def _as_int64(seed: int) -> int:
    """The lowest 64 bits of a seed as a signed integer."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


TILE_NUMBERS = 3


def slots_of_rows(sequences: list[ScheduledSequence], lengths: list[int]) -> NDArray[np.int32]:
    """The adapter slot of every token of a step, int32 [T]; `NO_SLOT` without an adapter."""
    return np.repeat(np.array([s.adapter for s in sequences], np.int32), lengths)


def adapter_tiles(slots: NDArray[np.int32], tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows [R] with an adapter, grouped by slot, and tiles [M, 3] for a step padded to `tokens` (`LowRankRows`)."""
    order = np.argsort(slots, kind="stable")
    order = order[np.searchsorted(slots[order], NO_SLOT, "right") :]
    own, firsts, counts = np.unique(slots[order], return_index=True, return_counts=True)
    size = tile_rows_for(tokens)
    of_slot = -(-counts // size)
    # How many tiles of the same slot come before each tile.
    number = np.arange(of_slot.sum()) - np.repeat(np.cumsum(of_slot) - of_slot, of_slot)
    begins = np.repeat(firsts, of_slot) + number * size
    sizes = np.minimum(np.repeat(counts, of_slot) - number * size, size)
    return order, np.stack([begins, sizes, np.repeat(own, of_slot)], axis=1)


NO_ROW = -1  # in `pending`: the token is known
NO_CACHE_SLOT = -1  # in `slots`: nothing is written
_ALIGNMENT = 64
# Reading a token of an FP8 cache once more, to copy it, costs about what conversions for a third as many queries do.
QUERIES_PER_COPY = 64
# Scores of a prompt from which on cuDNN saves more than copies of its keys cost (2,048 tokens without a context).
_MIN_PROMPT_SCORES = 2_000_000
# cuDNN takes half the time for a score, so up to this many scores, with those of padding, for each of the prompt.
_MOST_SCORES_PER_SCORE = 1.5


@dataclass(slots=True, frozen=True)
class StepShape:
    """What the host needs to launch a step's kernels: counts, with padding, and upper bounds."""

    tokens: int
    sequences: int
    sampled: int
    longest_query: int
    table_updates: int
    context_blocks: int = 0
    """Blocks of all contexts, if prompts are long enough for a copy; else 0."""
    edited: bool = False
    """Whether logits are edited before drawing."""
    adapter_tiles: int = 0
    """Tiles of rows with adapters, including empty ones; 0 without adapters."""
    prompts: tuple[int, ...] = ()
    """The value of `long_prompts`."""

    def as_captured(self) -> "StepShape":
        """The shape shared by all steps of its bucket: the rest is on the device or bounded. Query bounds are rounded
        up (1, 4, 16, all tokens), since each is captured separately."""
        bounds = (bound for bound in (1, 4, LONGEST_QUERY, self.tokens) if bound >= self.longest_query)
        return replace(self, longest_query=next(bounds), table_updates=0, context_blocks=0, prompts=())


@dataclass(slots=True, frozen=True)
class Capacity:
    """The largest step."""

    tokens: int
    sequences: int
    """Sequences of a step."""
    draws: int
    """Rows that are sampled."""
    table_updates: int
    """New block-table entries of a step. More of them, as with many long cached prefixes, are copied separately."""
    adapter_slots: int = 0
    """Number of adapter slots."""


class StepInputs:
    """Arrays over one buffer, at fixed offsets for every step, as captured graphs require.

    Per sequence: `query_start` int32 [S + 1], `context_len`, `table_start` int32 [S]. Per draw, of which a sequence has
    one, and one more for each drafted token: `sample_rows` int32 [R], the token whose logits are drawn from; how to
    draw: `temperature`, `top_p`, `min_p` float64 [R], `top_k` int32 [R], `seed`, `position` int64 [R]; where logits are
    edited, `edit_rows` int32 [R] (which row of the edit tables, or `NO_ROW`) and `repetition`, `presence`, `frequency`
    float32 [R]. Per token: `token_ids`, `positions` int32 [T], `slots` int64 [T] (byte offset of the block that takes
    it, `NO_CACHE_SLOT` for padding), `pending` int32 [T] (the row of the last step's draws that is this token, or
    `NO_ROW`). `places`, `values` int64 [U]: see `TableUpdate`. For rows with adapters `adapter_rows` int32 [T] and
    `adapter_tiles` int32 [3 x tiles]: see `LowRankRows`.
    """

    def __init__(self, capacity: Capacity, memory: NDArray[np.uint8] | None = None) -> None:
        """Over `memory` uint8 [at least `bytes_of(capacity)`], or its own."""
        self.capacity = capacity
        self.memory = np.zeros(bytes_of(capacity), np.uint8) if memory is None else memory
        self.arrays = arrays_over(self.memory, capacity)
        self.apart: TableUpdate | None = None

    def fill(
        self,
        sequences: list[ScheduledSequence],
        tables: BlockTables,
        rows_of_last: Mapping[str, int],
        *,
        renamed: bool,
        pad_to: Padding | None = None,
        edit_rows: Sequence[int] | None = None,
    ) -> StepShape:
        """Write a step's inputs. `rows_of_last`: the last step's row of each sequence, for tokens that are pending.

        `pad_to`: pad the step to these tokens and draws, and to as many sequences as fit; the results of padding are
        ignored.
        `edit_rows`: for each draw its row of the edit tables, or `NO_ROW`; None if no logits are edited.
        `apart` gets the update of the tables if it is too large for its arrays.
        Raises ValueError for a step beyond the capacity, and what `BlockTables.update` raises.
        """
        lengths = [len(s.token_ids) for s in sequences]
        count, tokens = len(sequences), sum(lengths)
        if count > self.capacity.sequences or tokens > self.capacity.tokens:
            raise ValueError(
                f"a step of {tokens} tokens in {count} sequences; there is room for {self.capacity.tokens} tokens in "
                f"{self.capacity.sequences}"
            )
        draws = sum(s.num_drafts + 1 for s in sequences if s.sample is not None)
        if draws > self.capacity.draws:
            raise ValueError(f"a step with {draws} draws; there is room for {self.capacity.draws}")
        update = tables.update(sequences, renamed=renamed)
        a, updates = self.arrays, len(update.places)
        self.apart = update if updates > self.capacity.table_updates else None
        if self.apart is not None:
            updates = 0
        a["places"][:updates] = update.places[:updates]
        a["values"][:updates] = update.values[:updates]
        a["table_start"][:count] = update.starts
        starts = np.array([s.start for s in sequences], np.int64)
        ends = np.cumsum(lengths)
        a["query_start"][0] = 0
        a["query_start"][1 : count + 1] = ends
        contexts = starts + lengths
        a["context_len"][:count] = contexts
        self._fill_tokens(sequences, lengths, tables, rows_of_last)
        self._fill_draws(sequences, ends)
        if edit_rows is not None:
            self._fill_edits(sequences, edit_rows)
        shape = StepShape(
            tokens,
            count,
            draws,
            longest_query=max(lengths, default=0),
            table_updates=updates,
            context_blocks=_copied_blocks(contexts, lengths, tables.block_size),
            edited=edit_rows is not None,
            adapter_tiles=self._fill_adapters(sequences, lengths, pad_to),
            prompts=long_prompts(lengths, contexts),
        )
        return shape if pad_to is None else self._padded(shape, pad_to)

    def fill_with_padding(self) -> StepShape:
        """Write the largest step, all of it padding."""
        tokens, sequences, draws = self.capacity.tokens, self.capacity.sequences, self.capacity.draws
        self.arrays["query_start"][:] = 0
        for name, value in (("token_ids", 0), ("positions", 0), ("slots", NO_CACHE_SLOT), ("pending", NO_ROW)):
            self.arrays[name][:] = value
        for name in ("context_len", "table_start", "sample_rows", "temperature"):
            self.arrays[name][:] = 0
        self.arrays["edit_rows"][:] = NO_ROW
        self.arrays["adapter_rows"][:] = 0
        tiles = self._write_tiles(
            np.empty((0, TILE_NUMBERS), np.int64), len(self.arrays["adapter_tiles"]) // TILE_NUMBERS
        )
        return StepShape(tokens, sequences, draws, tokens, 0, edited=True, adapter_tiles=tiles)

    def _fill_tokens(
        self,
        sequences: list[ScheduledSequence],
        lengths: list[int],
        tables: BlockTables,
        rows_of_last: Mapping[str, int],
    ) -> None:
        a, tokens = self.arrays, len(lengths)
        if sum(lengths) > tokens:
            self._fill_chunks(sequences, tables)
        else:
            size = tables.block_size
            a["token_ids"][:tokens] = [s.token_ids[0] for s in sequences]
            a["positions"][:tokens] = [s.start for s in sequences]
            a["slots"][:tokens] = tables.byte_offsets([s.block_table[s.start // size] for s in sequences])
        total = sum(lengths)
        a["pending"][:total] = NO_ROW
        first = 0
        for sequence, length in zip(sequences, lengths, strict=True):
            if sequence.token_ids[0] == PENDING:
                a["token_ids"][first] = 0
                a["pending"][first] = rows_of_last[sequence.sequence_id]
            first += length

    def _fill_chunks(self, sequences: list[ScheduledSequence], tables: BlockTables) -> None:
        a, first = self.arrays, 0
        for sequence in sequences:
            length = len(sequence.token_ids)
            last = first + length
            a["token_ids"][first:last] = sequence.token_ids
            a["positions"][first:last] = range(sequence.start, sequence.start + length)
            a["slots"][first:last] = tables.offsets(sequence.block_table, sequence.start, length)
            first = last

    def _fill_draws(self, sequences: list[ScheduledSequence], ends: NDArray[np.int64]) -> None:
        a = self.arrays
        # A sequence's last row follows all of its drafts.
        drawing = [
            (s.sample, end - 1 - s.num_drafts + accepted, accepted)
            for s, end in zip(sequences, ends.tolist(), strict=True)
            if s.sample is not None
            for accepted in range(s.num_drafts + 1)
        ]
        rows = len(drawing)
        a["sample_rows"][:rows] = [row for _, row, _ in drawing]
        for name, column in param_columns([spec for spec, _, _ in drawing]).items():
            a[name][:rows] = column
        a["position"][:rows] = [spec.position + accepted for spec, _, accepted in drawing]

    def _fill_edits(self, sequences: list[ScheduledSequence], edit_rows: Sequence[int]) -> None:
        a, rows = self.arrays, len(edit_rows)
        params = [s.sample.params for s in sequences if s.sample is not None for _ in range(s.num_drafts + 1)]
        a["edit_rows"][:rows] = edit_rows
        a["edit_rows"][rows:] = NO_ROW
        a["repetition"][:rows] = [p.repetition_penalty for p in params]
        a["presence"][:rows] = [p.presence_penalty for p in params]
        a["frequency"][:rows] = [p.frequency_penalty for p in params]

    def _fill_adapters(self, sequences: list[ScheduledSequence], lengths: list[int], pad_to: Padding | None) -> int:
        """Write the adapter arrays. Returns the number of tiles, the same for all padded steps of a size with any."""
        highest = max((s.adapter for s in sequences), default=NO_ADAPTER)
        if highest == NO_ADAPTER:
            return 0
        if highest >= self.capacity.adapter_slots:
            raise ValueError(f"slot {highest} of adapters; there are {self.capacity.adapter_slots}")
        rows, tiles = adapter_tiles(slots_of_rows(sequences, lengths), pad_to.tokens if pad_to else sum(lengths))
        self.arrays["adapter_rows"][: len(rows)] = rows
        count = most_tiles(pad_to.tokens, self.capacity.adapter_slots) if pad_to else len(tiles)
        return self._write_tiles(tiles, count)

    def _write_tiles(self, tiles: NDArray[np.int64], count: int) -> int:
        """Write `tiles` [at most `count`, 3], padded with empty ones to `count`."""
        target = self.arrays["adapter_tiles"][: count * TILE_NUMBERS].reshape(count, TILE_NUMBERS)
        target[: len(tiles)] = tiles
        target[len(tiles) :] = (0, 0, NO_ADAPTER)
        return count

    def _padded(self, shape: StepShape, pad_to: Padding) -> StepShape:
        a, tokens, rows = self.arrays, pad_to.tokens, pad_to.rows
        sequences = min(rows, self.capacity.sequences)
        for name, value in (("token_ids", 0), ("positions", 0), ("slots", NO_CACHE_SLOT), ("pending", NO_ROW)):
            a[name][shape.tokens : tokens] = value
        a["query_start"][shape.sequences + 1 : sequences + 1] = shape.tokens
        a["context_len"][shape.sequences : sequences] = 0
        a["table_start"][shape.sequences : sequences] = 0
        a["sample_rows"][shape.sampled : rows] = 0
        a["temperature"][shape.sampled : rows] = 0.0
        return replace(shape, tokens=tokens, sequences=sequences, sampled=rows)


def _copied_blocks(contexts: NDArray[np.int64], lengths: list[int], block_size: int) -> int:
    """The blocks of all contexts, if a token of them is read for `QUERIES_PER_COPY` queries on average; else 0."""
    pays = int((contexts * lengths).sum()) >= QUERIES_PER_COPY * int(contexts.sum()) > 0
    return int((-(-contexts // block_size)).sum()) if pays else 0


def long_prompts(lengths: Sequence[int], contexts: Sequence[int] | NDArray[np.int64]) -> tuple[int, ...]:
    """`PROMPT_FIELDS` numbers of each sequence, of `lengths` tokens at the end of `contexts`, that is worth the copies
    of `prompt_attention`: its index, its first row, its length and its context."""
    if max(lengths, default=0) < PROMPT_GRAIN:
        return ()
    fields: list[int] = []
    first = 0
    for index, queries in enumerate(lengths):
        if queries >= PROMPT_GRAIN:
            context = int(contexts[index])
            earlier = context - queries
            own = earlier // PROMPT_GRAIN * PROMPT_GRAIN
            rows = -(-(context - own) // PROMPT_GRAIN) * PROMPT_GRAIN
            scores, computed = queries * (earlier + queries / 2), rows * (own + rows / 2)
            if scores >= _MIN_PROMPT_SCORES and computed <= _MOST_SCORES_PER_SCORE * scores:
                fields += (index, first, queries, context)
        first += queries
    return tuple(fields)


_SEQUENCE_FIELDS: tuple[tuple[str, DTypeLike], ...] = (
    ("query_start", np.int32),
    ("context_len", np.int32),
    ("table_start", np.int32),
)
_DRAW_FIELDS: tuple[tuple[str, DTypeLike], ...] = (
    ("sample_rows", np.int32),
    *PARAM_FIELDS,
    ("edit_rows", np.int32),
    ("repetition", np.float32),
    ("presence", np.float32),
    ("frequency", np.float32),
)
_UPDATE_FIELDS: tuple[tuple[str, DTypeLike], ...] = (("places", np.int64), ("values", np.int64))
_TOKEN_FIELDS: tuple[tuple[str, DTypeLike], ...] = (
    ("token_ids", np.int32),
    ("positions", np.int32),
    ("pending", np.int32),
    ("slots", np.int64),
)


_ADAPTER_ROWS: tuple[tuple[str, DTypeLike], ...] = (("adapter_rows", np.int32),)
_ADAPTER_TILES: tuple[tuple[str, DTypeLike], ...] = (("adapter_tiles", np.int32),)


@dataclass(slots=True, frozen=True)
class Field:
    """An array's first byte in the buffer, its dtype and its length."""

    start: int
    dtype: DTypeLike
    length: int


def fields_of(capacity: Capacity) -> dict[str, Field]:
    """The field of every array, each at a multiple of 64 bytes."""
    fields: dict[str, Field] = {}
    at = 0
    slots = capacity.adapter_slots
    tiles = most_tiles_up_to(capacity.tokens, slots) if slots else 0
    for names, length in (
        (_SEQUENCE_FIELDS, capacity.sequences + 1),
        (_DRAW_FIELDS, capacity.draws),
        (_UPDATE_FIELDS, capacity.table_updates),
        (_TOKEN_FIELDS, capacity.tokens),
        (_ADAPTER_ROWS, capacity.tokens if slots else 0),
        (_ADAPTER_TILES, TILE_NUMBERS * tiles),
    ):
        for name, dtype in names:
            fields[name] = Field(at, dtype, length)
            at += -(-length * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return fields


def bytes_of(capacity: Capacity) -> int:
    """Bytes of the buffer."""
    last = list(fields_of(capacity).values())[-1]
    return last.start + -(-last.length * np.dtype(last.dtype).itemsize // _ALIGNMENT) * _ALIGNMENT


def arrays_over(memory: NDArray[np.uint8], capacity: Capacity) -> dict[str, NDArray[np.generic]]:
    """The arrays over `memory`, by name."""
    return {
        name: memory[f.start : f.start + f.length * np.dtype(f.dtype).itemsize].view(f.dtype)
        for name, f in fields_of(capacity).items()
    }
