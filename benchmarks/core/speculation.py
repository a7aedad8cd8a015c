"""What drafts are worth: the same requests with and without them, in turn (SPEC SD-06, SD-11)."""

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from benchmarks.core.copy_load import copy_prompt
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import spread
from gateway.bench.run import busy_share
from gateway.reporting.measured import Spread
from inference_core.errors import CoreError
from inference_core.protocol import AddRequest, KnobValue, SamplingParams, SpeculationStats
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient

Workload = Literal["copy", "open chat"]
WORKLOADS: tuple[Workload, ...] = ("copy", "open chat")
# What a model is asked when there is nothing to copy.
_QUESTIONS = (
    "What should I look at when I buy a used bicycle?",
    "Why is the sky blue in the day and red in the evening?",
    "Give me three ideas for a rainy Sunday with two small children.",
    "How does a refrigerator keep things cold?",
    "Write a short poem about a lighthouse keeper who is afraid of the sea.",
    "What is the difference between weather and climate?",
    "Explain to a ten-year-old what a volcano is.",
    "How can I sleep better when it is hot?",
    "Who invented the printing press, and why did it matter?",
    "Tell me a story about a dog that learns to open doors.",
    "What are good questions to ask in a job interview?",
    "How do I keep basil alive on a window sill?",
    "What happens to my body when I run for half an hour?",
    "Describe a market in a small town early in the morning.",
    "Why do we have leap years?",
    "How would you teach somebody to swim?",
)
# The 97.5th percentile of Student's t by degrees of freedom; beyond, of the normal distribution.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """`way` is the value of the knob `speculation`. At each of `levels` in flight, `requests` or twice the level, of up
    to `output_tokens`, are answered without and with drafts, `rounds` times. Raises `ValueError`."""

    way: Literal["prompt_lookup", "draft_model"] = "prompt_lookup"
    rounds: int = 5
    levels: tuple[int, ...] = (1, 8, 32)
    requests: int = 8
    output_tokens: int = 96
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("rounds", "requests", "output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if min(self.levels, default=0) < 1:
            raise ValueError(f"levels are {self.levels}; give some of 1 and more")


class DraftsWorth(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens a second of a workload without and with drafts; `ratio` is the geometric mean over pairs with its
    95% interval. `accepted`: share of drafted tokens; `per_round`: tokens of a step with drafts, per sequence."""

    workload: Workload
    level: int
    without: Spread | None
    having: Spread | None
    ratio: Spread
    pairs: int
    accepted: float | None
    per_round: float | None


class SpeculationResults(msgspec.Struct, frozen=True, kw_only=True):
    way: str
    worth: list[DraftsWorth]


async def speculate(
    client: CoreClient,
    tokenizer: Tokenizer,
    model: str,
    options: SpeculationOptions,
    measurement: Measurement,
    progress: Callable[[str], None] = lambda _: None,
) -> SpeculationResults:
    """Measure what `measurement` lacks, in pairs, and finish it. Raises `CoreError`."""
    bench = _Bench(client, tokenizer, model, options)
    await bench.answer("open chat", 1, 1, seed=options.seed - 1)
    for turn, workload, level in itertools.product(range(options.rounds), WORKLOADS, options.levels):
        for having in (True, False) if turn % 2 else (False, True):
            keys = {"round": turn, "workload": workload, "level": level, "drafts": having}
            if measurement.find(**keys) is None:
                progress(f"round {turn + 1}/{options.rounds}: {workload}, {level} in flight, drafts {having}")
                await bench.switch(options.way if having else "off")
                busy = await busy_share()
                measurement.add({**keys, "busy_before": busy, **await bench.measured(workload, level, turn)})
    await bench.switch(None)
    results = results_of(options.way, measurement.rows)
    measurement.finish(msgspec.to_builtins(results))
    return results


def results_of(way: str, rows: Sequence[Row]) -> SpeculationResults:
    """What the pairs say, by workload and level."""
    keys = sorted({(WORKLOADS.index(row["workload"]), row["level"]) for row in rows})
    return SpeculationResults(way=way, worth=[_worth(WORKLOADS[w], level, rows) for w, level in keys])


def _worth(workload: Workload, level: int, rows: Sequence[Row]) -> DraftsWorth:
    chosen = [row for row in rows if row["workload"] == workload and row["level"] == level]
    without, having = (
        [row["out_tok_s"] for row in sorted(chosen, key=lambda row: row["round"]) if row["drafts"] is drafts]
        for drafts in (False, True)
    )
    drafted, accepted, rounds = (sum(row[name] for row in chosen) for name in ("drafted", "accepted", "rounds"))
    return DraftsWorth(
        workload=workload,
        level=level,
        without=spread(without),
        having=spread(having),
        ratio=geometric_interval([h / w for h, w in zip(having, without, strict=True)]),
        pairs=len(having),
        accepted=accepted / drafted if drafted else None,
        per_round=(accepted + rounds) / rounds if rounds else None,
    )


def geometric_interval(ratios: Sequence[float]) -> Spread:
    """The geometric mean and its 95% interval by Student's t over logarithms; of one ratio, all there is."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, degrees = statistics.fmean(logs), len(logs) - 1
    if not degrees:
        return Spread(ratios[0], 0.0, math.inf)
    t = _T[degrees - 1] if degrees <= len(_T) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Spread(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


class _Bench:
    """Requests to one model whose prompts and seeds a turn decides, so that a pair says the same word for word."""

    def __init__(self, client: CoreClient, tokenizer: Tokenizer, model: str, options: SpeculationOptions) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._model = model
        self._options = options
        self._numbers = itertools.count()

    async def switch(self, way: KnobValue) -> None:
        await self._client.set_knobs({"speculation": way}, self._model)

    async def measured(self, workload: Workload, level: int, turn: int) -> dict[str, Any]:
        before, began = await self._stats(), time.perf_counter()
        tokens = await self.answer(workload, level, max(self._options.requests, 2 * level), seed=1000 * turn)
        seconds, after = time.perf_counter() - began, await self._stats()
        counts = {
            "drafted": sum(after.proposed) - sum(before.proposed),
            "accepted": sum(after.accepted) - sum(before.accepted),
            "rounds": after.rounds - before.rounds,
        }
        return {"output_tokens": tokens, "seconds": round(seconds, 4), "out_tok_s": tokens / seconds, **counts}

    async def answer(self, workload: Workload, level: int, requests: int, *, seed: int) -> int:
        """Answer so many requests, `level` in flight; returns how many tokens were said."""
        waiting = iter([self._request(workload, seed + i) for i in range(requests)])

        async def worker() -> int:
            return sum([await self._tokens(request) for request in waiting])

        return sum(await asyncio.gather(*(worker() for _ in range(level))))

    async def _tokens(self, request: AddRequest) -> int:
        said = 0
        async for output in self._client.generate(request):
            said += len(output.token_ids)
            if output.finish_reason == "error":
                raise CoreError(output.error or "the request failed")
        return said

    def _request(self, workload: Workload, number: int) -> AddRequest:
        if workload == "copy":
            prompt = self._tokenizer.encode(copy_prompt(number), add_special_tokens=True)
            sampling = SamplingParams(temperature=0.0, max_tokens=self._options.output_tokens, ignore_eos=True)
        else:
            question = _QUESTIONS[number % len(_QUESTIONS)]
            prompt = self._tokenizer.encode_chat([{"role": "user", "content": question}])
            sampling = SamplingParams(temperature=0.7, seed=number, max_tokens=self._options.output_tokens)
        return AddRequest(
            request_id=f"bench-{next(self._numbers)}",
            model=self._model,
            prompt_token_ids=prompt,
            sampling=sampling,
            arrival=time.monotonic(),
            salt=f"bench {next(self._numbers)}",
        )

    async def _stats(self) -> SpeculationStats:
        models = {model.name: model for model in (await self._client.stats()).models}
        return models[self._model].speculation or SpeculationStats()
