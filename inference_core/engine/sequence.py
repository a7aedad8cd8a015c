"""One choice of one request while it is in a core: its tokens, its blocks, its place in the queue.

The hidden states of its prompt are pooled from the steps that compute it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Self

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from inference_core.kv_cache.prefix_hash import border_digest, chain_digests, private_digest, root_digest
from inference_core.protocol import (
    LAST_CLASS,
    NO_TIMES,
    AddRequest,
    FinishReason,
    SamplingParams,
    SequenceOutput,
    StepTimes,
    TokenLogprob,
)
from inference_core.protocol.commands import Evidence, EvidenceRequest, Pooling
from inference_core.step_plan import SampledToken, SampleSpec, ScheduledSequence, ScoreSpec, States, StateSpec


class StatePool:
    """Of the first `prompt_tokens` tokens of a sequence, after `layer` layers.

    Means are sums in float64 over single tokens in their order, so that they have the same bits however a prompt was
    cut into chunks, and whether or not it was preempted. `exits`: nothing of the prompt is computed after the layer.
    """

    def __init__(self, layer: int, pooling: Pooling, prompt_tokens: int, *, exits: bool = False) -> None:
        self.layer = layer
        self.exits = exits
        self.num_taken = 0
        self._pooling = pooling
        self._prompt_tokens = prompt_tokens
        self._sum: npt.NDArray[np.float64] | None = None

    @classmethod
    def of_request(cls, wanted: EvidenceRequest | None, prompt_tokens: int, *, exits: bool) -> "StatePool | None":
        """Return the pool for a request; None if it wants no hidden state."""
        if wanted is None or wanted.layer is None:
            return None
        return cls(wanted.layer, wanted.pooling, prompt_tokens, exits=exits)

    @property
    def is_full(self) -> bool:
        """Whether all needed states have been collected."""
        return self.num_taken == self._prompt_tokens

    @property
    def num_needless(self) -> int:
        """How many first tokens need no state, so that they may come from the prefix cache."""
        if self._pooling == "last" and not self.is_full:
            return self._prompt_tokens - 1
        return self.num_taken

    def spec(self, start: int, tokens: int) -> StateSpec | None:
        """Which states a step has to return that computes `tokens` tokens from position `start` on."""
        if self.is_full:
            return None
        first = max(0, self.num_needless - start)
        if first >= tokens and not self.exits:
            return None
        return StateSpec(self.layer, min(first, tokens), self.exits)

    def take(self, states: States) -> None:
        """Add the states float32 [rows, hidden] of the next requested rows; may be empty."""
        if not len(states) or self.is_full:
            return
        if self._pooling == "last":
            self._sum = states[-1].astype(np.float64)
            self.num_taken = self._prompt_tokens
            return
        rows = states.astype(np.float64)
        before = rows[:0] if self._sum is None else self._sum[None]
        # Row after row: along the first axis NumPy adds in order.
        self._sum = np.add.reduce(np.concatenate([before, rows]), axis=0)
        self.num_taken += len(rows)

    def pop(self) -> bytes:
        """Return the pooled state, float32 little-endian [hidden], once it is complete; b"" before and after."""
        if self._sum is None or not self.is_full:
            return b""
        count = self._prompt_tokens if self._pooling == "mean" else 1
        state, self._sum = (self._sum / count).astype("<f4"), None
        return state.tobytes()


IDLE_LIFTS = 12
"""So many lifts by ageing make idle work a part of the last class."""
IDLE_CLASS = LAST_CLASS + IDLE_LIFTS


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


def choice_seed(request_seed: int, index: int) -> int:
    """The effective seed of choice `index`: the request's own for choice 0, else 63 bits of BLAKE2b(seed, index)."""
    if index == 0:
        return request_seed
    digest = blake2b(f"{request_seed}/{index}".encode(), digest_size=8, person=b"aio-choice-seed").digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its continuation. There are no phases: `num_computed_tokens` catches up with `token_ids`."""

    id: str
    request: AddRequest
    index: int
    number: int
    """Unique in the core; it breaks every tie."""
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    stop_ids: tuple[int, ...]
    max_output_tokens: int
    priority: int
    deadline: float
    arrival: float
    leader: "Sequence | None"
    """The first choice of the same request, whose prompt blocks the others wait to share."""
    root: bytes
    token_ids: list[int]
    """Prompt and output. The last one is uncomputed unless the sequence is new or was preempted: computing it yields
    the next. The last `num_pending` are `PENDING`.
    """
    queued_since: float
    waiting_since: float | None
    """When the sequence last began to wait; None while it decodes. Waiting and prefilling age it, decoding does not."""
    share: ScheduledSequence
    """Its part of the step that it was last scheduled in. `share.block_table` is `block_table`, and the window tables
    are shared too.
    """
    sample_spec: SampleSpec
    output_token_ids: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """How many tokens the prefix cache held when the sequence last began to wait."""
    num_pending: int = 0
    """How many of the last `token_ids` and `output_token_ids` are `PENDING`: steps in flight draw them."""
    block_table: list[int] = field(default_factory=list)
    """Covers the computed tokens and those of the step in flight, so less than one block of it is unused."""
    digests: list[bytes] = field(default_factory=list)
    num_registered_blocks: int = 0
    prompt_computed: bool = False
    held_class: int = 0
    """Priority class of the last admission, after ageing."""
    last_step: int = -1
    cached_tokens: int = 0
    admissions: int = 0
    times: StepTimes = NO_TIMES
    """Times so far, by the core's clock."""
    reported_times: StepTimes = NO_TIMES
    """The times that were last put out."""
    waited_seconds: float = 0.0
    """Sum of earlier waits."""
    joined_at: float = 0.0
    joined_beside: int = 0
    num_scored: int = 0
    """Prompt tokens after the first whose log-probabilities are known, if requested."""
    num_accepted: int = 0
    """Drafts accepted in the step that it was last scheduled in."""
    states: StatePool | None = None
    """Pools the prompt's hidden state, if requested of this choice."""
    wants_evidence: bool = False
    num_public_blocks: int = 0
    """How many of its first blocks are those of a public prefix, and named accordingly."""
    pinned: list[int] = field(default_factory=list)
    """All blocks that it needs, pinned for it to fill; [] for a sequence that allocates its blocks as it grows."""
    window_tables: list[list[int]] = field(default_factory=list)
    """Tables of window groups, each as long as `block_table`."""
    num_behind: int = 0
    """How many of the first blocks of tables with a window were released (`kv_cache.layout`)."""

    @classmethod
    def of_request(
        cls,
        request: AddRequest,
        index: int,
        *,
        number: int,
        request_seed: int,
        eos_token_ids: tuple[int, ...],
        max_context: int,
        leader: Self | None,
        now: float,
        adapter_digest: bytes = b"",
        fast: bool = False,
        public: Iterable[bytes] = (),
    ) -> Self:
        """Choice `index` of a validated request. Choices after the first follow `leader`. `adapter_digest`
        names the content of its adapter. `fast`: the prompt, up to `drawn_from`, is computed in prompt arithmetic, and
        nothing else. `public`: the digests of the public prefix that it begins with."""
        digests = list(public)
        drawn_from = len(request.prompt_token_ids) if request.drawn_from is None else request.drawn_from
        sampling = request.sampling
        ends = sampling.stop_token_ids if sampling.ignore_eos else eos_token_ids + sampling.stop_token_ids
        stop_ids = tuple(dict.fromkeys(ends))
        sequence_id = f"{request.request_id}/{index}"
        seed = choice_seed(request_seed, index)
        outputs = request.drawn_token_ids.copy()
        table: list[int] = []
        wanted = request.evidence
        states = StatePool.of_request(None if index else wanted, len(request.prompt_token_ids), exits=request.embed)
        wants_tokens = wanted is not None and wanted.tokens
        return cls(
            id=sequence_id,
            request=request,
            index=index,
            number=number,
            prompt_token_ids=request.prompt_token_ids,
            sampling=sampling,
            seed=seed,
            stop_ids=stop_ids,
            max_output_tokens=max(1, min(sampling.max_tokens, max_context - len(request.prompt_token_ids))),
            priority=IDLE_CLASS if request.idle else request.priority,
            deadline=math.inf if request.deadline is None else request.deadline,
            arrival=request.arrival or now,
            leader=leader,
            root=root_digest(request.salt, adapter_digest, fast=fast),
            token_ids=request.prompt_token_ids + outputs,
            queued_since=now,
            waiting_since=now,
            share=ScheduledSequence(sequence_id, [], 0, table, None, fast_until=drawn_from if fast else 0),
            sample_spec=SampleSpec(
                sampling, request.prompt_token_ids, outputs, seed, len(outputs), stop_ids, evidence=wants_tokens
            ),
            output_token_ids=outputs,
            block_table=table,
            states=states,
            wants_evidence=wants_tokens or states is not None,
            digests=digests,
            num_public_blocks=len(digests),
        )

    @property
    def is_idle_work(self) -> bool:
        """Whether it has no caller (`AddRequest.idle`), so that it is no part of the load."""
        return self.priority > LAST_CLASS

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens to compute before the next one is drawn; of a waiting sequence, as far as known when it joined."""
        return len(self.token_ids) - max(self.num_computed_tokens, self.num_cached_tokens)

    def shareable_digests(self, block_size: int) -> list[bytes]:
        """Return the digests of the full blocks that may come from the cache: the last token is always computed, and so
        are tokens that prompt scores or states need, and the blocks to be pinned."""
        if self.pinned:
            return []
        most = self.num_scored if self.scores_prompt else len(self.token_ids) - 1
        if self.states is not None and not self.states.is_full:
            most = min(most, self.states.num_needless)
        count = most // block_size
        self.extend_digests(count, block_size)
        return self.digests[:count]

    def extend_digests(self, count: int, block_size: int) -> None:
        """Extend `digests` to at least the first `count` full blocks of `token_ids`."""
        fast_until = self.share.fast_until
        border = fast_until // block_size
        for end in (min(count, border), count):
            known = len(self.digests)
            if known < end:
                parent = self.digests[-1] if known else self.root
                if known and known == self.num_public_blocks:
                    parent = private_digest(parent, self.root)
                if fast_until and known == border:
                    parent = border_digest(parent, fast_until)
                self.digests += chain_digests(parent, self.token_ids, known, end - known, block_size)

    def prompt_is_shareable(self, computed: int, block_size: int) -> bool:
        """Whether the `computed` tokens cover every prompt block that other choices could share."""
        return computed >= (len(self.prompt_token_ids) - 1) // block_size * block_size

    def waits_for_leader(self) -> bool:
        """Whether the first choice is still computing the prompt blocks that this one will share."""
        leader = self.leader
        return leader is not None and not leader.prompt_computed and leader.status is not Status.FINISHED

    @property
    def scores_prompt(self) -> bool:
        """Whether prompt log-probabilities are still missing; the first choice computes them for all."""
        if self.sampling.prompt_logprobs is None or self.index:
            return False
        return self.num_scored < len(self.prompt_token_ids) - 1

    def score_spec(self, start: int, tokens: int) -> ScoreSpec | None:
        """Which prompt log-probabilities a step of `tokens` tokens from position `start` on has to return."""
        if not self.scores_prompt:
            return None
        assert self.sampling.prompt_logprobs is not None
        targets = self.prompt_token_ids[start + 1 : start + tokens + 1]
        return ScoreSpec(targets, self.sampling.prompt_logprobs) if targets else None

    def receive_scores(self, scored: list[TokenLogprob], computed: int) -> list[TokenLogprob]:
        """Return the new log-probabilities among `scored`, which end at token `computed`; preemption scores again."""
        known = min(computed, len(self.prompt_token_ids) - 1)
        fresh = known - self.num_scored
        if fresh <= 0:
            return []
        self.num_scored = known
        return scored[-fresh:]

    @property
    def exits(self) -> bool:
        """Whether the sequence exists for its hidden state alone: its blocks are not shared, and no token is drawn."""
        return self.states is not None and self.states.exits

    @property
    def caches_blocks(self) -> bool:
        """Whether its full blocks go into the prefix cache as they are computed; pinned ones do once all are."""
        return not (self.exits or self.pinned)

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn for the sequence."""
        return not (self.request.prefill or self.exits)

    def state_spec(self, start: int, tokens: int) -> StateSpec | None:
        """Which hidden states a step has to return that computes `tokens` tokens from position `start` on."""
        return None if self.states is None else self.states.spec(start, tokens)

    def evidence_of(self, drawn: list[SampledToken]) -> Evidence | None:
        """Return the requested evidence of these tokens, or None; the hidden state comes with the first."""
        state = b"" if self.states is None else self.states.pop()
        tokens = [token.evidence for token in drawn if token.evidence is not None]
        return Evidence(state, tokens) if state or tokens else None

    def receive(self, token_id: int) -> FinishReason | None:
        """Replace the first pending token with a drawn one; return why the sequence ends, if it does.

        A stop token is not kept: its place stays pending and is dropped with the rest.
        """
        outputs, pending = self.output_token_ids, self.num_pending
        place = len(outputs) - pending
        if token_id in self.stop_ids and place >= self.sampling.min_tokens:
            return "stop"
        self.token_ids[-pending] = outputs[place] = token_id
        self.num_pending = pending - 1
        if self.sample_spec.matcher is not None:
            self.sample_spec.matcher.accept(token_id)
        return "length" if place + 1 >= self.max_output_tokens else None

    def forget_pending(self) -> None:
        """Drop the pending tokens, which no step will bring."""
        if self.num_pending:
            del self.token_ids[-self.num_pending :]
            del self.output_token_ids[-self.num_pending :]
            self.num_pending = 0

    @property
    def has_drawn(self) -> bool:
        """Whether its first token is known."""
        return len(self.output_token_ids) > self.num_pending

    def end_wait(self, now: float) -> None:
        """Count the time in the queue that ends `now`."""
        times = self.times
        self.times = replace(times, queue_seconds=times.queue_seconds + now - self.queued_since)

    def charge_planning(self, planning_seconds: float, kv_seconds: float) -> None:
        """Add what a step of the prompt cost before it ran: planning it, and finding blocks for it."""
        times = self.times
        self.times = replace(
            times, planning_seconds=times.planning_seconds + planning_seconds, kv_seconds=times.kv_seconds + kv_seconds
        )

    def charge_copies(self, seconds: float) -> None:
        """Add what copies between device and host took; after the first token they count no more."""
        if not self.has_drawn:
            self.times = replace(self.times, kv_seconds=self.times.kv_seconds + seconds)

    def count_preemption(self) -> None:
        self.times = replace(self.times, preemptions=self.times.preemptions + 1)

    def report_times(self, output: SequenceOutput) -> None:
        """Put the times so far into `output`; to be called where they are not `reported_times`."""
        output.times = self.reported_times = self.times

    def output(
        self,
        token_ids: list[int],
        logprobs: list[TokenLogprob] | None = None,
        finish_reason: FinishReason | None = None,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> SequenceOutput:
        """Return the event for these new tokens; the last one (with a `finish_reason`) carries all counts and times."""
        if finish_reason is None:
            return SequenceOutput(
                request_id=self.request.request_id,
                index=self.index,
                token_ids=token_ids,
                logprobs=logprobs,
                cached_tokens=self.cached_tokens,
            )
        return SequenceOutput(
            request_id=self.request.request_id,
            index=self.index,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_token_id=stop_token_id,
            error=error,
            prompt_tokens=len(self.prompt_token_ids),
            cached_tokens=self.cached_tokens,
            completion_tokens=len(self.output_token_ids),
            times=self.times,
        )
