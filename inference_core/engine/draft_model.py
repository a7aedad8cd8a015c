"""Drafts with a smaller model of the same vocabulary (SPEC SD-01, SD-08).

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023; Chen et al.,
"Accelerating large language model decoding with speculative sampling", 2023.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from inference_core.engine.drafter import Draft, Drafter, Reach, StepCosts
from inference_core.engine.sequence import Sequence, Status
from inference_core.errors import IntegrityError, RankLostError
from inference_core.execution.runner import DraftingRunner, ModelRunner
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.kv_cache.layout import KVLayout
from inference_core.protocol import Knobs
from inference_core.step_plan import DraftLaw, SampleSpec, ScheduledSequence, StepPlan

logger = logging.getLogger(__name__)

# A sequence with more uncomputed tokens than this in the draft model is prefilled first, a chunk per step.
_NEARLY_THERE = 32
# Seconds without drafts after the memory was reclaimed, or after the draft model failed.
_REST_SECONDS = 2.0


@dataclass(slots=True)
class _Cache:
    """The draft model's cache of a sequence."""

    table: list[int] = field(default_factory=list)
    window_tables: list[list[int]] = field(default_factory=list)
    """Tables of window layers that have blocks of their own; they keep all of them."""
    computed: int = 0
    """Tokens in the blocks of `table`."""
    known: int = 0
    """How many of the computed tokens are the sequence's; the rest are drafts."""
    guessed: list[int] = field(default_factory=list)
    """The drafts in the cache."""

    @property
    def blocks(self) -> list[int]:
        return self.table + [block for table in self.window_tables for block in table]

    def roll_back(self, token_ids: list[int]) -> None:
        """Keep the drafts that were accepted; takes time proportional to the drafts (SPEC SD-08)."""
        right = 0
        for guess, token in zip(self.guessed, token_ids[self.known :], strict=False):
            if guess != token:
                break
            right += 1
        self.computed = min(self.computed, self.known + right)
        self.known = len(token_ids)
        self.guessed.clear()


@dataclass(slots=True)
class _Turn:
    """A sequence in a round of drafting: its draft so far, and how many tokens to draft."""

    sequence: Sequence
    cache: _Cache
    wanted: int
    token_ids: list[int] = field(default_factory=list)
    laws: list[DraftLaw] = field(default_factory=list)


class DraftModel(Drafter):
    """Drafts with `runner`, whose keys and values are in `pool`, a part of the target's arena.

    It draws with the target's random numbers ("repeatable"), so that two models that nearly agree draw the same tokens,
    or independently, recording its distributions ("rejection"). Its memory is borrowed: it is freed whenever a model's
    sequences need it.
    """

    def __init__(self, runner: ModelRunner, pool: BlockPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner = runner
        self._pool = pool
        self._tables = 1 if pool.windows is None else pool.windows.num_tables
        self._clock = clock
        self._caches: dict[Sequence, _Cache] = {}
        self._costs = StepCosts()
        self._rests_until = -math.inf

    def reach(self, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        if self._clock() < self._rests_until:
            return Reach(0)
        return Reach(max(0, min(most, self._runner.info.max_context - len(sequence.token_ids))))

    def seconds(self, sequences: int) -> float:
        return self._costs.seconds(sequences) or 0.0

    def propose(self, wanted: list[tuple[Sequence, int]], knobs: Knobs) -> list[Draft]:
        turns = [_Turn(sequence, self._cache(sequence), count) for sequence, count in wanted]
        try:
            most = min(knobs.prefill_chunk, knobs.max_num_batched_tokens)
            self._catch_up([t for t in turns if t.cache.known - t.cache.computed > _NEARLY_THERE], most)
            self._draft([t for t in turns if t.cache.known - t.cache.computed <= _NEARLY_THERE and t.wanted], knobs)
        except RankLostError:
            raise
        except Exception:
            logger.exception(
                "%s could not draft; going on without it for %.0f s", self._runner.info.name, _REST_SECONDS
            )
            self._rest()
            return [Draft([]) for _ in turns]
        return [Draft(turn.token_ids, turn.laws or None) for turn in turns]

    def forget(self, sequence: Sequence) -> None:
        cache = self._caches.pop(sequence, None)
        if cache is not None:
            self._pool.release(cache.blocks)

    def give_way(self) -> bool:
        held = self._pool.num_referenced > 0
        if held:
            self._rest()
        return held

    def lay_out(self, model: str, layout: KVLayout) -> None:
        if model == self._runner.info.name:
            self._forget_all()
            self._pool.lay_out(layout)

    def check_integrity(self) -> None:
        self._pool.check_integrity(cache.blocks for cache in self._caches.values())
        for sequence, cache in self._caches.items():
            if sequence.status is not Status.RUNNING:
                raise IntegrityError(f"{self._pool.name} holds blocks of {sequence.id}, which does not run")
            if len(cache.table) < self._pool.blocks_for(cache.computed):
                raise IntegrityError(f"{self._pool.name}: {cache.computed} tokens do not fit {len(cache.table)} blocks")

    def _rest(self) -> None:
        self._forget_all()
        self._rests_until = self._clock() + _REST_SECONDS

    def _forget_all(self) -> None:
        for sequence in list(self._caches):
            self.forget(sequence)

    # -- one step --------------------------------------------------------------------------------

    def _cache(self, sequence: Sequence) -> _Cache:
        cache = self._caches.get(sequence)
        if cache is None:
            cache = self._caches[sequence] = _Cache(window_tables=[[] for _ in range(self._tables - 1)])
        cache.roll_back(sequence.token_ids)
        return cache

    def _catch_up(self, turns: list[_Turn], tokens: int) -> None:
        """Compute up to `tokens` uncomputed tokens, without drawing."""
        shares: list[ScheduledSequence] = []
        for turn in turns:
            cache, room = turn.cache, tokens - sum(len(s.token_ids) for s in shares)
            chunk = turn.sequence.token_ids[cache.computed : min(cache.computed + room, cache.known - 1)]
            if chunk and self._has_room(cache, len(chunk)):
                shares.append(self._share(turn, chunk, None))
                cache.computed += len(chunk)
        if shares:
            self._runner.run(StepPlan(0, self._runner.info.name, shares))

    def _share(self, turn: _Turn, token_ids: list[int], spec: SampleSpec | None) -> ScheduledSequence:
        """The prompt in the arithmetic that the target computes it in, if the draft has it too."""
        cache, sequence = turn.cache, turn.sequence
        fast_until = sequence.share.fast_until if self._runner.has_prompt_arithmetic else 0
        return ScheduledSequence(
            sequence.id,
            token_ids,
            cache.computed,
            cache.table,
            spec,
            fast_until=fast_until,
            window_tables=cache.window_tables,
        )

    def _draft(self, turns: list[_Turn], knobs: Knobs) -> None:
        """Draft one token per round for each sequence that needs more; the first round also computes uncomputed tokens,
        of as many sequences as a step takes."""
        while turns:
            shares, drawing, left = [], [], knobs.max_num_batched_tokens
            for turn in turns:
                cache = turn.cache
                lacking = turn.token_ids[-1:] or turn.sequence.token_ids[cache.computed :]
                if len(lacking) <= left and self._has_room(cache, len(lacking)):
                    left -= len(lacking)
                    spec = _spec(turn)
                    shares.append(self._share(turn, lacking, spec))
                    drawing.append(turn)
            if shares:
                self._round(drawing, shares, knobs)
            turns = [turn for turn in drawing if len(turn.token_ids) < turn.wanted]

    def _round(self, turns: list[_Turn], shares: list[ScheduledSequence], knobs: Knobs) -> None:
        began, plan = self._clock(), StepPlan(0, self._runner.info.name, shares)
        if knobs.draft_acceptance == "rejection" and isinstance(self._runner, DraftingRunner):
            for turn, (token, law) in zip(turns, self._runner.draft(plan), strict=True):
                turn.token_ids.append(token)
                turn.laws.append(law)
        else:
            for turn, drawn in zip(turns, self._runner.run(plan).sampled, strict=True):
                turn.token_ids.append(drawn[0].token_id)
        for turn, share in zip(turns, shares, strict=True):
            turn.cache.computed += len(share.token_ids)
            turn.cache.guessed = turn.token_ids[:-1]
        if plan.num_tokens <= 2 * len(shares):
            self._costs.observe(len(shares), self._clock() - began)

    def _has_room(self, cache: _Cache, tokens: int) -> bool:
        lacking = self._pool.blocks_for(cache.computed + tokens) - len(cache.table)
        if lacking <= 0:
            return True
        blocks = self._pool.allocate(lacking * self._tables)
        if blocks is None:
            return False
        for number, table in enumerate((cache.table, *cache.window_tables)):
            table += blocks[number * lacking : (number + 1) * lacking]
        return True


def _spec(turn: _Turn) -> SampleSpec:
    """Return the spec that the target will draw this token with if the draft is accepted so far, without logprobs."""
    spec, drafted = turn.sequence.sample_spec, turn.token_ids
    outputs = turn.sequence.output_token_ids
    return SampleSpec(
        spec.params if spec.params.logprobs is None else msgspec.structs.replace(spec.params, logprobs=None),
        spec.prompt_token_ids,
        outputs + drafted if drafted else outputs,
        spec.seed,
        len(outputs) + len(drafted),
        spec.eos_token_ids,
    )
