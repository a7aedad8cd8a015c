"""Lets prefill replicas compute long prompts for the replicas that answer them (BS-08)."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager

import msgspec

from gateway.runtime.cluster.replica_choice import CoreReplica, chosen, prefix_key
from inference_core.errors import CoreError, CoreGoneError, KVTransferError, QueueFullError
from inference_core.protocol import AddRequest, CoreStats
from inference_core.transport.remote_prefill import (
    PrefillTransfer,
    chain_of,
    may_transfer,
    require_alike,
    transfer_prefill,
)

log = logging.getLogger(__name__)

DONE = "done"


class PromptHandover:
    """`visit` counts a request at a replica while it lasts; `read` checks whether a replica is still there."""

    def __init__(
        self,
        title: str,
        visit: Callable[[CoreReplica], AbstractContextManager[None]],
        read: Callable[[CoreReplica], Awaitable[object]],
    ) -> None:
        self._title, self._visit, self._read = title, visit, read
        self._outcomes: dict[str, Counter[str]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tokens: Counter[str] = Counter()

    async def prepare(self, request: AddRequest, target: CoreReplica, sources: Iterable[CoreReplica]) -> int:
        """Bring the prompt's blocks to `target` if it is long enough; return how many tokens were computed for it.

        A failure is counted, and the request continues without; only cancellation is raised.
        """
        if not self._is_wanted(request, target):
            return 0
        source = chosen(prefix_key(request), sources)
        try:
            done = await self._handed_over(request, source, target)
        except CoreError as error:
            outcome = _why(error)
            log.info("%s: %s is computed where it is answered: %s", self._title, request.request_id, error)
            self._count(request, outcome)
            if outcome == "gone" and source is not None:
                await asyncio.gather(self._read(source), self._read(target))
            return 0
        if done is None:
            return 0
        self._count(request, DONE)
        self._seconds[request.model] += done.prefill_seconds + done.copy_seconds
        self._tokens[request.model] += done.tokens
        return min(done.tokens, done.computed)

    def _count(self, request: AddRequest, outcome: str) -> None:
        self._outcomes.setdefault(request.model, Counter())[outcome] += 1

    def _is_wanted(self, request: AddRequest, target: CoreReplica) -> bool:
        least = target.handover_min_tokens(request.model)
        return target.role == "decode" and 0 < least <= len(request.prompt_token_ids) and may_transfer(request)

    async def _handed_over(
        self, request: AddRequest, source: CoreReplica | None, target: CoreReplica
    ) -> PrefillTransfer | None:
        """Return None if `target` lacks too little of the prompt. Raises `CoreError`."""
        if source is None:
            raise CoreGoneError("no prefill replica accepts prompts")
        block_size = require_alike(request.model, source.client, target.client).layout.block_size
        held = await target.client.import_blocks(chain_of(request))
        if len(request.prompt_token_ids) - held * block_size < target.handover_min_tokens(request.model):
            return None
        with self._visit(source):
            return await transfer_prefill(request, source.client, target.client, first=held, copying=source.copying)

    def added_to(self, stats: CoreStats) -> CoreStats:
        """Add the outcomes of prompt transfers to the cores' statistics."""
        for model in stats.models:
            model.handover = msgspec.structs.replace(
                model.handover,
                outcomes=dict(self._outcomes.get(model.name, {})),
                seconds=self._seconds[model.name],
                tokens=self._tokens[model.name],
            )
        return stats


def _why(error: CoreError) -> str:
    """Return the outcome that an error stands for."""
    if isinstance(error, KVTransferError):
        return error.reason
    if isinstance(error, QueueFullError):
        return "overloaded"
    return "gone" if isinstance(error, CoreGoneError) else "refused"
