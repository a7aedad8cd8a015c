"""Disaggregated prefill: one core computes a prompt, and its KV blocks are copied to another (SPEC BS-08).

After DistServe (Zhong et al. 2024) and Mooncake (Qin et al. 2024): keys and values travel once, by their content hash.
"""

import asyncio
import time
from dataclasses import dataclass

from inference_core.errors import KVTransferError
from inference_core.kv_cache.prefix_hash import shareable_blocks
from inference_core.protocol import AddRequest
from inference_core.protocol.kv_blocks import BlockChain, KVIdentity
from inference_core.transport.client import CoreClient

FRAME_BYTES = 4 << 20
"""Bytes of blocks in flight at once: half of what a core server lets a slow reader leave unread."""


@dataclass(slots=True, frozen=True, kw_only=True)
class PrefillTransfer:
    """What was copied of a prompt."""

    tokens: int
    """Tokens whose blocks were copied."""
    computed: int
    """Tokens that the source computed; the rest was cached."""
    num_bytes: int
    """Size of the copied content."""
    prefill_seconds: float
    copy_seconds: float


def chain_of(request: AddRequest) -> BlockChain:
    """Return the chain that names the blocks of the request's prompt."""
    return BlockChain(
        model=request.model, token_ids=request.prompt_token_ids, salt=request.salt, adapter=request.adapter
    )


def may_transfer(request: AddRequest) -> bool:
    """Whether the answer may use transferred blocks; prompt scores and states need a local computation."""
    wants_states = request.evidence is not None and request.evidence.layer is not None
    return not (request.embed or request.prefill or wants_states or request.sampling.prompt_logprobs is not None)


def require_alike(model: str, source: CoreClient, target: CoreClient) -> KVIdentity:
    """Return the KV identity of `model`. Raises `KVTransferError` unless it is the same in both cores."""
    ours, theirs = (client.models[model].kv if model in client.models else None for client in (source, target))
    if ours is None or theirs is None:
        raise KVTransferError(f"{model} is computed where blocks cannot be transferred", "incompatible")
    if (difference := ours.difference(theirs)) is not None:
        raise KVTransferError(f"{model}: the cores differ in {difference}", "incompatible")
    return ours


async def transfer_prefill(
    request: AddRequest, source: CoreClient, target: CoreClient, *, first: int = 0, copying: asyncio.Lock | None = None
) -> PrefillTransfer:
    """Compute the request's prompt at `source`, and copy its blocks to `target` from block `first` on, the first one
    missing there. `copying`: a lock that allows one copy from a source at a time.

    Cancellation leaves nothing but cached blocks. Raises `KVTransferError`, `CoreGoneError` and, of the prefill, what
    `CoreClient.prefill` raises.
    """
    kv = require_alike(request.model, source, target)
    began = time.monotonic()
    prompt = await source.prefill(request)
    computed = time.monotonic()
    async with copying or asyncio.Lock():
        held, num_bytes = await copy_blocks(chain_of(request), source, target, first)
    return PrefillTransfer(
        tokens=(held - first) * kv.layout.block_size,
        computed=prompt.prompt_tokens - prompt.cached_tokens,
        num_bytes=num_bytes,
        prefill_seconds=computed - began,
        copy_seconds=time.monotonic() - computed,
    )


async def copy_blocks(chain: BlockChain, source: CoreClient, target: CoreClient, first: int) -> tuple[int, int]:
    """Copy the chain's blocks from `first` on that `source` has; return how many `target` holds then, and the bytes of
    content. One frame is read while the previous one is written. Raises `KVTransferError` and
    `CoreGoneError`."""
    frame = await source.export_blocks(chain, first, FRAME_BYTES)
    if not frame.blocks:
        raise KVTransferError("the blocks were evicted before they could be copied", "missing")
    last, num_bytes = shareable_blocks(len(chain.token_ids), frame.kv.layout.block_size), 0
    while True:
        num_bytes += sum(len(block.content) for block in frame.blocks)
        following = frame.first + len(frame.blocks)
        taking = target.import_blocks(chain, frame)
        if following >= last:
            return await taking, num_bytes
        frame, held = await asyncio.gather(source.export_blocks(chain, following, FRAME_BYTES), taking)
        if not frame.blocks:
            return held, num_bytes
