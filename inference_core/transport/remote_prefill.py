"""A prompt computed by one core, its blocks copied to another: what prefill replicas do (SPEC BS-08).

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
"""Of blocks that are under way at once: half of what a core server lets a slow reader leave unread."""


@dataclass(slots=True, frozen=True, kw_only=True)
class PrefillTransfer:
    """`tokens` went over in `num_bytes` of content, and `computed` of the prompt's were computed for it; the rest of
    the blocks was there, or was cached at the source."""

    tokens: int
    computed: int
    num_bytes: int
    prefill_seconds: float
    copy_seconds: float


def chain_of(request: AddRequest) -> BlockChain:
    """What names the blocks of the request's prompt."""
    return BlockChain(
        model=request.model, token_ids=request.prompt_token_ids, salt=request.salt, adapter=request.adapter
    )


def may_transfer(request: AddRequest) -> bool:
    """Whether the answer may begin with blocks from elsewhere: scores and states of the prompt have to be computed."""
    wants_states = request.evidence is not None and request.evidence.layer is not None
    return not (request.embed or request.prefill or wants_states or request.sampling.prompt_logprobs is not None)


def require_alike(model: str, source: CoreClient, target: CoreClient) -> KVIdentity:
    """What both hold of the model. Raises `KVTransferError` unless they compute and keep keys and values alike."""
    ours, theirs = (client.models[model].kv if model in client.models else None for client in (source, target))
    if ours is None or theirs is None:
        raise KVTransferError(f"{model} is computed where blocks cannot be handed over", "incompatible")
    if (difference := ours.difference(theirs)) is not None:
        raise KVTransferError(f"{model}: the cores differ in {difference}", "incompatible")
    return ours


async def transfer_prefill(
    request: AddRequest, source: CoreClient, target: CoreClient, *, first: int = 0, copying: asyncio.Lock | None = None
) -> PrefillTransfer:
    """Have `source` compute the request's prompt, and copy its blocks to `target` from the block `first` on, which is
    the first that lacks there. One copy from a source at a time, if it is given the lock `copying`.

    Cancelling it leaves nothing but cached blocks. Raises `KVTransferError`, `CoreGoneError` and, of the prefill, what
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
    """Copy the chain's blocks from `first` on, as far as `source` has them: how many `target` holds then, and the
    bytes of content. One frame is read while the one before it is written. Raises `KVTransferError` and
    `CoreGoneError`."""
    frame = await source.export_blocks(chain, first, FRAME_BYTES)
    if not frame.blocks:
        raise KVTransferError("the blocks were given up before they could be copied", "missing")
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
