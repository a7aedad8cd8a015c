"""Refuses requests that can never be served, before they are queued; messages say what was given and allowed."""

import collections.abc
import math
from typing import NoReturn

from inference_core.errors import InvalidRequestError
from inference_core.kv_cache.block_pool import BlockPool
from inference_core.protocol import AddRequest, Knobs, ModelInfo, SamplingParams

PRIORITIES = (0, 1, 2)


def validate_request(request: AddRequest, info: ModelInfo, pool: BlockPool, knobs: Knobs) -> None:
    """Raises `InvalidRequestError` naming the field unless the request can be served by `info` with `pool`'s arena."""
    prompt = request.prompt_token_ids
    if not prompt:
        _refuse("prompt_token_ids", "is empty; give at least one token")
    if request.drawn_from is not None and not 0 <= request.drawn_from <= len(prompt):
        _refuse("drawn_from", f"is {request.drawn_from}; the prompt's {len(prompt)} tokens are at positions from 0 on")
    validate_token_ids("prompt_token_ids", prompt, info.vocab_size)
    if len(prompt) >= info.max_context:
        _refuse(
            "prompt_token_ids",
            f"has {len(prompt)} tokens; {info.name} has a context of {info.max_context} for prompt and answer "
            f"together, so the prompt may have at most {info.max_context - 1}",
        )
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
    tokens = min(prompt + answer, info.max_context) - 1
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
