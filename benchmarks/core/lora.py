"""What adapters cost: streams that go through different adapters beside the same streams of the model alone."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.report.rounds import ratio, spread
from gateway.bench.workload import Prompts
from gateway.reporting.measured import Spread
from inference_core.errors import CoreError
from inference_core.lora.random_adapter import write_random_adapter
from inference_core.model_config import ModelConfig
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """`streams` answers of `tokens` tokens at a time, `rounds` times without and `rounds` times with adapters, of which
    there are `adapters` of `rank`, over all linear layers. Raises `ValueError`."""

    streams: int = 8
    adapters: int = 8
    rank: int = 8
    tokens: int = 128
    prompt_words: int = 64
    rounds: int = 7
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("streams", "adapters", "rank", "tokens", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


class LoraCost(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second of all streams together, prompts included in the time, and with by without within a round.

    `adapter_bytes`: of one adapter in its slot.
    """

    streams: int
    adapters: int
    rank: int
    tokens: int
    rounds: int
    adapter_bytes: int
    plain_tokens_per_second: Spread | None
    adapted_tokens_per_second: Spread | None
    ratio: Spread | None


async def lora_cost(
    client: CoreClient,
    tokenizer: Tokenizer,
    model: str,
    config: ModelConfig,
    folder: Path,
    options: LoraOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LoraCost:
    """Measure `model` of a core that does nothing else, with random adapters written to `folder`; greedy, the same
    prompts on both sides of a round. Raises `CoreError`."""
    names = await _load_adapters(client, model, config, folder, options)
    prompts = Prompts(options.seed, 0)
    numbers = count()
    rates: dict[bool, list[float]] = {False: [], True: []}

    async def one(prompt: list[int], adapter: str) -> None:
        request = AddRequest(
            request_id=f"lora-{(number := next(numbers))}",
            model=model,
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=options.tokens, ignore_eos=True),
            salt=f"{number}",  # no side finds in the cache what the other has computed
            adapter=adapter,
        )
        async with aclosing(client.generate(request)) as outputs:
            async for output in outputs:
                if output.finish_reason == "error":
                    raise CoreError(output.error or "the request failed")

    async def side(ids: list[list[int]], adapted: bool) -> float:
        began = time.perf_counter()
        chosen = [names[i % len(names)] if adapted else "" for i in range(len(ids))]
        await asyncio.gather(*map(one, ids, chosen))
        return options.streams * options.tokens / (time.perf_counter() - began)

    for number in range(options.rounds + 1):
        ids = [tokenizer.encode(prompts.draw(options.prompt_words)) for _ in range(options.streams)]
        # Who goes first alternates; the first round warms up and is not counted.
        for adapted in (False, True) if number % 2 else (True, False):
            rate = await side(ids, adapted)
            if number:
                rates[adapted].append(rate)
        progress(number, options.rounds)
    described = {info.name: info for m in (await client.stats()).models if m.name == model for info in m.adapters}
    for name in names:
        await client.unload_adapter(model, name)
    return LoraCost(
        streams=options.streams,
        adapters=options.adapters,
        rank=options.rank,
        tokens=options.tokens,
        rounds=options.rounds,
        adapter_bytes=described[names[0]].bytes,
        plain_tokens_per_second=spread(rates[False]),
        adapted_tokens_per_second=spread(rates[True]),
        ratio=ratio(rates[True], rates[False]),
    )


async def _load_adapters(
    client: CoreClient, model: str, config: ModelConfig, folder: Path, options: LoraOptions
) -> list[str]:
    names = [f"bench-{number}" for number in range(options.adapters)]
    for number, name in enumerate(names):
        await asyncio.to_thread(write_random_adapter, folder / name, config, options.rank, number)
        await client.load_adapter(model, name, str(folder / name))
    return names
