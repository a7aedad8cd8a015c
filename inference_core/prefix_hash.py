"""The chain of digests that names a full KV block by everything its content depends on.

Keys and values of a token depend on all tokens before it, so a block's name covers its own tokens
and, through its parent's name, all earlier ones and the salt. 128-bit BLAKE2b (RFC 7693): at 10^12 blocks
the chance of any collision is about 10^-15.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def root_digest(salt: str) -> bytes:
    """The parent of every first block under `salt` (tenant, adapter): other salts share no block."""
    return blake2b(salt.encode(), digest_size=DIGEST_BYTES, person=b"aio-kv-root").digest()


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of the full block of `token_ids` that follows the block named `parent`."""
    return blake2b(parent + array("I", token_ids).tobytes(), digest_size=DIGEST_BYTES).digest()
