"""How keys and values of one model lie in a block, and blocks in a slab, and which layers share blocks. No torch.

A slab of `slab_bytes` is cut into `blocks_per_slab` blocks of one model; block id
`b` is block `b % blocks_per_slab` of slab `b // blocks_per_slab`. Within a block each layer holds its KV heads one
after another, each as keys [head_dim / r, block_size, r] (so that the scores of consecutive tokens are one vector),
then values [block_size / r, head_dim, r], with r numbers to 32 bits. INT8 numbers are stored plus 128 and followed by
their scales in bfloat16: [block_size] of the keys, then of the values. The CUDA kernels, which alone read FP8, hold a
block of the same size head by head instead (`triton_kernels.layer_cache`).

Groups of layers hold blocks of their own, so that those with a sliding window keep no more than they can see. Layers
with full attention are one group, with as many layers as a block has; layers with a window fill groups of the same
size, whose last one may be filled in part. Blocks of all groups are therefore alike and come from one pool. Each
group has a block table per sequence: a block of a window group is released once no later token sees any of its tokens.
A cached prefix is found if the full group has all of its blocks and every window group those that the next token sees
(as in vLLM's hybrid KV cache manager, where groups of equal size share a pool, too).

The table of the full group, or of the only group where every layer has the window, is a sequence's `block_table`; it
is table 0 here. Released entries are `RELEASED`, and tables keep their length.
"""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import msgspec

from inference_core.model_config import ModelConfig

KVDtype = Literal["float32", "float16", "bfloat16", "fp8", "int8"]
CpuKVDtype = Literal["float32", "bfloat16", "int8"]  # what the CPU's kernels read; float16 and fp8 need CUDA
MeasuredKVDtype = Literal[CpuKVDtype, "fp8"]  # what a comparison on the CPU computes with
KV_ITEMSIZE: dict[KVDtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}
# Numbers of 8 bits share a bfloat16 scale: one per token and KV head for the key, one for the value.
KV_SCALE_BYTES: dict[KVDtype, int] = {"float32": 0, "float16": 0, "bfloat16": 0, "fp8": 2, "int8": 2}


def kv_bytes_per_token(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype: KVDtype) -> int:
    """2 (keys and values) x layers x KV heads x (head dim x item size + scale) (SPEC KV-02, KV-07)."""
    return 2 * num_layers * num_kv_heads * (head_dim * KV_ITEMSIZE[dtype] + KV_SCALE_BYTES[dtype])


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Geometry of one model's blocks. A block holds `num_layers` layers: all of the model's, or those of one group."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens of a block."""
    dtype: KVDtype
    window: int = 0
    """Tokens that layers of window groups see, 0 without such groups."""
    window_groups: int = 0
    """How many window groups stand next to the group with full attention. With 0 and a `window`, every layer has the
    window, and they are one group (`kv_cache.layout`).
    """

    @property
    def bytes_per_token(self) -> int:
        """See `kv_bytes_per_token`."""
        return kv_bytes_per_token(
            num_layers=self.num_layers, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, dtype=self.dtype
        )

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def layer_bytes(self) -> int:
        return self.block_bytes // self.num_layers

    @property
    def head_bytes(self) -> int:
        """Keys and values of one KV head in one layer."""
        return self.layer_bytes // self.num_kv_heads

    @property
    def numbers_per_lane(self) -> int:
        """r of the layout: dimensions of a key, or tokens of a value, that lie in one 32-bit lane."""
        return 4 // KV_ITEMSIZE[self.dtype]

    def blocks_per_slab(self, slab_bytes: int) -> int:
        return slab_bytes // self.block_bytes


RELEASED = -1
"""Stands in block tables for a block behind the window."""
MOST_CHUNK = 1024
"""Most tokens of a prompt in one step; a chunk's blocks are held besides the window's."""
MOST_POSITIONS = 1 << 20
"""The longest context without a layer of full attention: no memory bounds it, but it has tables."""
MOST_PADDING = 1.25
"""Layers in the groups by layers of the model, at most: short sequences lose what long ones gain."""


class LayerGroups(NamedTuple):
    """How a model's layers are grouped: each group has room for `group_layers`; by layer its group, and its index in
    there.
    """

    group_layers: int
    window_groups: int
    """How many groups with a window stand next to group 0."""
    places: list[tuple[int, int]]


def group_layers(config: ModelConfig) -> LayerGroups:
    """Group the layers of a model with windows: those of full attention are group 0, if there are any."""
    windowed = [i for i in range(config.num_layers) if config.window_of(i) is not None]
    full = [i for i in range(config.num_layers) if config.window_of(i) is None]
    if not full or not windowed:
        return LayerGroups(config.num_layers, 0, [(0, i) for i in range(config.num_layers)])
    size = len(full)
    places = {layer: (0, i) for i, layer in enumerate(full)}
    places |= {layer: (1 + i // size, i % size) for i, layer in enumerate(windowed)}
    return LayerGroups(size, -(-len(windowed) // size), [places[i] for i in range(config.num_layers)])


def grouped(layout: KVLayout, config: ModelConfig, max_context: int) -> KVLayout:
    """Return `layout`, of blocks that hold all layers of `config`, with groups where they save memory; else unchanged.

    They do not for contexts that the window covers, and where so few layers have a window that padding costs more than
    `MOST_PADDING`. A window smaller than a block would end within the block that is being written.
    """
    window = config.attention.sliding_window
    if window is None or not layout.block_size <= window < max_context:
        return layout
    size, beside, _ = group_layers(config)
    if not beside and (max_context > MOST_POSITIONS or config.window_of(0) is None):
        return layout
    if size * (1 + beside) > MOST_PADDING * config.num_layers:
        return layout
    return msgspec.structs.replace(layout, num_layers=size, window=window, window_groups=beside)


class CachedKey(NamedTuple):
    """The key under which block `position` of table `table` is cached."""

    table: int
    position: int
    key: bytes


class WindowGroups:
    """The arithmetic of the groups of one `layout` that has a window.

    `num_tables`: block tables per sequence. `keeps_all`: whether table 0 keeps every block. `most_chunk`: the most
    tokens of a sequence that one step may compute, drafts aside, on which `blocks_for` relies.
    """

    def __init__(self, layout: KVLayout) -> None:
        self.window, self.block_size = layout.window, layout.block_size
        self.num_tables = 1 + layout.window_groups
        self.keeps_all = layout.window_groups > 0
        self.most_chunk = min(MOST_CHUNK, 4 * layout.window)

    # -- sizes ---------------------------------------------------------------------------------

    def first_visible(self, tokens: int) -> int:
        """The first block that the token after `tokens` others, or any later one, sees through the window."""
        return max(0, tokens - self.window + 1) // self.block_size

    def window_blocks(self, chunk: int) -> int:
        """The most blocks that a table with a window holds while `chunk` tokens are computed."""
        return -(-(self.window + chunk - 2) // self.block_size) + 1

    def blocks_for(self, tokens: int) -> int:
        """The most blocks, of all groups, that a sequence of so many tokens holds at once."""
        positions = -(-tokens // self.block_size)
        behind = min(positions, self.window_blocks(self.most_chunk))
        return positions + (self.num_tables - 1) * behind if self.keeps_all else behind

    def tokens_in(self, blocks: int) -> int:
        """The most tokens of a sequence that holds no more than so many blocks, which do not hold any number."""
        beside = (self.num_tables - 1) * self.window_blocks(self.most_chunk)
        positions = max(blocks // self.num_tables, blocks - beside)
        return positions * self.block_size

    # -- cached prefixes -----------------------------------------------------------------------

    def keys(self, digest: bytes) -> list[bytes]:
        """The keys of the blocks of all tables under `digest`, which names the tokens. Table 0 has the digest itself,
        which is shorter than the others."""
        return [digest, *self._beside(digest)]

    def all_keys(self, digests: list[bytes]) -> list[bytes]:
        """The keys of all blocks of a chain, table after table."""
        return [key for keys in zip(*map(self.keys, digests), strict=True) for key in keys]

    def needed(self, digests: list[bytes], first: int = 0) -> list[CachedKey]:
        """The blocks from position `first` on that continuing behind `digests` needs, in order of positions."""
        count = len(digests)
        visible = self.first_visible(count * self.block_size)
        needed: list[CachedKey] = []
        for position in range(first if self.keeps_all else max(first, visible), count):
            keys = self.keys(digests[position]) if position >= visible else [digests[position]]
            needed += [CachedKey(table, position, key) for table, key in enumerate(keys)]
        return needed

    def longest_hit(self, digests: list[bytes], is_cached: Callable[[bytes], object]) -> int:
        """How many of the chain's first positions can be continued from what is cached."""
        hit = len(digests)
        if self.keeps_all:
            hit = next((i for i, digest in enumerate(digests) if not is_cached(digest)), hit)
        position = hit - 1
        while position >= self.first_visible(hit * self.block_size):
            if not all(map(is_cached, self._windowed(digests[position]))):
                hit = position
            position -= 1
        return hit

    def _beside(self, digest: bytes) -> Iterable[bytes]:
        return (digest + bytes((table,)) for table in range(1, self.num_tables))

    def _windowed(self, digest: bytes) -> Iterable[bytes]:
        return self._beside(digest) if self.keeps_all else (digest,)
