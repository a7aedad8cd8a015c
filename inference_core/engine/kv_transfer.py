"""Exports a model's cached KV blocks to other cores, and imports theirs into its prefix cache (SPEC BS-08).

An imported block is an ordinary prefix hit: scheduling and admission do not know where it came from.
"""

from dataclasses import dataclass

from inference_core.errors import KVTransferError
from inference_core.execution.runner import BlockBytes, ModelRunner
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import CachedKey
from inference_core.kv_cache.prefix_hash import digests_after, shareable_blocks
from inference_core.protocol import KVTransferStats
from inference_core.protocol.kv_blocks import BlockFrame, KVIdentity, TransferredBlock, checksum


@dataclass(slots=True)
class _Totals:
    out_blocks: int = 0
    in_blocks: int = 0
    refused_frames: int = 0


class KVTransfer:
    """Exports and imports blocks of `pool`, whose content `runner` reads and writes. Stateless between calls.

    `public`, in each of them: the digests of the public prefix that the prompt begins with here; another core that has
    pinned other prefixes names the blocks of this prompt otherwise, and refuses them.

    Where window layers have blocks of their own, a transferred block is what one position has of all groups: those with
    a window only where the token after the chain sees them."""

    def __init__(self, pool: BlockPool, runner: ModelRunner) -> None:
        self._pool = pool
        self._runner = runner
        self._totals = _Totals()

    def stats(self) -> KVTransferStats:
        """Counts since start."""
        totals = self._totals
        return KVTransferStats(
            out_blocks=totals.out_blocks, in_blocks=totals.in_blocks, refused_frames=totals.refused_frames
        )

    def held(self, root: bytes, public: list[bytes], token_ids: list[int]) -> int:
        """Return how many full blocks of a prompt, from the first on, are cached."""
        return self._cached(self._digests(root, public, token_ids))

    def export(self, root: bytes, public: list[bytes], token_ids: list[int], first: int, most_bytes: int) -> BlockFrame:
        """Return the cached blocks of a prompt from its block `first` on, up to `most_bytes` but at least one.

        `root` names the chain's first parent (`prefix_hash`). Raises `KVTransferError` if the model's blocks cannot be
        transferred, or if there is no such block.
        """
        kv, content = self._require()
        digests = self._digests(root, public, token_ids)
        if not 0 <= first <= len(digests):
            raise KVTransferError(f"block {first} is asked for; the prompt has {len(digests)} full ones", "refused")
        last = min(self._cached(digests), first + max(1, most_bytes // (self._pool.block_bytes * self._tables)))
        wanted = [(key, self._pool.cached(key.key)) for key in self._needed(digests, first) if key.position < last]
        read = content.read([block for _, block in wanted if block is not None])
        contents = [b""] * max(0, last - first)
        for (key, _), bytes_ in zip(wanted, read, strict=True):
            contents[key.position - first] += bytes_
        self._totals.out_blocks += len(read)
        return BlockFrame(
            kv=kv,
            first=first,
            parent=digests[first - 1] if first else root,
            blocks=[TransferredBlock.of(*each) for each in zip(digests[first:], contents, strict=False)],
        )

    def take(self, root: bytes, public: list[bytes], token_ids: list[int], frame: BlockFrame) -> int:
        """Cache the blocks of `frame`, all or none; return how many of the prompt's blocks are cached then.

        Raises `KVTransferError` for blocks of another model, layout, token sequence, tenant or adapter, for damaged
        blocks, for blocks whose predecessors are not cached, and without free memory.
        """
        try:
            return self._take(root, self._digests(root, public, token_ids), frame)
        except KVTransferError:
            self._totals.refused_frames += 1
            raise

    def _take(self, root: bytes, digests: list[bytes], frame: BlockFrame) -> int:
        kv, content = self._require()
        if (difference := frame.kv.difference(kv)) is not None:
            raise KVTransferError(f"the blocks are not this core's kind: {difference}", "incompatible")
        first, last = frame.first, frame.first + len(frame.blocks)
        if [frame.parent, *(b.digest for b in frame.blocks)] != [root, *digests][first : last + 1] or first < 0:
            raise KVTransferError("the blocks are not those of the prompt, its tenant and its adapter", "refused")
        pool = self._pool
        parts = [part for block in frame.blocks for part in self._parts(block)]
        head = pool.match(digests[:first])
        if len(head) < first and self._tables_keep_all:
            raise KVTransferError(f"blocks from {first} on, but only {len(head)} before them are here", "missing")
        lacking = [(key, part) for key, part in parts if pool.cached(key) is None]
        if not lacking:
            return self._cached(digests)
        # Hold what is cached meanwhile, so that allocating the rest does not evict it.
        cached = head + [block for key, _ in parts if (block := pool.cached(key)) is not None]
        pool.acquire(cached)
        fresh = pool.allocate(len(lacking))
        # No step is planned that could copy the evicted blocks to host memory.
        pool.host.lose_offloads()
        try:
            if fresh is None:
                raise KVTransferError(f"{pool.name}: no room for {len(lacking)} blocks", "full")
            content.write(fresh, [part for _, part in lacking])
            pool.register(fresh, [key for key, _ in lacking])
            self._totals.in_blocks += len(fresh)
        finally:
            pool.release(cached + (fresh or []))
        return self._cached(digests)

    def _parts(self, block: TransferredBlock) -> list[tuple[bytes, bytes]]:
        """Return the content of the blocks at one position, by their names; behind windows there are fewer of them."""
        windows, size = self._pool.windows, self._pool.block_bytes
        keys = [block.digest] if windows is None else windows.keys(block.digest)
        count, rest = divmod(len(block.content), size)
        least = 1 if self._tables_keep_all else 0
        if rest or count not in (least, len(keys)) or checksum(block.digest, block.content) != block.checksum:
            raise KVTransferError("a block's content does not match its checksum", "corrupt")
        return [(key, block.content[i * size : (i + 1) * size]) for i, key in enumerate(keys[:count])]

    @property
    def _tables(self) -> int:
        windows = self._pool.windows
        return 1 if windows is None else windows.num_tables

    @property
    def _tables_keep_all(self) -> bool:
        """Whether every position of a cached chain has a block."""
        windows = self._pool.windows
        return windows is None or windows.keeps_all

    def _cached(self, digests: list[bytes]) -> int:
        """How many positions of the chain, from the first on, a sequence could begin with."""
        pool = self._pool
        if pool.windows is None:
            return len(pool.match(digests))
        return pool.windows.longest_hit(digests, lambda key: pool.cached(key) is not None)

    def _needed(self, digests: list[bytes], first: int) -> list[CachedKey]:
        """The blocks from position `first` on that continuing behind what is cached of the chain needs."""
        length, windows = self._cached(digests), self._pool.windows
        if windows is None:
            return [CachedKey(0, position, digests[position]) for position in range(first, length)]
        return windows.needed(digests[:length], first)

    def _digests(self, root: bytes, public: list[bytes], token_ids: list[int]) -> list[bytes]:
        size = self._pool.block_size
        return digests_after(public, root, token_ids, shareable_blocks(len(token_ids), size), size)

    def _require(self) -> tuple[KVIdentity, BlockBytes]:
        kv, content = self._runner.info.kv, self._runner.blocks
        if kv is None or content is None:
            raise KVTransferError(f"{self._pool.name} is computed where blocks cannot be transferred", "incompatible")
        return kv, content
