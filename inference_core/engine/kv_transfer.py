"""Exports a model's cached KV blocks to other cores, and imports theirs into its prefix cache (SPEC BS-08).

An imported block is an ordinary prefix hit: scheduling and admission do not know where it came from.
"""

from dataclasses import dataclass

from inference_core.errors import KVTransferError
from inference_core.execution.runner import ModelRunner
from inference_core.kv_cache.block_io import BlockBytes
from inference_core.kv_cache.block_pool import BlockPool
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
    pinned other prefixes names the blocks of this prompt otherwise, and refuses them."""

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
        return len(self._pool.match(self._digests(root, public, token_ids)))

    def export(self, root: bytes, public: list[bytes], token_ids: list[int], first: int, most_bytes: int) -> BlockFrame:
        """Return the cached blocks of a prompt from its block `first` on, up to `most_bytes` but at least one.

        `root` names the chain's first parent (`prefix_hash`). Raises `KVTransferError` if the model's blocks cannot be
        transferred, or if there is no such block.
        """
        kv, content = self._require()
        digests = self._digests(root, public, token_ids)
        if not 0 <= first <= len(digests):
            raise KVTransferError(f"block {first} is asked for; the prompt has {len(digests)} full ones", "refused")
        most = max(1, most_bytes // self._pool.block_bytes)
        blocks = self._pool.match(digests[: first + most])[first:]
        named = zip(digests[first:], content.read(blocks), strict=False)
        self._totals.out_blocks += len(blocks)
        return BlockFrame(
            kv=kv,
            first=first,
            parent=digests[first - 1] if first else root,
            blocks=[TransferredBlock.of(digest, bytes_) for digest, bytes_ in named],
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
        for block in frame.blocks:
            self._check(block)
        pool = self._pool
        cached = pool.match(digests[:last])
        if len(cached) < first:
            raise KVTransferError(f"blocks from {first} on, but only {len(cached)} before them are here", "missing")
        lacking = frame.blocks[len(cached) - first :]
        if not lacking:
            return len(pool.match(digests))
        # Hold the cached head meanwhile, so that allocating the tail does not evict it.
        pool.acquire(cached)
        fresh = pool.allocate(len(lacking))
        # No step is planned that could copy the evicted blocks to host memory.
        pool.host.lose_offloads()
        try:
            if fresh is None:
                raise KVTransferError(f"{pool.name}: no room for {len(lacking)} blocks", "full")
            content.write(fresh, [block.content for block in lacking])
            pool.register(fresh, [block.digest for block in lacking])
            self._totals.in_blocks += len(fresh)
        finally:
            pool.release(cached + (fresh or []))
        return len(pool.match(digests))

    def _check(self, block: TransferredBlock) -> None:
        if len(block.content) != self._pool.block_bytes or checksum(block.digest, block.content) != block.checksum:
            raise KVTransferError("a block's content does not match its checksum", "corrupt")

    def _digests(self, root: bytes, public: list[bytes], token_ids: list[int]) -> list[bytes]:
        size = self._pool.block_size
        return digests_after(public, root, token_ids, shareable_blocks(len(token_ids), size), size)

    def _require(self) -> tuple[KVIdentity, BlockBytes]:
        kv, content = self._runner.info.kv, self._runner.blocks
        if kv is None or content is None:
            raise KVTransferError(f"{self._pool.name} is computed where blocks cannot be transferred", "incompatible")
        return kv, content
