"""The chain of digests that names a full KV block by everything its content depends on.

Keys and values of a token depend on all tokens before it, so a block's name covers its own tokens
and, through its parent's name, all earlier ones and the salt. Where prompts are computed in an arithmetic of their
own, it covers as well which tokens were: recomputing a block then gives its bits. 128-bit BLAKE2b (RFC 7693): at 10^12
blocks the chance of any collision is about 10^-15. The native extension hashes a whole chain in one call; without it
hashlib gives the same names.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b

DIGEST_BYTES = 16

_native: Callable[[bytes, list[int], int, int, int], list[bytes]] | None
try:
    from inference_core.native._cpu import chain_digests as _native  # type: ignore[no-redef, import-not-found, unused-ignore]
except ImportError:
    _native = None


def root_digest(salt: str, adapter: bytes = b"", *, fast: bool = False) -> bytes:
    """Return the parent digest of all first blocks under `salt` (the tenant) and `adapter` (at most 16 bytes, empty:
    the base model), which alone share blocks. `fast`: the prompt is computed in prompt arithmetic."""
    person = b"aio-kv-root-fast" if fast else b"aio-kv-root"
    return blake2b(salt.encode(), digest_size=DIGEST_BYTES, person=person, salt=adapter).digest()


def border_digest(parent: bytes, fast_until: int) -> bytes:
    """Return what stands for `parent` as the parent of the first block with a token at position `fast_until` or later,
    which was computed in another arithmetic than those before it."""
    border = fast_until.to_bytes(8, "little")
    return blake2b(parent + border, digest_size=DIGEST_BYTES, person=b"aio-kv-border").digest()


def public_root(*, fast: bool = False) -> bytes:
    """Return the parent digest of the first blocks of public prefixes, which belong to no tenant (SPEC KV-06)."""
    return blake2b(digest_size=DIGEST_BYTES, person=b"aio-kv-public-f" if fast else b"aio-kv-public").digest()


def private_digest(public: bytes, root: bytes) -> bytes:
    """Return what stands for `public`, the last block of a public prefix, as the parent of the block that follows it in
    a prompt with the chain's `root`: from there on nothing is shared with other tenants."""
    return blake2b(public + root, digest_size=DIGEST_BYTES, person=b"aio-kv-private").digest()


def digests_after(public: list[bytes], root: bytes, token_ids: list[int], count: int, block_size: int) -> list[bytes]:
    """Return the digests of the first `count` blocks of a prompt that begins with the blocks `public` of a public
    prefix, or with none."""
    if not public:
        return chain_digests(root, token_ids, 0, count, block_size)
    if count <= len(public):
        return public[:count]
    parent = private_digest(public[-1], root)
    return public + chain_digests(parent, token_ids, len(public), count - len(public), block_size)


def chain_digests(parent: bytes, token_ids: list[int], first: int, count: int, block_size: int) -> list[bytes]:
    """Return the digests of blocks `first` to `first + count - 1` of `token_ids`; `parent`: that of the block before.

    A block's name is the digest of its parent's name and its token ids as unsigned 32-bit integers in the machine's
    byte order. Raises OverflowError for a token id out of this range.
    """
    if _native is not None:
        return _native(parent, token_ids, first, count, block_size)
    return hashed_chain(parent, token_ids, first, count, block_size)


def hashed_chain(parent: bytes, token_ids: list[int], first: int, count: int, block_size: int) -> list[bytes]:
    """`chain_digests` without the native extension."""
    digests = []
    for start in range(first * block_size, (first + count) * block_size, block_size):
        parent = blake2b(
            parent + array("I", token_ids[start : start + block_size]).tobytes(), digest_size=DIGEST_BYTES
        ).digest()
        digests.append(parent)
    return digests


def shareable_blocks(prompt_tokens: int, block_size: int) -> int:
    """How many blocks of a prompt the prefix cache can provide: its last token is always computed."""
    return max(0, prompt_tokens - 1) // block_size
