"""The most that a profile of requests bears: voice bots at a time, query rewrites a second (SPEC TB-02, TB-03)."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from benchmarks.core.load_rows import load_row
from benchmarks.report.kept import kept_options, require_at_least_one, show_measurement
from benchmarks.report.markdown import limit_table
from benchmarks.report.measured import LimitLoad, LimitResults
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import spread
from gateway.planning.load_test.run import BenchTarget, LoadRun, core_target, model_of
from gateway.planning.load_test.workload import Job, Load, Prompts, jobs_of
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import load_catalog

FIGURES = ("req_s", "out_tok_s", "ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p99_ms", "slowest_stream_tok_s")
# Source 001: 1,900 to 2,000 tokens in and 200 out; 10 to 20 tokens in and out.
_VOICE_WORDS, _VOICE_TOKENS = 1950, 200
_REWRITE_TOKENS = (10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """`voice`: a closed loop of long prompts, streamed, at most `most` in flight; every stream is to have more than
    `tokens_s` tokens per second after its first. `rewrite`: Poisson arrivals for `seconds` of requests of 10 to 20
    tokens each way, at most `most` a second; the 99th percentile of whole answers, which nothing streams, is to be at
    most `p99_ms`. At least `requests` are asked at each load; `prompt_tokens` and `output_tokens` replace the profile's
    lengths. `rounds` searches, each with prompts of its own. Raises `ValueError`.
    """

    profile: Literal["voice", "rewrite"] = "voice"
    rounds: int = 3
    most: int = 256
    tokens_s: float = 30.0
    p99_ms: float = 95.0
    seconds: float = 10.0
    requests: int = 4
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    seed: int = 7
    timeout: float = 600.0

    def __post_init__(self) -> None:
        require_at_least_one(self, "rounds", "most", "requests", "prompt_tokens", "output_tokens")
        for name in ("tokens_s", "p99_ms", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")

    @property
    def offered(self) -> str:
        """What a load is counted in."""
        return "in flight" if self.profile == "voice" else "offered requests/s"

    @property
    def promise(self) -> str:
        if self.profile == "voice":
            return f"every stream above {self.tokens_s:g} tokens/s"
        return f"p99 of whole answers within {self.p99_ms:g} ms"


async def highest(keeps: Callable[[int], Awaitable[bool]], most: int) -> int:
    """The highest load of 1 to `most` that keeps its promise, 0 if none does: by doubling, then by halving the interval
    until it is a tenth. Assumes that every load keeps what a higher one does."""
    low, high = 0, 1
    while high <= most and await keeps(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, low // 10):
        middle = (low + high) // 2
        if await keeps(middle):
            low = middle
        else:
            high = middle
    return low


async def find_limit(
    target: BenchTarget,
    options: LimitOptions,
    measurement: Measurement,
    progress: Callable[[str], None] = lambda _: None,
) -> LimitResults:
    """Search in every round, with a row per load that was tried, and finish `measurement`. Raises `CoreError`."""
    run = LoadRun(target, options.timeout)
    await run.warm_up(_load(options, 1, seed=options.seed - 1).jobs[:2])
    highest_loads = []
    for turn in range(options.rounds):

        async def keeps(offered: int, turn: int = turn) -> bool:
            row = measurement.find(round=turn, offered=offered)
            if row is None:
                progress(f"round {turn + 1}/{options.rounds}: {offered} {options.offered}")
                load = _load(options, offered, seed=options.seed + 1000 * turn + offered)
                row = {"round": turn, **await load_row(run, load, target.api)}
                row["kept"] = _kept(options, row)
                measurement.add(row)
            return bool(row["kept"])

        highest_loads.append(await highest(keeps, options.most))
    results = results_of(options, highest_loads, measurement.rows)
    measurement.finish(msgspec.to_builtins(results))
    return results


def _load(options: LimitOptions, offered: int, *, seed: int) -> Load:
    """The load of one row; the same for the same seed."""
    columns, prompts = {"offered": offered}, Prompts(seed, 0)
    if options.profile == "voice":
        words, tokens = options.prompt_tokens or _VOICE_WORDS, options.output_tokens or _VOICE_TOKENS
        return Load(columns, jobs_of(prompts, max(options.requests, 2 * offered), words, tokens), offered)
    draw, due, jobs = random.Random(f"{seed} arrivals"), 0.0, []
    for _ in range(max(options.requests, round(offered * options.seconds))):
        words = options.prompt_tokens or draw.randint(*_REWRITE_TOKENS)
        tokens = options.output_tokens or draw.randint(*_REWRITE_TOKENS)
        jobs.append(Job(prompts.draw(words), tokens, due))
        due += draw.expovariate(offered)
    return Load(columns, jobs)


def _kept(options: LimitOptions, row: Row) -> bool:
    if row["ok"] < row["requests"]:
        return False
    if options.profile == "rewrite":
        return bool(row["e2e_p99_ms"] <= options.p99_ms)
    slowest = row["slowest_stream_tok_s"]
    return slowest is not None and bool(slowest > options.tokens_s)


def results_of(options: LimitOptions, highest_loads: Sequence[int], rows: Sequence[Row]) -> LimitResults:
    """`highest_loads`: the highest load of each round."""
    loads = []
    for offered in sorted({row["offered"] for row in rows}):
        chosen: list[dict[str, Any]] = [row for row in rows if row["offered"] == offered]
        figures = {name: spread([row[name] for row in chosen]) for name in FIGURES}
        kept = sum(row["kept"] for row in chosen)
        loads.append(LimitLoad(offered=offered, rounds=len(chosen), kept=kept, figures=figures))
    return LimitResults(
        profile=options.profile,
        offered=options.offered,
        promise=options.promise,
        highest=spread([float(each) for each in highest_loads]),
        loads=loads,
    )


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option(
    "--profile",
    type=click.Choice(["voice", "rewrite"]),
    default="voice",
    help="1,950 words in and 200 tokens out, streamed; or 10 to 20 each way, whole, at a rate.",
)
@click.option("--rounds", default=3, help="Searches.")
@click.option("--most", default=256, help="In flight, or requests a second, to try at most.")
@click.option("--tokens-s", default=30.0, help="Voice: what every stream is to exceed.")
@click.option("--p99-ms", default=95.0, help="Rewrite: milliseconds of whole answers at p99.")
@click.option("--seconds", default=10.0, help="Rewrite: of arrivals at each rate.")
@click.option("--requests", default=4, help="Requests of a load at least.")
@click.option("--prompt-tokens", type=int, help="Words per prompt.  [the profile's]")
@click.option("--output-tokens", type=int, help="[the profile's]")
@click.option("--seed", default=7)
@click.option("--timeout", default=600.0, help="Seconds for one request.")
@kept_options
def limits(**arguments: Any) -> None:
    """Search for the highest load at which every stream is fast enough, or p99 is low enough.

    Example: python -m benchmarks limits --profile rewrite --p99-ms 300 --out rewrite.jsonl
    """

    show_measurement(arguments, LimitOptions, _run, limit_table)


async def _run(settings: Any, model: str | None, options: LimitOptions, out: Path | None, keep: bool) -> LimitResults:
    core = core_spec(load_catalog(settings.catalog))
    spec = model_of(core, model)
    about = {"model": spec, "arena_bytes": core.arena_bytes, "options": options}
    measurement = Measurement.begin("limits", about, out, keep=keep)
    async with core_target(core, spec, settings.cache_path) as target:
        return await find_limit(target, options, measurement, lambda line: click.echo(line, err=True))
