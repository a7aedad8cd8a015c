"""KV blocks on their way from one core to another: what they are, what they are named by, their bytes and checksums."""

from hashlib import blake2b
from typing import Self

import msgspec

from inference_core.kv_cache.layout import KVLayout

CHECKSUM_BYTES = 8


class KVIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bytes of a KV block depend on besides its tokens and their adapter; only equals may share blocks.

    `weights`: content hash of the model's files; `compute`: its arithmetic; `kernels`: who computes, whose rounding and
    order of bytes within `layout` are its own.
    """

    weights: str
    compute: str
    kernels: str
    layout: KVLayout

    def difference(self, other: Self) -> str | None:
        """The first field in which they differ, with both values; None if they are equal."""
        for name in self.__struct_fields__:
            own, others = getattr(self, name), getattr(other, name)
            if own != others:
                return f"{name} {own} and {others}"
        return None


class BlockChain(msgspec.Struct, frozen=True, kw_only=True):
    """Names the full blocks of a prompt as `prefix_hash` does: by its tokens, the tenant and the adapter's content."""

    model: str
    token_ids: list[int]
    salt: str = ""
    adapter: str = ""


class TransferredBlock(msgspec.Struct, frozen=True, array_like=True):
    """The content of one block, which `digest` names."""

    digest: bytes
    checksum: bytes
    content: bytes

    @classmethod
    def of(cls, digest: bytes, content: bytes) -> Self:
        """The block with the checksum of its content."""
        return cls(digest, checksum(digest, content), content)


class BlockFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a chain's blocks from its block `first` on; `parent` names the one before them, or the chain's root."""

    kv: KVIdentity
    first: int
    parent: bytes
    blocks: list[TransferredBlock]


def checksum(digest: bytes, content: bytes) -> bytes:
    """64-bit BLAKE2b (RFC 7693) of a block's content, keyed by its name: content under another name does not match."""
    return blake2b(content, key=digest, digest_size=CHECKSUM_BYTES).digest()
