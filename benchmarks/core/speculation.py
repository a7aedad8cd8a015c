"""What drafts are worth by workload: the same requests without, with automatic and with constant drafts, in turn
(SPEC SD-06, SD-11, TB-06).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click
import msgspec

from benchmarks.core.load_rows import load_row, roomy
from benchmarks.core.workloads import MIXES, OWN, WORKLOADS, Workload, WorkloadTarget, content_digest, workload
from benchmarks.report.kept import kept_options, require_at_least_one, show_measurement
from benchmarks.report.markdown import markdown, middle, number, ranged, times
from benchmarks.report.measured import Spread
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import geometric_interval, spread
from gateway.cli.options import by_words
from gateway.cli.planning.bench import ManyNumbers
from gateway.planning.load_test.run import LoadRun, core_target, model_of
from gateway.planning.load_test.workload import Load
from inference_core.errors import CoreError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.protocol import KnobValue, SpeculationStats
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import load_catalog

# No drafts; as many as pay by measured acceptance and time; always as many as there may be.
Mode = Literal["off", "auto", "on"]
_CONTROL: dict[Mode, str] = {"auto": "adaptive", "on": "fixed"}
FIGURES = ("out_tok_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms", "e2e_p95_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """`way` is the value of the knob `speculation`. At each of `levels` in flight, each of `workloads` is answered in
    each of `modes`, `rounds` times: at least `requests` (None: what the workload says) of up to `output_tokens`.
    `prompts`: the file of the workload `own`. Raises `ValueError`."""

    way: Literal["prompt_lookup", "draft_model"] = "prompt_lookup"
    rounds: int = 5
    levels: tuple[int, ...] = (1, 8, 32)
    requests: int | None = 8
    output_tokens: int = 96
    seed: int = 7
    workloads: tuple[str, ...] = ("copy", "open chat")
    modes: tuple[Mode, ...] = ("off", "auto")
    prompts: str = ""
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        require_at_least_one(self, "rounds", "requests", "output_tokens")
        if min(self.levels, default=0) < 1:
            raise ValueError(f"levels are {self.levels}; give some of 1 and more")
        allowed = [*WORKLOADS, *([OWN] if self.prompts else [])]
        if not self.workloads or set(self.workloads) - set(allowed):
            raise ValueError(f"workloads are {', '.join(self.workloads) or 'none'}; give some of {', '.join(allowed)}")
        if "off" not in self.modes or set(self.modes) - set(get_args(Mode)):
            raise ValueError(f"modes are {', '.join(self.modes)}; give off, which ratios are to, and of auto and on")


class DraftsWorth(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens a second of a workload without and with drafts; `ratio` is the geometric mean over pairs with its
    95% interval, None of a single one. `accepted`: share of drafted tokens; `per_round`: tokens of a step with drafts,
    per sequence."""

    workload: str
    level: int
    without: Spread | None
    having: Spread | None
    ratio: Spread | None
    pairs: int
    accepted: float | None
    per_round: float | None
    mode: Mode = "auto"


class WorkloadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians and ranges over the rounds of a workload at a level in a mode, by column."""

    workload: str
    level: int
    mode: Mode
    figures: dict[str, Spread | None]


class SpeculationResults(msgspec.Struct, frozen=True, kw_only=True):
    way: str
    worth: list[DraftsWorth]
    loads: list[WorkloadFigures] = []


async def speculate(
    target: WorkloadTarget,
    options: SpeculationOptions,
    measurement: Measurement,
    progress: Callable[[str], None] = lambda _: None,
) -> SpeculationResults:
    """Measure what `measurement` lacks, every other round backwards, and finish it. Raises `CoreError`, `ValueError`
    and `OSError` for a file of prompts."""
    bench = _Bench(target, options)
    asked = {name: workload(name, options.prompts) for name in options.workloads}
    for each in asked.values():
        # A grammar is compiled when it is first asked for.
        await bench.warm_up(each)
    for turn, name, level in itertools.product(range(options.rounds), options.workloads, options.levels):
        for mode in options.modes[::-1] if turn % 2 else options.modes:
            keys = {"round": turn, "workload": name, "level": level, "mode": mode}
            if measurement.find(**keys) is None:
                progress(f"round {turn + 1}/{options.rounds}: {name}, {level} in flight, drafts {mode}")
                await bench.switch(mode)
                measurement.add({**keys, **await bench.measured(asked[name], level, turn, mode)})
    await bench.restore()
    results = results_of(options, measurement.rows)
    measurement.finish(msgspec.to_builtins(results))
    return results


def results_of(options: SpeculationOptions, rows: Sequence[Row]) -> SpeculationResults:
    """What the rows say, by workload, level and mode in the order of the options."""
    loads = list(itertools.product(options.workloads, options.levels))
    return SpeculationResults(
        way=options.way,
        worth=[_worth(rows, *load, mode) for load in loads for mode in options.modes if mode != "off"],
        loads=[_figures(rows, *load, mode) for load in loads for mode in options.modes],
    )


def _chosen(rows: Sequence[Row], name: str, level: int, mode: Mode) -> list[Row]:
    """The rows of one load in one mode, by round."""
    chosen = (row for row in rows if (row["workload"], row["level"], row["mode"]) == (name, level, mode))
    return sorted(chosen, key=lambda row: row["round"])


def _figures(rows: Sequence[Row], name: str, level: int, mode: Mode) -> WorkloadFigures:
    chosen = _chosen(rows, name, level, mode)
    figures = {column: spread([row[column] for row in chosen]) for column in (*FIGURES, "mean_output")}
    return WorkloadFigures(workload=name, level=level, mode=mode, figures=figures)


def _worth(rows: Sequence[Row], name: str, level: int, mode: Mode) -> DraftsWorth:
    drafting = _chosen(rows, name, level, mode)
    without = [row["out_tok_s"] for row in _chosen(rows, name, level, "off")]
    having = [row["out_tok_s"] for row in drafting]
    pairs = list(zip(having, without, strict=True))
    drafted, accepted, steps = (sum(row[column] for row in drafting) for column in ("drafted", "accepted", "rounds"))
    return DraftsWorth(
        workload=name,
        level=level,
        mode=mode,
        without=spread(without),
        having=spread(having),
        ratio=geometric_interval([h / w for h, w in pairs]) if len(pairs) > 1 else None,
        pairs=len(pairs),
        accepted=accepted / drafted if drafted else None,
        per_round=(accepted + steps) / steps if steps else None,
    )


class _Bench:
    """Loads on one model whose prompts and seeds a turn decides, so that all modes say the same word for word."""

    def __init__(self, target: WorkloadTarget, options: SpeculationOptions) -> None:
        self._target = target
        self._options = options
        self._run = LoadRun(target, options.timeout)

    async def switch(self, mode: Mode) -> None:
        knobs: dict[str, KnobValue] = {"speculation": "off"}
        if mode != "off":
            knobs = {"speculation": self._options.way, "draft_control": _CONTROL[mode]}
        await self._target.client.set_knobs(knobs, self._target.model)

    async def restore(self) -> None:
        await self._target.client.set_knobs({"speculation": None, "draft_control": None}, self._target.model)

    async def warm_up(self, asked: Workload) -> None:
        most = min(96, self._options.output_tokens)
        await self._run.warm_up(asked.jobs(self._options.seed - 1, 1, requests=1, most_tokens=most, salt="warm-up")[:1])

    async def measured(self, asked: Workload, level: int, turn: int, mode: Mode) -> dict[str, Any]:
        """A row of `load_row`, with tokens drafted and accepted and the steps with drafts. Raises `CoreError`."""
        jobs = asked.jobs(
            self._options.seed + 1000 * turn,
            level,
            requests=self._options.requests,
            most_tokens=self._options.output_tokens,
            salt=f"round {turn}, {level} in flight, drafts {mode}",
        )
        before = await self._stats()
        row = await load_row(self._run, Load({}, jobs, level), self._target.api)
        if row["ok"] < row["requests"]:
            raise CoreError(f"{asked.name}, {level} in flight: {row['errors']} of {row['requests']} requests failed")
        after = await self._stats()
        return row | {
            "drafted": sum(after.proposed) - sum(before.proposed),
            "accepted": sum(after.accepted) - sum(before.accepted),
            "rounds": after.rounds - before.rounds,
        }

    async def _stats(self) -> SpeculationStats:
        models = {model.name: model for model in (await self._target.client.stats()).models}
        return models[self._target.model].speculation or SpeculationStats()


def workloads_table(results: SpeculationResults) -> str:
    """One row per workload, level and mode of drafting, never pooled."""
    worth = {(each.workload, each.level, each.mode): each for each in results.worth}
    head = ["workload", "in flight", f"{results.way} drafts", "answer tokens", "output tokens/s"]
    head += ["to off [95% interval]", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "E2E p95 ms"]
    head += ["drafts accepted", "tokens a step"]
    rows = []
    for load in results.loads:
        figures, drafts = load.figures, worth.get((load.workload, load.level, load.mode))
        accepted = None if drafts is None else drafts.accepted
        columns = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p95_ms")
        rows.append(
            [
                load.workload,
                str(load.level),
                load.mode,
                middle(figures["mean_output"]),
                ranged(figures["out_tok_s"]),
                "–" if drafts is None else times(drafts.ratio),
                *(middle(figures[name]) for name in columns),
                "–" if accepted is None else f"{accepted:.0%}",
                number(None if drafts is None else drafts.per_round),
            ]
        )
    return markdown(head, rows)


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue.  [its first, or the first with a draft]")
@click.option("--way", type=click.Choice(["prompt_lookup", "draft_model"]), default="prompt_lookup")
@click.option(
    "--workload",
    "workloads",
    type=click.Choice(list(WORKLOADS)),
    multiple=True,
    help="Chat of 50 tokens, code of 1,000, JSON of 300 in a grammar, answers of 4,096, text to be copied, chat that "
    "ends by itself; may be repeated.  [the first four, or none with --prompts]",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False),
    help="Your own prompts as a workload: JSON lines with `prompt`, or `turns` whose first is asked.",
)
@click.option(
    "--mode",
    "modes",
    type=click.Choice(["auto", "on"]),
    multiple=True,
    help="Compared with no drafts: as many as pay, or always the most; may be repeated.  [both]",
)
@click.option("--rounds", default=3, help="Times that every load is measured in every mode.")
@click.option("--levels", callback=by_words(int), metavar="N...", default="1 8", help="In flight.")
@click.option("--requests", type=int, help="Requests of a load at least.  [16 of chat, 8 of JSON, 4 of code, 1 long]")
@click.option("--output-tokens", default=4096, help="Of an answer, at most.")
@click.option("--seed", default=7)
@kept_options
def workloads(**arguments: Any) -> None:
    """Each kind of request on its own: speed, latency, and what drafts are worth for it.

    Example: python -m benchmarks workloads --prompts mine.jsonl --rounds 3 --out workloads.jsonl
    """

    chosen = arguments["workloads"] or (() if arguments["prompts"] else MIXES)
    arguments["prompts"] = arguments["prompts"] or ""
    arguments["workloads"] = (*chosen, *([OWN] if arguments["prompts"] else []))
    arguments["modes"] = ("off", *(arguments["modes"] or ("auto", "on")))
    show_measurement(arguments, SpeculationOptions, _run, workloads_table)


async def _run(
    settings: Any, model: str | None, options: "SpeculationOptions", out: Path | None, keep: bool
) -> "SpeculationResults":
    core = core_spec(load_catalog(settings.catalog))
    drafted = (spec.name for spec in core.models if spec.draft is not None)
    spec = model_of(core, model or (next(drafted, None) if options.way == "draft_model" else None))
    draft = model_of(core, spec.draft) if options.way == "draft_model" and spec.draft is not None else None
    try:
        answers = [workload(name, options.prompts).answer_tokens for name in options.workloads]
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    longest = _PROMPT_TOKENS + min(options.output_tokens, max(answers))
    sequences = max(options.levels) * (1 if draft is None else 2)
    # A draft model has its keys and values in the same arena.
    core, _ = roomy(core, spec, settings.cache_path, sequences=sequences, tokens_each=longest)
    asked = content_digest(options.prompts) if options.prompts else None
    measured = {"model": spec, "draft": draft, "threads": core.threads, "options": options, "prompts_sha256": asked}
    measurement = Measurement.begin("speculation", measured, out, keep=keep)
    async with core_target(core, spec, settings.cache_path, draft=draft) as opened:
        target = WorkloadTarget(opened.client, load_tokenizer(resolve_model_path(spec.path)), spec.name)
        return await speculate(target, options, measurement, lambda line: click.echo(line, err=True))


# More than any prompt of a workload has, but for one's own.
_PROMPT_TOKENS = 800
