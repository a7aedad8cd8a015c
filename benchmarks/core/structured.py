"""What a grammar costs: streams held to a JSON schema beside streams that write freely, in alternating rounds."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count

import msgspec

from benchmarks.report.rounds import ratio, spread
from gateway.bench.workload import Prompts
from gateway.reporting.measured import Spread
from inference_core.grammar.compiler import GrammarCompiler
from inference_core.grammar.masks import TokenMask
from inference_core.grammar.trie import token_trie
from inference_core.protocol import AddRequest, Grammar, SamplingParams
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient

# A list of orders without end, so that every answer has its full length: strings, numbers, dates, names to choose from.
ORDER = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 40},
        "status": {"enum": ["open", "paid", "shipped", "returned"]},
        "total": {"type": "number", "minimum": 0},
        "items": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 5},
        "placed_on": {"type": "string", "format": "date"},
    },
    "required": ["customer", "status", "total", "items", "placed_on"],
    "additionalProperties": False,
}
ORDERS = Grammar(kind="json_schema", text=json.dumps({"type": "array", "items": ORDER, "minItems": 10_000}))


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOptions:
    """`streams` answers of `tokens` tokens at a time, `rounds` times free and `rounds` times structured."""

    streams: int = 8
    tokens: int = 128
    prompt_words: int = 64
    rounds: int = 7
    seed: int = 7


class StructuredCost(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second of all streams together, free and structured, and structured by free within a round.

    `free_steps` and `structured_steps`: steps of the core per token of a stream; below 1 where forced tokens were
    skipped ahead. `mask_microseconds`: the mean of computing a mask, on its thread beside the model (SPEC SO-02).
    """

    streams: int
    tokens: int
    rounds: int
    free_tokens_per_second: Spread | None
    structured_tokens_per_second: Spread | None
    ratio: Spread | None
    free_steps: float
    structured_steps: float
    mask_microseconds: float


async def structured_cost(
    client: CoreClient,
    tokenizer: Tokenizer,
    model: str,
    options: StructuredOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StructuredCost:
    """Measure `model` of a core that does nothing else; greedy, the same prompts on both sides of a round."""
    prompts = Prompts(options.seed, 0)
    numbers = count()
    rates: dict[bool, list[float]] = {False: [], True: []}
    steps: dict[bool, int] = {False: 0, True: 0}
    answers: list[list[int]] = []

    async def one(prompt: list[int], structured: bool) -> None:
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=options.tokens,
            ignore_eos=not structured,
            grammar=ORDERS if structured else None,
        )
        request = AddRequest(
            request_id=f"structured-{(number := next(numbers))}",
            model=model,
            prompt_token_ids=prompt,
            sampling=sampling,
            salt=f"{number}",  # no side finds in the cache what the other has computed
        )
        drawn: list[int] = []
        async with aclosing(client.generate(request)) as outputs:
            async for output in outputs:
                drawn += output.token_ids
        if len(drawn) != options.tokens:
            raise RuntimeError(f"an answer of {len(drawn)} tokens instead of {options.tokens}")
        if structured:
            answers.append(drawn)

    async def side(ids: list[list[int]], structured: bool) -> float:
        before, began = (await client.stats()).steps, time.perf_counter()
        await asyncio.gather(*(one(prompt, structured) for prompt in ids))
        seconds = time.perf_counter() - began
        steps[structured] += (await client.stats()).steps - before
        return options.streams * options.tokens / seconds

    for number in range(options.rounds + 1):
        ids = [tokenizer.encode(prompts.draw(options.prompt_words)) for _ in range(options.streams)]
        # Who goes first alternates; the first round warms up and is not counted.
        for structured in (False, True) if number % 2 else (True, False):
            rate = await side(ids, structured)
            if number:
                rates[structured].append(rate)
            else:
                steps[structured] = 0
        progress(number, options.rounds)
    tokens = options.rounds * options.tokens
    return StructuredCost(
        streams=options.streams,
        tokens=options.tokens,
        rounds=options.rounds,
        free_tokens_per_second=spread(rates[False]),
        structured_tokens_per_second=spread(rates[True]),
        ratio=ratio(rates[True], rates[False]),
        free_steps=steps[False] / tokens,
        structured_steps=steps[True] / tokens,
        mask_microseconds=_mask_seconds(tokenizer, client.models[model].vocab_size, answers[-options.streams :]) * 1e6,
    )


def _mask_seconds(tokenizer: Tokenizer, vocab_size: int, answers: list[list[int]]) -> float:
    compiler = GrammarCompiler(token_trie(tokenizer, vocab_size, tokenizer.eos_token_ids))
    seconds = 0.0
    for answer in answers:
        matcher = compiler.compile(ORDERS)()
        for token in answer:
            began = time.perf_counter()
            matcher.ask_masks(())
            TokenMask.of_bytes(matcher.masks()[0])
            seconds += time.perf_counter() - began
            matcher.accept(token)
    return seconds / sum(map(len, answers))
