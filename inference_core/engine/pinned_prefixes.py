"""Prefixes of prompts that are computed ahead and then stay cached until they are unpinned (SPEC KV-06)."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile

import msgspec

from inference_core.engine.scheduler import Scheduler
from inference_core.errors import IntegrityError, InvalidRequestError, PrefixError
from inference_core.kv_cache.layout import KVLayout
from inference_core.kv_cache.prefix_hash import chain_digests, public_root, root_digest, shareable_blocks
from inference_core.kv_cache.slab_arena import SlabArena
from inference_core.protocol import LAST_CLASS, AddRequest, PrefixStats, SamplingParams, SequenceOutput

logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""How long after a failure a prefix is computed again."""
MEMORY_SECONDS = 0.1
"""How long after live requests left no memory for a prefix this is looked at again."""


class PinnedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The first tokens of prompts of `model` that are computed without an adapter; those beyond its last full block are
    ignored.
    """

    name: str
    model: str
    token_ids: list[int]
    tenant: str | None = None
    """The tenant whose prompts find it (`AddRequest.salt`); None for a public prefix, which all prompts find."""


@dataclass(slots=True, eq=False)
class Pin:
    """A prefix on its way into the cache: without `blocks` it waits for memory, with `request_id` it is computed."""

    prefix: PinnedPrefix
    scheduler: Scheduler
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    request_id: str = ""
    is_ready: bool = False
    try_at: float = -math.inf
    """The earliest time, by the clock, at which it may be started."""
    error: str = ""
    """Why it failed last."""

    @property
    def num_blocks(self) -> int:
        """How many blocks it takes, in memory or not."""
        positions = len(self.prefix.token_ids) // self.scheduler.pool.block_size
        return positions * self.scheduler.tables.per_position

    @property
    def keys(self) -> list[bytes]:
        """The names of its blocks in the prefix cache."""
        return self.scheduler.tables.cache_keys(self.digests)

    @property
    def waits(self) -> bool:
        """Whether it is to be started: it has no memory, and its model caches prefixes."""
        return not self.blocks and self.scheduler.knobs.prefix_caching


class PinnedPrefixes:
    """The pinned prefixes of a core's models. They take whole slabs, at most `share` of those of `arena`.

    What a prefix needs is allocated before it is computed, so it neither waits for blocks nor takes any from others.
    Its blocks are found once all are full. Tenants share the blocks of public prefixes and nothing else: those after
    them are named by the tenant again, and no request but the pin's own puts blocks under a public name. `computing`:
    those under way, by the ids of their requests. `public`: the digests of public ones that are ready, by model.
    """

    def __init__(self, arena: SlabArena, share: float) -> None:
        self._arena, self._share = arena, share
        self._pins: dict[tuple[str, str], Pin] = {}
        self.computing: dict[str, Pin] = {}
        self.public: dict[str, set[bytes]] = {}
        self._serials = count()

    # -- what is pinned ------------------------------------------------------------------------

    def add(self, prefix: PinnedPrefix, scheduler: Scheduler, max_context: int) -> None:
        """Note a prefix, to be started. Raises `PrefixError` for a name in use, fewer tokens than a block, as many as
        the context of `max_context` tokens, and more memory than may be pinned."""
        if len(prefix.token_ids) >= max_context:
            raise PrefixError(
                f"{prefix.model}: prefix {prefix.name!r} has {len(prefix.token_ids)} tokens, which leave nothing of "
                f"the context of {max_context} for prompt and answer; shorten it"
            )
        if (prefix.model, prefix.name) in self._pins:
            raise PrefixError(f"{prefix.model}: a prefix {prefix.name!r} is pinned already; choose another name")
        size, length = scheduler.pool.block_size, len(prefix.token_ids)
        if length < size:
            raise PrefixError(
                f"{prefix.model}: prefix {prefix.name!r} has {length} tokens, and only blocks of {size} can be pinned; "
                "make it longer, or leave it out"
            )
        pin = Pin(msgspec.structs.replace(prefix, token_ids=prefix.token_ids[: length // size * size]), scheduler)
        self._require_room(pin)
        self._pins[prefix.model, prefix.name] = pin

    def remove(self, model: str, name: str) -> Pin:
        """Forget a prefix and return it, for `release`. Raises `PrefixError` if there is none."""
        pin = self._pins.pop((model, name), None)
        if pin is None:
            raise PrefixError(f"{model}: no prefix {name!r} is pinned")
        return pin

    def of(self, model: str) -> list[Pin]:
        return [pin for pin in self._pins.values() if pin.prefix.model == model]

    def public_head(
        self, scheduler: Scheduler, salt: str, adapter: bytes, token_ids: list[int], *, fast: bool
    ) -> list[bytes]:
        """Return the digests of the blocks of public prefixes that the prompt `token_ids` begins with, unless as many
        are cached of the blocks of its own tenant, `salt`, where more may follow. `adapter`: its digest, b"" for none.
        """
        pinned = self.public.get(scheduler.name)
        if not pinned or adapter:
            return []
        size = scheduler.pool.block_size
        most = min(shareable_blocks(len(token_ids), size), len(pinned))
        public = list(takewhile(pinned.__contains__, chain_digests(public_root(fast=fast), token_ids, 0, most, size)))
        if not public:
            return []
        own = chain_digests(root_digest(salt, fast=fast), token_ids, 0, len(public), size)
        return [] if scheduler.tables.cached_blocks(own) == len(public) else public

    def stats(self, model: str) -> list[PrefixStats]:
        return [
            PrefixStats(
                name=pin.prefix.name,
                tenant=pin.prefix.tenant,
                tokens=len(pin.prefix.token_ids),
                blocks=pin.num_blocks,
                ready=pin.is_ready,
                error=pin.error,
            )
            for pin in self.of(model)
        ]

    def _require_room(self, added: Pin) -> None:
        """Raise `PrefixError` unless all prefixes fit."""
        slabs = self._slabs(added.scheduler.peers, {}, added)
        if slabs > self._most_slabs:
            arena, prefix = self._arena, added.prefix
            raise PrefixError(
                f"{prefix.model}: prefix {prefix.name!r} of {len(prefix.token_ids)} tokens takes {added.num_blocks} "
                f"blocks; with it, pinned prefixes would take {slabs} slabs of {arena.slab_bytes} bytes, but "
                f"pinned_share = {self._share:g} allows {self._most_slabs} of the arena's {arena.num_slabs}; shorten "
                "or remove a prefix, raise pinned_share, or enlarge the arena"
            )

    def require_room(self, layouts: Mapping[str, KVLayout], schedulers: list[Scheduler]) -> None:
        """Raise `InvalidRequestError` unless blocks, live requests and prefixes of the models that get `layouts` of
        another dtype fit the arena then."""
        arena = self._arena
        for scheduler in schedulers:
            layout, name = layouts.get(scheduler.name), scheduler.name
            if layout is None:
                continue
            per_slab = layout.blocks_per_slab(arena.slab_bytes)
            if not per_slab:
                raise InvalidRequestError(
                    f"kv_dtype is {layout.dtype}; a block of {name} would take {layout.block_bytes} bytes, more than a "
                    f"slab of {arena.slab_bytes}: make slab_bytes larger or block_size smaller",
                    "kv_dtype",
                )
            # Its own prefixes are pinned again once there is memory.
            most = (arena.num_slabs - arena.num_pinned + scheduler.pool.num_pinned_slabs) * per_slab
            if (needed := _largest_need(scheduler)) > most:
                raise InvalidRequestError(
                    f"kv_dtype is {layout.dtype}; a request in flight at {name} may need {needed} blocks, and the "
                    f"arena would have {most}: try again once it has ended, or enlarge the arena",
                    "kv_dtype",
                )
        if (slabs := self._slabs(schedulers, layouts)) > self._most_slabs:
            raise InvalidRequestError(
                f"kv_dtype would let pinned prefixes take {slabs} slabs of {arena.slab_bytes} bytes, and pinned_share "
                f"allows {self._most_slabs} of {arena.num_slabs}: shorten or remove a prefix, raise pinned_share, or "
                "enlarge the arena",
                "kv_dtype",
            )

    def _slabs(self, schedulers: list[Scheduler], layouts: Mapping[str, KVLayout], *added: Pin) -> int:
        """Return how many slabs all prefixes take with those `added`. `layouts`: of the models whose prefixes are
        released first."""
        slabs = 0
        for scheduler in schedulers:
            name, pool = scheduler.name, scheduler.pool
            blocks = sum(pin.num_blocks for pin in (*self.of(name), *added) if pin.scheduler is scheduler)
            if name in layouts:
                slabs += -(-blocks // layouts[name].blocks_per_slab(self._arena.slab_bytes))
            else:
                # A model keeps the slabs that it has for as long as they hold any block, so that it may have more of
                # them than its blocks would fill.
                slabs += max(-(-blocks // pool.blocks_per_slab), pool.num_pinned_slabs)
        return slabs

    @property
    def _most_slabs(self) -> int:
        return int(self._share * self._arena.num_slabs)

    # -- computing -----------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether a prefix is to be started, now or later."""
        return any(pin.waits for pin in self._pins.values())

    def seconds_until_due(self, now: float) -> float:
        """Seconds until a waiting prefix may be started; 0 without any."""
        return max(0.0, min((pin.try_at for pin in self._pins.values() if pin.waits), default=now) - now)

    def due(self, now: float) -> list[Pin]:
        """The waiting prefixes that may be started."""
        return [pin for pin in self._pins.values() if pin.waits and pin.try_at <= now]

    def allocate(self, pin: Pin, now: float) -> bool:
        """Allocate the blocks of `pin`; False while live requests need the memory, or a model's queue is full."""
        scheduler = pin.scheduler
        if not self._leaves_room(pin) or len(scheduler.waiting) >= scheduler.knobs.max_waiting:
            blocks = None
        elif (blocks := scheduler.pool.allocate_pinned(pin.num_blocks)) is None and scheduler.reclaim():
            blocks = scheduler.pool.allocate_pinned(pin.num_blocks)
        pin.try_at = now + MEMORY_SECONDS
        pin.blocks = blocks or []
        return blocks is not None

    def _leaves_room(self, pin: Pin) -> bool:
        """Whether every live request still fits by itself, and pins within their share, if `pin` gets its memory."""
        slabs = self._arena.num_pinned + pin.scheduler.pool.slabs_to_pin(pin.num_blocks)
        left = self._arena.num_slabs - slabs
        return slabs <= self._most_slabs and all(
            _largest_need(peer) <= left * peer.pool.blocks_per_slab for peer in pin.scheduler.peers
        )

    def request(self, pin: Pin, *, fast: bool) -> AddRequest:
        """Return the request that fills the blocks of `pin`. `fast`: it is computed in prompt arithmetic."""
        prefix, size = pin.prefix, pin.scheduler.pool.block_size
        root = public_root(fast=fast) if prefix.tenant is None else root_digest(prefix.tenant, fast=fast)
        pin.digests = chain_digests(root, prefix.token_ids, 0, len(prefix.token_ids) // size, size)
        pin.request_id = f"pinned prefix {prefix.model}/{prefix.name} {next(self._serials)}"
        self.computing[pin.request_id] = pin
        return AddRequest(
            request_id=pin.request_id,
            model=prefix.model,
            prompt_token_ids=prefix.token_ids,
            sampling=SamplingParams(temperature=0.0, max_tokens=1),
            # What users wait for goes first.
            priority=LAST_CLASS,
            speculate=False,
            prefill=True,
        )

    def settle(self, outputs: list[SequenceOutput], now: float) -> list[SequenceOutput]:
        """Note which prefixes have been computed, or failed; return the outputs of all other requests."""
        others = []
        for output in outputs:
            pin = self.computing.pop(output.request_id, None)
            if pin is None:
                others.append(output)
            elif output.finish_reason == "stop":
                pin.request_id, pin.is_ready, pin.error = "", True, ""
                self._cache_ready(pin.scheduler)
                logger.info("%s: prefix %r is pinned: %d tokens in %d blocks", pin.prefix.model, pin.prefix.name,
                            len(pin.prefix.token_ids), pin.num_blocks)  # fmt: skip
            else:
                self.release(pin)
                pin.error, pin.try_at = output.error or "it was aborted", now + RETRY_SECONDS
                logger.warning("%s: prefix %r was not computed, and will be again in %g s: %s", pin.prefix.model,
                               pin.prefix.name, RETRY_SECONDS, pin.error)  # fmt: skip
        return others

    def release(self, pin: Pin) -> None:
        """Free the memory of `pin`, whose request has ended; if it is not removed, it waits to be started again."""
        self.computing.pop(pin.request_id, None)
        blocks, pin.blocks, pin.digests = pin.blocks, [], []
        pin.request_id, pin.is_ready = "", False
        if blocks:
            pin.scheduler.pool.unpin(blocks)
            self._cache_ready(pin.scheduler)

    def _cache_ready(self, scheduler: Scheduler) -> None:
        """Cache what is ready of a model. Where prefixes begin alike, one is cached; when it goes, the next is."""
        ready = [pin for pin in self.of(scheduler.name) if pin.is_ready]
        for pin in ready:
            scheduler.pool.cache_pinned(pin.blocks, pin.keys)
        public = [pin for pin in ready if pin.prefix.tenant is None]
        self.public[scheduler.name] = {digest for pin in public for digest in pin.digests}

    def check_integrity(self, scheduler: Scheduler) -> None:
        """Check that the prefixes of a model hold the pinned blocks of its pool, within their share, and that those
        ready are cached. Raises `IntegrityError`."""
        model, pool, pins = scheduler.name, scheduler.pool, self.of(scheduler.name)
        held = [block for pin in pins for block in pin.blocks]
        if not len(held) == len(set(held)) == pool.num_pinned:
            raise IntegrityError(f"{model}: prefixes hold the blocks {held}, but {pool.num_pinned} are pinned")
        if self._arena.num_pinned > self._most_slabs:
            raise IntegrityError(f"{self._arena.num_pinned} slabs are pinned; at most {self._most_slabs} may be")
        for pin in pins:
            if bool(pin.blocks) != (pin.is_ready or pin.request_id in self.computing):
                raise IntegrityError(f"{model}: {pin.prefix.name} has {pin.blocks}, but is neither computed nor ready")
            if pin.is_ready and len(pool.match(pin.keys)) != pin.num_blocks:
                raise IntegrityError(f"{model}: {pin.prefix.name} is ready, but not cached")


def _largest_need(scheduler: Scheduler) -> int:
    """Return the most blocks that a live sequence needs by its end, those to be pinned aside."""
    live = (s for s in (*scheduler.running.values(), *scheduler.waiting.values()) if not s.kv.pinned)
    needs = (scheduler.pool.blocks_held(s.num_prompt_tokens + s.max_output_tokens - 1) for s in live)
    return max(needs, default=0)
