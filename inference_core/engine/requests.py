"""The requests of a core: those refused before they are queued, and those queued and not yet ended.

Requests that can never be served are refused with a message that says what was given and allowed. Live ones may be
ended before their answers are complete, as where an answer repeats itself in a loop.
"""

import collections.abc
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from inference_core.engine.scheduler import Scheduler
from inference_core.engine.sequence import Sequence, Status
from inference_core.errors import IntegrityError, InvalidRequestError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.protocol import AddRequest, FinishReason, Knobs, ModelInfo, SamplingParams, SequenceOutput
from inference_core.protocol.outputs import blame

PRIORITIES = (0, 1, 2)


def validate_request(request: AddRequest, info: ModelInfo, pool: BlockPool, knobs: Knobs) -> None:
    """Raises `InvalidRequestError` naming the field unless the request can be served by `info` with `pool`'s arena."""
    prompt = request.prompt_token_ids
    if not prompt:
        _refuse("prompt_token_ids", "is empty; give at least one token")
    if request.drawn_from is not None and not 0 <= request.drawn_from <= len(prompt):
        _refuse("drawn_from", f"is {request.drawn_from}; the prompt's {len(prompt)} tokens are at positions from 0 on")
    validate_token_ids("prompt_token_ids", prompt, info.vocab_size)
    # The one token after a prompt that is only scored is drawn but never computed, so it needs no room.
    is_only_scored = request.sampling.prompt_logprobs is not None and request.sampling.max_tokens == 1
    most = info.max_context if is_only_scored else info.max_context - 1
    if len(prompt) > most:
        _refuse(
            "prompt_token_ids",
            f"has {len(prompt)} tokens; {info.name} has a context of {info.max_context} for prompt and answer "
            f"together, so the prompt may have at most {most}",
        )
    if request.drawn_token_ids:
        _validate_drawn(request, info)
    if not 1 <= request.n <= knobs.max_waiting:
        _refuse("n", f"is {request.n}; allowed: 1 to {knobs.max_waiting} (the length of the queue)")
    if request.priority not in PRIORITIES:
        _refuse("priority", f"is {request.priority}; allowed: 0 (interactive), 1 (normal), 2 (batch)")
    _validate_range("arrival", request.arrival, 0, math.inf)
    if request.deadline is not None:
        _validate_range("deadline", request.deadline, -math.inf, math.inf)
    _validate_sampling(request.sampling, info.vocab_size)
    _validate_evidence(request, info)
    _validate_prefill(request, pool, knobs)
    validate_memory(request, info, pool)


def _validate_drawn(request: AddRequest, info: ModelInfo) -> None:
    drawn, sampling = request.drawn_token_ids, request.sampling
    validate_token_ids("drawn_token_ids", drawn, info.vocab_size)
    most = min(sampling.max_tokens, info.max_context - len(request.prompt_token_ids))
    if len(drawn) >= most:
        _refuse("drawn_token_ids", f"has {len(drawn)} tokens; the answer may have {most}, so that none is left to draw")
    if request.n != 1 or request.evidence or request.prefill or sampling.prompt_logprobs is not None:
        _refuse("drawn_token_ids", "goes with n = 1, without evidence, prefill and prompt_logprobs")


def _validate_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    _validate_range("temperature", sampling.temperature, 0, math.inf)
    _validate_range("top_p", sampling.top_p, 0, 1, above_low=True)
    _validate_range("top_k", sampling.top_k, 0, math.inf)
    _validate_range("min_p", sampling.min_p, 0, 1)
    _validate_range("repetition_penalty", sampling.repetition_penalty, 0, math.inf, above_low=True)
    _validate_range("presence_penalty", sampling.presence_penalty, -2, 2)
    _validate_range("frequency_penalty", sampling.frequency_penalty, -2, 2)
    _validate_range("max_tokens", sampling.max_tokens, 1, math.inf)
    _validate_range("min_tokens", sampling.min_tokens, 0, sampling.max_tokens)
    if sampling.seed is not None:
        _validate_range("seed", sampling.seed, -(2**63), 2**63 - 1)
    if sampling.logprobs is not None:
        _validate_range("logprobs", sampling.logprobs, 0, vocab_size)
    if sampling.prompt_logprobs is not None:
        _validate_range("prompt_logprobs", sampling.prompt_logprobs, 0, vocab_size)
    validate_token_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    validate_token_ids("logit_bias", list(sampling.logit_bias), vocab_size)
    for token_id, bias in sampling.logit_bias.items():
        if not -100 <= bias <= 100:
            _refuse("logit_bias", f"of token {token_id} is {bias}; allowed: -100 to 100")
    if sampling.grammar is not None:
        _validate_with_grammar(sampling, sampling.grammar.param)


def _validate_evidence(request: AddRequest, info: ModelInfo) -> None:
    wanted = request.evidence
    if wanted is not None:
        if not info.num_layers:
            _refuse("evidence", f"cannot be had of {info.name}, which other processes or a device compute")
        if wanted.layer is not None and not 1 <= wanted.layer <= info.num_layers:
            _refuse("evidence.layer", f"is {wanted.layer}; {info.name} has layers 1 to {info.num_layers}")
    if not request.embed:
        return
    if wanted is None or wanted.layer is None:
        _refuse("evidence.layer", "is not given; a prompt that is embedded must say after which layer")
    sampling = request.sampling
    if request.n != 1 or wanted.tokens or sampling.grammar is not None or sampling.prompt_logprobs is not None:
        _refuse("embed", "draws no tokens; it goes with n = 1, without tokens' evidence, grammar and prompt_logprobs")


def _validate_prefill(request: AddRequest, pool: BlockPool, knobs: Knobs) -> None:
    if not request.prefill:
        return
    sampling = request.sampling
    if request.n != 1 or request.evidence or sampling.grammar is not None or sampling.prompt_logprobs is not None:
        _refuse("prefill", "draws no tokens; it goes with n = 1, without evidence, grammar and prompt_logprobs")
    if not knobs.prefix_caching:
        _refuse("prefill", f"is for the prefix cache, which {pool.name} does without; set prefix_caching")
    if len(request.prompt_token_ids) <= pool.block_size:
        _refuse("prefill", f"is for full blocks; give more than {pool.block_size} tokens")


def _validate_with_grammar(sampling: SamplingParams, param: str) -> None:
    """Refuse parameters that forbid the end that a grammar requires: no token would be left to draw."""
    if sampling.ignore_eos:
        _refuse("ignore_eos", f"cannot be combined with {param}, which says where the answer ends")
    if sampling.min_tokens:
        _refuse("min_tokens", f"cannot be combined with {param}, which says where the answer ends")


def validate_memory(request: AddRequest, info: ModelInfo, pool: BlockPool) -> None:
    """Raises `InvalidRequestError` unless the arena, pinned prefixes aside, holds the request's longest choice."""
    prompt, answer = len(request.prompt_token_ids), request.sampling.max_tokens
    # The last token is drawn but never computed, so it needs no room.
    tokens = max(prompt, min(prompt + answer, info.max_context) - 1)
    needed, most = pool.blocks_held(tokens), pool.unpinned_capacity
    if needed > most:
        room = pool.tokens_in(most)
        besides = "" if most == pool.capacity else " besides pinned prefixes"
        _refuse(
            "max_tokens" if prompt <= room else "prompt_token_ids",
            f"makes the request too large for memory: {prompt} prompt tokens + {answer} answer tokens keep {tokens} "
            f"tokens in {needed} blocks of {pool.block_size}, but the whole arena has {most} blocks of "
            f"{pool.block_bytes} bytes for {info.name}{besides} ({room} tokens); shorten the request or enlarge the "
            "arena",
        )


def validate_token_ids(param: str, token_ids: collections.abc.Sequence[int], vocab_size: int) -> None:
    """Raises `InvalidRequestError` naming `param` unless all are tokens of the vocabulary."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(t for t in token_ids if not 0 <= t < vocab_size)
        _refuse(param, f"holds token {wrong}; allowed: 0 to {vocab_size - 1}")


def _validate_range(param: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    if not math.isfinite(value) or not low <= value <= high or (above_low and value == low):
        bounds = f"{'above' if above_low else 'from'} {low:g}" + ("" if high == math.inf else f" to {high:g}")
        _refuse(param, f"is {value}; allowed: {bounds}")


def _refuse(param: str, message: str) -> NoReturn:
    raise InvalidRequestError(f"{param} {message}", param)


# Tokens between two checks of an answer.
LOOK_EVERY = 16
# The length of the compared runs: longer than what tables, lists and code repeat in every line.
RUN = 8
# The highest share of distinct runs in a loop. Prose has 0.98, code and records 0.7 to 0.9, a nursery rhyme with
# refrains 0.6; loops fall below 0.35, even those that change a word each time.
DIFFERENT = 0.4


def is_looping(token_ids: collections.abc.Sequence[int], span: int) -> bool:
    """Whether the last `span` tokens are a continuing loop: their last run occurred in them before, and at most the
    share `DIFFERENT` of their runs of `RUN` tokens are distinct.

    Greedy and cold sampling fall into such loops (Holtzman et al. 2020); counting different n-grams is how repetition
    is measured there and in Welleck et al. 2020, and unlike a search for a period it finds loops that vary.
    """
    tail = list(token_ids[-span:])
    if len(tail) < span:
        return False
    run = max(1, min(RUN, span // 4))
    runs = list(zip(*(tail[begin:] for begin in range(run)), strict=False))
    return runs[-1] in runs[:-1] and len(set(runs)) <= DIFFERENT * len(runs)


def steps_to_look(sequence: Sequence, span: int) -> float:
    """Return how many tokens an answer grows until it is looked at for a loop of `span`; infinite if it never is."""
    sampling = sequence.request.sampling
    if sampling.ignore_eos:
        return math.inf
    num_tokens = len(sequence.output_token_ids) - sequence.num_pending
    looked = -(-max(span, sampling.min_tokens, num_tokens + 1) // LOOK_EVERY) * LOOK_EVERY
    return looked - num_tokens


@dataclass(slots=True)
class LiveRequest:
    """A live request."""

    scheduler: Scheduler
    choices: list[Sequence]
    live: int
    """How many of its choices are unfinished."""


class LiveRequests:
    """The live requests of all models of a core, in `by_id`. Steps complete answers and call `forget_choice`; each of
    the other methods ends choices early and returns their last outputs. `clock`: seconds, as of the core."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.by_id: dict[str, LiveRequest] = {}
        self._clock = clock

    def add(self, scheduler: Scheduler, choices: list[Sequence], now: float) -> None:
        """Queue the choices of a request. Raises `QueueFullError`."""
        scheduler.add(choices, now)
        self.by_id[choices[0].request.request_id] = LiveRequest(scheduler, choices, len(choices))

    def abort(self, request_id: str, index: int | None) -> list[SequenceOutput]:
        """End a request, or its choice `index` alone; [] if it is not live."""
        request = self.by_id.get(request_id)
        if request is None:
            return []
        chosen = [s for s in request.choices if index is None or s.index == index]
        return [self._end(request, s, "abort") for s in chosen if s.status is not Status.FINISHED]

    def end_late(self, schedulers: Iterable[Scheduler], now: float) -> list[SequenceOutput]:
        """End the sequences whose strict deadline has passed before their first token (SPEC BS-04)."""
        outputs = []
        for scheduler in schedulers:
            for sequence in scheduler.deadlines.too_late(now):
                scheduler.totals.deadline_refusals += 1
                late_seconds = now - sequence.precedence.deadline
                late = f"{scheduler.name}: the first token was due {late_seconds * 1e3:.0f} ms ago"
                output = self._end(self.by_id[sequence.request.request_id], sequence, "error", late)
                output.error_kind = "overloaded"
                outputs.append(output)
        return outputs

    def end_failed(self, scheduler: Scheduler, failed: Mapping[str, str]) -> list[SequenceOutput]:
        """End running sequences that a step failed for: errors by the sequences' ids."""
        outputs = []
        for sequence_id, error in failed.items():
            sequence = scheduler.running[sequence_id]
            matcher = sequence.sample_spec.matcher
            output = self._end(self.by_id[sequence.request.request_id], sequence, "error", error)
            if matcher is not None and matcher.failure is not None:
                blame(output, matcher.failure)
            outputs.append(output)
        return outputs

    def end_repetitive(self, scheduler: Scheduler, outputs: list[SequenceOutput]) -> list[SequenceOutput]:
        """Of the answers that `outputs` continue, end those that loop with reason "length", but for `ignore_eos`.

        Answers are looked at after the same tokens however many come out together; those behind are taken back.
        """
        span = scheduler.knobs.repetition_guard
        ended = []
        for output in outputs:
            if output.finish_reason is not None or not output.token_ids:
                continue
            request = self.by_id[output.request_id]
            sequence = request.choices[output.index]
            sampling = sequence.request.sampling
            num_tokens = len(sequence.output_token_ids) - sequence.num_pending
            behind = num_tokens % LOOK_EVERY
            looked = num_tokens - behind
            if behind >= len(output.token_ids) or looked < max(span, sampling.min_tokens):
                continue
            if not sampling.ignore_eos and is_looping(sequence.output_token_ids[looked - span : looked], span):
                scheduler.totals.repetitions_ended += 1
                ended.append(self._end(request, sequence, "length"))
                if behind:
                    ended[-1].completion_tokens -= behind
                    output.drop_last(behind)
        return ended

    def _end(
        self, request: LiveRequest, sequence: Sequence, reason: FinishReason, error: str | None = None
    ) -> SequenceOutput:
        request.scheduler.remove(sequence, self._clock())
        self.forget_choice(request, sequence.request.request_id)
        return sequence.output([], finish_reason=reason, error=error)

    def forget_choice(self, request: LiveRequest, request_id: str) -> None:
        """Note that a choice has ended; with the last one its request goes."""
        request.live -= 1
        if not request.live:
            del self.by_id[request_id]
        if request.scheduler.adapters.has_leaving:
            request.scheduler.forget_adapters()

    def check_integrity(self, schedulers: Iterable[Scheduler]) -> None:
        """Check that the live choices are those that wait or run. Raises `IntegrityError`."""
        live = {
            sequence.id: sequence.status
            for request in self.by_id.values()
            for sequence in request.choices
            if sequence.status is not Status.FINISHED
        }
        queued: dict[str, Status] = {}
        for scheduler in schedulers:
            queued |= dict.fromkeys(scheduler.running, Status.RUNNING)
            queued |= dict.fromkeys(scheduler.waiting, Status.WAITING)
        if live != queued:
            raise IntegrityError(f"live choices {live} are not those that wait or run: {queued}")
