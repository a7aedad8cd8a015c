"""What requests do to each other: a long prompt among streams, a busy batch, a shared prefix (SPEC BS-06, BS-12)."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.core.core_memory import roomy
from benchmarks.report.kept import kept_options, show_measurement
from benchmarks.report.markdown import markdown, middle, ranged, times
from benchmarks.report.measured import Spread
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import ratio, spread
from gateway.planning.commands.bench import ManyNumbers, numbers_of
from gateway.planning.load_test.run import AskError, CoreTarget, Timing, percentile
from gateway.planning.load_test.workload import Job, Prompts

LONG_PROMPT, OCCUPANCY, SHARED_PREFIX = "long prompt", "occupancy", "shared prefix"
# Long enough to outlast whatever is measured meanwhile; streams are ended from outside.
_ENDLESS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceOptions:
    """`streams` decode while a prompt of `long_words` arrives; `quiet_tokens` of each are timed before it does. Once
    with fixed knobs, once with the auto-tuner and the objectives of the catalogue.

    A prompt of `prompt_tokens` joins `levels` of decoding streams, `probes` times each. `pairs` of prompts of
    `prefix_words` are new, or share `shared_percent` of them with one asked before. Raises `ValueError`.
    """

    rounds: int = 5
    streams: int = 8
    long_words: int = 8000
    quiet_tokens: int = 100
    prompt_tokens: int = 128
    levels: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    probes: int = 8
    prefix_words: int = 1024
    shared_percent: int = 90
    pairs: int = 4
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("rounds", "streams", "long_words", "prompt_tokens", "probes", "prefix_words", "pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.quiet_tokens < 2:
            raise ValueError(f"quiet_tokens is {self.quiet_tokens}; gaps need at least 2")
        if min(self.levels, default=-1) < 0:
            raise ValueError(f"levels are {self.levels}; give some of 0 and more")
        if not 0 < self.shared_percent < 100:
            raise ValueError(f"shared_percent is {self.shared_percent}; it must lie between 0 and 100")


class LongPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """ITL of the streams without and with the long prompt's prefill, and its own TTFT, in milliseconds.

    `tuned`: with the auto-tuner on, which holds the 95th percentile to the objective.
    """

    tuned: bool
    quiet_p50: Spread | None
    quiet_p99: Spread | None
    beside_p50: Spread | None
    beside_p99: Spread | None
    p99_ratio: Spread | None
    long_ttft: Spread | None
    quiet_p95: Spread | None = None
    beside_p95: Spread | None = None


class Joining(msgspec.Struct, frozen=True):
    """TTFT in milliseconds of a prompt that joins `streams` decoding ones."""

    streams: int
    ttft_p50: Spread | None
    ttft_p99: Spread | None


class SharedPrefix(msgspec.Struct, frozen=True):
    """TTFT in milliseconds of a new prompt and of one whose prefix is cached; how many times lower the second is."""

    cold: Spread | None
    warm: Spread | None
    times_lower: Spread | None


class InterferenceResults(msgspec.Struct, frozen=True):
    long_prompts: list[LongPrompt]
    occupancy: list[Joining]
    shared_prefix: SharedPrefix


async def interfere(
    target: CoreTarget,
    options: InterferenceOptions,
    measurement: Measurement,
    progress: Callable[[str], None] = lambda _: None,
) -> InterferenceResults:
    """Measure what `measurement` lacks, round by round, and finish it. Raises `AskError`."""
    bench = _Interference(target, options)
    for turn in range(options.rounds):
        wanted: list[dict[str, Any]] = [{"part": LONG_PROMPT, "tuned": tuned} for tuned in (False, True)]
        wanted += [{"part": SHARED_PREFIX}, *({"part": OCCUPANCY, "streams": level} for level in options.levels)]
        for position, keys in enumerate(wanted):
            if measurement.find(round=turn, **keys) is not None:
                continue
            progress(f"round {turn + 1}/{options.rounds}: {', '.join(f'{k} {v}' for k, v in keys.items())}")
            bench.new_prompts(options.seed + 1000 * turn + 10 * position)
            if keys["part"] == LONG_PROMPT:
                figures = await bench.long_prompt(tuned=keys["tuned"])
            elif keys["part"] == SHARED_PREFIX:
                figures = await bench.shared_prefix()
            else:
                figures = await bench.joining(keys["streams"])
            measurement.add({**keys, "round": turn, **figures})
    results = results_of(measurement.rows)
    measurement.finish(msgspec.to_builtins(results))
    return results


def results_of(rows: Iterable[Row]) -> InterferenceResults:
    """Medians and ranges over the rounds."""
    rows = list(rows)

    def column(part: str, name: str, **where: Any) -> list[float | None]:
        chosen = (r for r in rows if r["part"] == part and all(r[key] == value for key, value in where.items()))
        return [row.get(name) for row in sorted(chosen, key=lambda row: row["round"])]

    def long_prompt(tuned: bool) -> LongPrompt:
        def of(name: str) -> list[float | None]:
            return column(LONG_PROMPT, name, tuned=tuned)

        return LongPrompt(
            tuned=tuned,
            quiet_p50=spread(of("quiet_itl_p50_ms")),
            quiet_p99=spread(of("quiet_itl_p99_ms")),
            beside_p50=spread(of("beside_itl_p50_ms")),
            beside_p99=spread(of("beside_itl_p99_ms")),
            p99_ratio=ratio(of("beside_itl_p99_ms"), of("quiet_itl_p99_ms")),
            long_ttft=spread(of("long_ttft_ms")),
            quiet_p95=spread(of("quiet_itl_p95_ms")),
            beside_p95=spread(of("beside_itl_p95_ms")),
        )

    cold, warm = column(SHARED_PREFIX, "cold_ttft_p50_ms"), column(SHARED_PREFIX, "warm_ttft_p50_ms")
    levels = sorted({row["streams"] for row in rows if row["part"] == OCCUPANCY})
    return InterferenceResults(
        [long_prompt(tuned) for tuned in (False, True)],
        [
            Joining(
                level,
                spread(column(OCCUPANCY, "ttft_p50_ms", streams=level)),
                spread(column(OCCUPANCY, "ttft_p99_ms", streams=level)),
            )
            for level in levels
        ],
        SharedPrefix(spread(cold), spread(warm), ratio(cold, warm)),
    )


def interference_tables(results: InterferenceResults) -> str:
    """The long prompt, joining a busy batch, the shared prefix."""
    prefix = results.shared_prefix
    beside: list[list[str]] = []
    for long in results.long_prompts:
        knobs = "auto-tuned" if long.tuned else "fixed knobs"
        quiet = [middle(long.quiet_p50), ranged(long.quiet_p95), ranged(long.quiet_p99), "1", "–"]
        beside.append([f"nothing else, {knobs}", *quiet])
        loaded = [middle(long.beside_p50), ranged(long.beside_p95), ranged(long.beside_p99), times(long.p99_ratio)]
        beside.append([f"the long prefill, {knobs}", *loaded, ranged(long.long_ttft)])
    return "\n\n".join(
        [
            markdown(
                ["other load", "streams' ITL p50 ms", "p95 ms", "p99 ms", "p99 ratio", "the long prompt's TTFT ms"],
                beside,
            ),
            markdown(
                ["streams decoding", "TTFT p50 ms", "TTFT p99 ms"],
                [[str(j.streams), ranged(j.ttft_p50), ranged(j.ttft_p99)] for j in results.occupancy],
            ),
            markdown(
                ["TTFT p50 ms, new prompt", "prefix cached", "times lower"],
                [[ranged(prefix.cold), ranged(prefix.warm), times(prefix.times_lower)]],
            ),
        ]
    )


@dataclass(slots=True)
class _Stream:
    """A decoding request: when each of its pieces came, who waits for how many of them, and whether it is over."""

    times: list[float] = field(default_factory=list)
    awaited: dict[int, asyncio.Event] = field(default_factory=dict)
    over: bool = False

    def note(self, now: float) -> None:
        self.times.append(now)
        if event := self.awaited.get(len(self.times)):
            event.set()

    async def reaches(self, pieces: int) -> None:
        """Wait for so many pieces. Raises `AskError` if it ends before."""
        if len(self.times) < pieces and not self.over:
            await self.awaited.setdefault(pieces, asyncio.Event()).wait()
        if len(self.times) < pieces:
            raise AskError("ended", f"a stream of {len(self.times)} tokens ended before all streams had {pieces}")

    def end(self) -> None:
        self.over = True
        for event in self.awaited.values():
            event.set()

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between pieces, of those gaps that overlap begin…end."""
        return [after - before for before, after in pairwise(self.times) if after > begin and before < end]


class _Interference:
    """The three measurements on one core."""

    def __init__(self, target: CoreTarget, options: InterferenceOptions) -> None:
        self._target = target
        self._options = options
        self._prompts = Prompts(options.seed, 0)

    def new_prompts(self, seed: int) -> None:
        """From here on prompts are those of `seed`; none of them has a cached prefix."""
        self._prompts = Prompts(seed, 0)

    async def long_prompt(self, *, tuned: bool) -> dict[str, Any]:
        client = self._target.client
        await client.set_knobs({"auto_tune": tuned})
        try:
            return await self._beside_long_prompt()
        finally:
            await client.set_knobs({"auto_tune": None})

    async def _beside_long_prompt(self) -> dict[str, Any]:
        options = self._options
        async with self._decoding(options.streams) as streams:
            begin = time.perf_counter()
            await asyncio.gather(*(s.reaches(len(s.times) + options.quiet_tokens) for s in streams))
            quiet_end = time.perf_counter()
            ttft = await self._ttft(self._prompts.draw(options.long_words))
            end = time.perf_counter()
        quiet = [gap for s in streams for gap in s.gaps(begin, quiet_end)]
        beside = [gap for s in streams for gap in s.gaps(quiet_end, end)]
        return {
            "long_ttft_ms": ttft * 1e3,
            "quiet_gaps": len(quiet),
            "beside_gaps": len(beside),
            **_milliseconds("quiet_itl", quiet),
            **_milliseconds("beside_itl", beside),
        }

    async def joining(self, level: int) -> dict[str, Any]:
        options = self._options
        async with self._decoding(level):
            ttfts = [await self._ttft(self._prompts.draw(options.prompt_tokens)) for _ in range(options.probes)]
        return {"probes": len(ttfts), **_milliseconds("ttft", ttfts)}

    async def shared_prefix(self) -> dict[str, Any]:
        """Cold and warm prompts in turn; the first with the prefix only fills the cache."""
        options = self._options
        common = options.prefix_words * options.shared_percent // 100
        prefix = self._prompts.draw(common)
        await self._ttft(prefix)
        cold, warm = [], []
        for _ in range(options.pairs):
            cold.append(await self._ttft(self._prompts.draw(options.prefix_words)))
            warm.append(await self._ttft(f"{prefix} {self._prompts.draw(options.prefix_words - common)}"))
        return {"pairs": options.pairs, **_milliseconds("cold_ttft", cold), **_milliseconds("warm_ttft", warm)}

    async def _ttft(self, prompt: str) -> float:
        timing = Timing(asked=1)
        await self._target.ask(Job(prompt, 1), time.perf_counter(), timing)
        assert timing.ttft is not None
        return timing.ttft

    @contextlib.asynccontextmanager
    async def _decoding(self, number: int) -> AsyncIterator[list[_Stream]]:
        """`number` requests that are all answering and continue until the block ends."""
        streams = [_Stream() for _ in range(number)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._read(stream)) for stream in streams]
                await asyncio.gather(*(stream.reaches(1) for stream in streams))
                yield streams
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as failed:
            ended = failed.subgroup(AskError)
            raise (ended.exceptions[0] if ended else failed) from None

    async def _read(self, stream: _Stream) -> None:
        job = Job(self._prompts.draw(self._options.prompt_tokens), _ENDLESS)
        try:
            async for now in self._target.pieces(job):
                stream.note(now)
        finally:
            stream.end()


def _milliseconds(name: str, seconds: list[float]) -> dict[str, float | None]:
    return {
        f"{name}_{label}_ms": None if (p := percentile(seconds, q)) is None else round(p * 1e3, 4)
        for label, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--rounds", default=5, show_default=True)
@click.option("--streams", default=8, show_default=True, help="Decoding while the long prompt arrives.")
@click.option("--long-words", default=8000, show_default=True, help="Words of the long prompt, about one token each.")
@click.option("--quiet-tokens", default=100, show_default=True, help="Tokens of each stream before it arrives.")
@click.option("--prompt-tokens", default=128, show_default=True, help="Words of the other prompts.")
@click.option(
    "--levels",
    callback=numbers_of(int),
    metavar="N...",
    default="0 1 2 4 8 16 32",
    show_default=True,
    help="Streams decoding when a prompt joins.",
)
@click.option("--probes", default=8, show_default=True, help="Prompts that join at each level.")
@click.option("--prefix-words", default=1024, show_default=True, help="Words of the prompts that share a prefix.")
@click.option("--shared-percent", default=90, show_default=True, help="How much of them they share.")
@click.option("--pairs", default=4, show_default=True, help="Prompts with and without a cached prefix.")
@click.option("--seed", default=7, show_default=True)
@kept_options
def interference(**given: Any) -> None:
    """ITL of streams during a long prefill, TTFT of joining a busy batch, TTFT with a cached prefix.

    Example: python -m benchmarks interference --rounds 5 --out interference.jsonl
    """
    show_measurement(given, InterferenceOptions, _run, interference_tables)


async def _run(
    settings: Any, model: str | None, options: "InterferenceOptions", out: Path | None, keep: bool
) -> "InterferenceResults":
    from gateway.planning.load_test.open_core import core_target, model_of
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    spec = model_of(catalog.core, model)
    most = max(*options.levels, options.streams) + 1
    core, knobs = roomy(catalog.core, spec, settings.cache_path, sequences=most, tokens_each=2 * options.prompt_tokens)
    extra, _ = roomy(catalog.core, spec, settings.cache_path, sequences=options.streams, tokens_each=options.long_words)
    core = max(core, extra, key=lambda each: each.arena_bytes)
    measurement = Measurement.begin("interference", {"model": spec, "knobs": knobs, "options": options}, out, keep=keep)
    async with core_target(core, spec, settings.cache_path, knobs) as target:
        return await interfere(target, options, measurement, lambda line: click.echo(line, err=True))
