"""One choice of one request while it is in a core: its tokens, and the parts that say when it is served, where its keys
and values are, what it has cost, and what is read off it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, Self

from msgspec.structs import replace

from inference_core.engine.prompt_readings import Readings
from inference_core.engine.sequence_kv import SequenceKV
from inference_core.protocol import (
    LAST_CLASS,
    NO_TIMES,
    AddRequest,
    FinishReason,
    SequenceOutput,
    StepTimes,
    TokenLogprob,
)
from inference_core.step_plan import SampleSpec, ScheduledSequence

IDLE_LIFTS = 12
"""So many lifts by ageing make idle work a part of the last class."""
IDLE_CLASS = LAST_CLASS + IDLE_LIFTS

Rank = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Precedence:
    """The rights of a sequence, and what it has waited. Waiting and prefilling age it, decoding does not."""

    number: int
    """Unique in the core; it breaks every tie."""
    priority: int
    deadline: float
    arrival: float
    waiting_since: float | None
    """When the sequence last began to wait; None while it decodes."""
    waited_seconds: float = 0.0
    """Sum of earlier waits."""
    held_class: int = 0
    """Priority class of the last admission, after ageing."""
    last_step: int = -1

    @classmethod
    def of_request(cls, request: AddRequest, number: int, now: float) -> Self:
        return cls(
            number,
            IDLE_CLASS if request.idle else request.priority,
            math.inf if request.deadline is None else request.deadline,
            request.arrival or now,
            waiting_since=now,
        )

    @property
    def is_idle_work(self) -> bool:
        """Whether the sequence has no caller (`AddRequest.idle`), so that it is no part of the load."""
        return self.priority > LAST_CLASS

    def begin_wait(self, now: float) -> None:
        """Wait from `now` on, or go on waiting for the prompt."""
        if self.waiting_since is None:
            self.waiting_since = now

    def start_decoding(self, now: float) -> None:
        """End the wait for the prompt."""
        assert self.waiting_since is not None
        self.waited_seconds += now - self.waiting_since
        self.waiting_since = None

    def waited(self, now: float) -> float:
        """Seconds spent waiting or prefilling so far."""
        if self.waiting_since is None:
            return self.waited_seconds
        return self.waited_seconds + now - self.waiting_since

    def aged_class(self, now: float, ageing_seconds: float) -> int:
        """The priority class lifted by one for every `ageing_seconds` spent waiting or prefilling."""
        return self.priority - int(self.waited(now) / ageing_seconds)

    def seconds_to_next_lift(self, now: float, ageing_seconds: float) -> float:
        """Seconds until ageing changes the `aged_class` of a waiting or prefilling sequence."""
        waited = self.waited(now)
        return (int(waited / ageing_seconds) + 1) * ageing_seconds - waited

    def arrival_order(self, now: float, ageing_seconds: float) -> tuple[int, float, float, int]:
        """`queues.service_order` without lengths: tokens of different models do not compare."""
        return (self.aged_class(now, ageing_seconds), self.deadline, self.arrival, self.number)

    @property
    def newcomer_claim(self) -> Rank:
        """The end of the sequence's own class: it may preempt only holders of a greater rank."""
        return (self.priority, 1, 0)


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


class Join(NamedTuple):
    """The first admission of a sequence."""

    at: float
    decoding: int
    """How many sequences decoded then."""
    tokens: int
    """Prompt tokens that were not cached."""


@dataclass(slots=True, eq=False)
class SequenceTimes:
    """What a sequence cost besides computing, by the core's clock."""

    queued_since: float
    """When it last joined the queue."""
    so_far: StepTimes = NO_TIMES
    reported: StepTimes = NO_TIMES
    """The times that were last put out."""

    def end_wait(self, now: float) -> None:
        """Count the time in the queue that ends `now`."""
        times = self.so_far
        self.so_far = replace(times, queue_seconds=times.queue_seconds + now - self.queued_since)

    def charge_planning(self, planning_seconds: float, kv_seconds: float) -> None:
        """Add what a step of the prompt cost before it ran: planning it, and finding blocks for it."""
        times = self.so_far
        self.so_far = replace(
            times, planning_seconds=times.planning_seconds + planning_seconds, kv_seconds=times.kv_seconds + kv_seconds
        )

    def charge_copies(self, seconds: float) -> None:
        """Add what copies between device and host took, up to the first token."""
        self.so_far = replace(self.so_far, kv_seconds=self.so_far.kv_seconds + seconds)

    def count_preemption(self) -> None:
        self.so_far = replace(self.so_far, preemptions=self.so_far.preemptions + 1)

    def report(self, output: SequenceOutput) -> None:
        """Put the times so far into `output`; to be called where they are not the `reported` ones."""
        output.times = self.reported = self.so_far


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its continuation."""

    id: str
    request: AddRequest
    index: int
    leader: "Sequence | None"
    """The first choice of the same request, whose prompt blocks the others wait to share."""
    max_output_tokens: int
    precedence: Precedence
    kv: SequenceKV
    times: SequenceTimes
    readings: Readings | None
    token_ids: list[int]
    """Prompt and output. The last one is uncomputed unless the sequence is new or was preempted: computing it yields
    the next. The last `num_pending` are `PENDING`.
    """
    output_token_ids: list[int]
    share: ScheduledSequence
    """Its part of the step that it was last scheduled in."""
    sample_spec: SampleSpec
    status: Status = Status.WAITING
    num_pending: int = 0
    """How many of the last `token_ids` and `output_token_ids` are `PENDING`: steps in flight draw them."""
    num_accepted: int = 0
    """Drafts accepted in the step that it was last scheduled in."""
    prompt_computed: bool = False
    """Whether it has computed every prompt block that other choices could share."""
    admissions: int = 0
    join: Join | None = None
    """None before its first admission, and for one that fills pinned blocks."""
    cached_tokens: int = 0
    """Prompt tokens that were cached at its first admission."""

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
        sequence_id = f"{request.request_id}/{index}"
        prompt, outputs = request.prompt_token_ids, request.drawn_token_ids.copy()
        token_ids = prompt + outputs
        drawn_from = len(prompt) if request.drawn_from is None else request.drawn_from
        share = ScheduledSequence(sequence_id, [], 0, [], None, fast_until=drawn_from if fast else 0)
        sampling, readings = request.sampling, Readings.of_choice(request, index)
        ends = sampling.stop_token_ids if sampling.ignore_eos else eos_token_ids + sampling.stop_token_ids
        return cls(
            sequence_id,
            request,
            index,
            leader,
            max_output_tokens=max(1, min(sampling.max_tokens, max_context - len(prompt))),
            precedence=Precedence.of_request(request, number, now),
            kv=SequenceKV.of_tokens(token_ids, share, list(public), request.salt, adapter_digest, fast=fast),
            times=SequenceTimes(queued_since=now),
            readings=readings,
            token_ids=token_ids,
            output_token_ids=outputs,
            share=share,
            sample_spec=SampleSpec(
                sampling,
                prompt,
                outputs,
                choice_seed(request_seed, index),
                len(outputs),
                tuple(dict.fromkeys(ends)),
                evidence=readings is not None and readings.tokens,
            ),
        )

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    def shareable_digests(self, block_size: int) -> list[bytes]:
        """Return the digests of the full blocks that may come from the cache: the last token is always computed, and so
        are tokens that prompt scores or states need, and the blocks to be pinned."""
        if self.kv.pinned:
            return []
        most = len(self.token_ids) - 1
        count = (most if self.readings is None else self.readings.num_needless(most)) // block_size
        self.kv.extend_digests(count, block_size)
        return self.kv.digests[:count]

    def prompt_is_shareable(self, computed: int, block_size: int) -> bool:
        """Whether the `computed` tokens cover every prompt block that other choices could share."""
        return computed >= (self.num_prompt_tokens - 1) // block_size * block_size

    def waits_for_leader(self) -> bool:
        """Whether the first choice is still computing the prompt blocks that this one will share."""
        leader = self.leader
        return leader is not None and not leader.prompt_computed and leader.status is not Status.FINISHED

    @property
    def exits(self) -> bool:
        """Whether the sequence exists for its hidden state alone: its blocks are not shared, and no token is drawn."""
        return self.readings is not None and self.readings.exits

    @property
    def caches_blocks(self) -> bool:
        """Whether its full blocks go into the prefix cache as they are computed; pinned ones do once all are."""
        return not (self.exits or self.kv.pinned)

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn for the sequence."""
        return not (self.request.prefill or self.exits)

    def receive(self, token_id: int) -> FinishReason | None:
        """Replace the first pending token with a drawn one; return why the sequence ends, if it does.

        A stop token is not kept: its place stays pending and is dropped with the rest.
        """
        outputs, pending, spec = self.output_token_ids, self.num_pending, self.sample_spec
        index = len(outputs) - pending
        if token_id in spec.eos_token_ids and index >= spec.params.min_tokens:
            return "stop"
        self.token_ids[-pending] = outputs[index] = token_id
        self.num_pending = pending - 1
        if spec.matcher is not None:
            spec.matcher.accept(token_id)
        return "length" if index + 1 >= self.max_output_tokens else None

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
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=len(self.output_token_ids),
            times=self.times.so_far,
        )
