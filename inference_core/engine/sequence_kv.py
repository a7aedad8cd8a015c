"""Which tokens of a sequence have keys and values, in which blocks these are, and how the prefix cache names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from inference_core.kv_cache.prefix_hash import border_digest, chain_digests, private_digest, root_digest
from inference_core.step_plan import ScheduledSequence


@dataclass(slots=True, eq=False)
class SequenceKV:
    """The keys and values of a sequence. There are no phases: `num_computed_tokens` catches up with `token_ids`."""

    token_ids: list[int]
    """The sequence's own list."""
    share: ScheduledSequence
    """The sequence's part of a step: its block tables are those of the sequence."""
    root: bytes
    """What the digest of the first block follows."""
    digests: list[bytes]
    """Names of the first full blocks in the prefix cache."""
    num_public_blocks: int
    """How many of its first blocks are those of a public prefix, and named accordingly."""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """How many tokens the prefix cache held when the sequence last began to wait."""
    num_registered_blocks: int = 0
    """How many of its first blocks are in the prefix cache."""
    num_behind: int = 0
    """How many of the first blocks of tables with a window were released (`kv_cache.layout`)."""
    pinned: list[int] = field(default_factory=list)
    """All blocks that it needs, pinned for it to fill; [] for a sequence that allocates its blocks as it grows."""

    @classmethod
    def of_tokens(
        cls,
        token_ids: list[int],
        share: ScheduledSequence,
        public: list[bytes],
        salt: str,
        adapter_digest: bytes,
        *,
        fast: bool,
    ) -> Self:
        """Return those of a sequence of which nothing is computed. `public`: the digests of the public prefix that it
        begins with; salt, adapter and the arithmetic of the prompt (`fast`) keep its other blocks apart from those of
        other sequences."""
        root = root_digest(salt, adapter_digest, fast=fast)
        return cls(token_ids, share, root, public, num_public_blocks=len(public))

    @property
    def block_table(self) -> list[int]:
        """Covers the computed tokens and those of the step in flight, so less than one block of it is unused."""
        return self.share.block_table

    @block_table.setter
    def block_table(self, blocks: list[int]) -> None:
        self.share.block_table = blocks

    @property
    def window_tables(self) -> Sequence[list[int]]:
        """Tables of window groups, each as long as `block_table`."""
        return self.share.window_tables

    @window_tables.setter
    def window_tables(self, tables: Sequence[list[int]]) -> None:
        self.share.window_tables = tables

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens to compute before the next one is drawn; of a waiting sequence, as far as known when it joined."""
        return len(self.token_ids) - max(self.num_computed_tokens, self.num_cached_tokens)

    def extend_digests(self, count: int, block_size: int) -> None:
        """Extend `digests` to at least the first `count` full blocks of `token_ids`."""
        fast_until = self.share.fast_until
        border = fast_until // block_size
        for end in (min(count, border), count):
            num_digests = len(self.digests)
            if num_digests < end:
                parent = self.digests[-1] if num_digests else self.root
                if num_digests and num_digests == self.num_public_blocks:
                    parent = private_digest(parent, self.root)
                if fast_until and num_digests == border:
                    parent = border_digest(parent, fast_until)
                self.digests += chain_digests(parent, self.token_ids, num_digests, end - num_digests, block_size)
