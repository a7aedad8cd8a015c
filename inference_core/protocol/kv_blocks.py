"""A loaded model as clients have to know it, and KV blocks in transfer between cores.

Blocks have an identity, digests, content and checksums.
"""

from hashlib import blake2b
from typing import Self

import msgspec

from inference_core.kv_cache.layout import KVLayout

CHECKSUM_BYTES = 8


class KVIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bytes of a KV block depend on besides its tokens and their adapter; only equals may share blocks."""

    weights: str
    """Content hash of the model's files."""
    compute: str
    """The model's arithmetic."""
    kernels: str
    """Which implementation computes, since rounding and the order of bytes within `layout` depend on it."""
    layout: KVLayout

    def difference(self, other: Self) -> str | None:
        """The first field in which they differ, with both values; None if they are equal."""
        for name in self.__struct_fields__:
            own, others = getattr(self, name), getattr(other, name)
            if own != others:
                return f"{name} {own} and {others}"
        return None


class BlockChain(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the full blocks of a prompt as `prefix_hash` does: by tokens, tenant and the adapter's content."""

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
    """A run of a chain's blocks from its block `first` on."""

    kv: KVIdentity
    first: int
    parent: bytes
    """The digest of the block before them, or the chain's root."""
    blocks: list[TransferredBlock]


def checksum(digest: bytes, content: bytes) -> bytes:
    """64-bit BLAKE2b (RFC 7693) of a block's content, keyed by its digest, so that no other digest has the same."""
    return blake2b(content, key=digest, digest_size=CHECKSUM_BYTES).digest()


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of a loaded model."""

    name: str
    model_path: str
    """Lets a client build the tokeniser itself."""
    max_context: int
    vocab_size: int
    weight_bytes: int
    compute: str
    weights: str = ""
    """Content hash of the model's files (`file_fingerprint`)."""
    num_layers: int = 0
    """Number of hidden states that it can return (`EvidenceRequest`); 0 if its runner returns no evidence."""
    hidden_size: int = 0
    """Size of these states; 0 if its runner returns no evidence."""
    kv: KVIdentity | None = None
    """The identity of its KV blocks; None if they cannot be transferred."""
    adapters: dict[str, str] = {}
    """Content hashes of the adapters that were loaded when the client connected, by name."""
    resumes: bool = False
    """Whether its core knows `AddRequest.drawn_token_ids`."""


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter: `rank` is the largest of its layers', `bytes` its size in a slot."""

    name: str
    path: str
    rank: int
    bytes: int
    resident: bool
    """Whether it is in a slot."""
    running: int
    """How many sequences run with it."""
    leaving: bool
    """Whether it is unloaded when the last request with it ends."""
    listed: bool = False
    """Whether the core's specification names it."""
