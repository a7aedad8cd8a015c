"""What drafts are worth by workload: the same requests without, with automatic and with constant drafts, in turn
(SPEC SD-06, SD-11, TB-06)."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from benchmarks.core.load_rows import load_row
from benchmarks.core.workloads import OWN, WORKLOADS, Workload, WorkloadTarget, workload
from benchmarks.report.measured import Spread
from benchmarks.report.measurement import Measurement, Row
from benchmarks.report.rounds import geometric_interval, spread
from gateway.planning.load_test.run import LoadRun
from gateway.planning.load_test.workload import Load
from inference_core.errors import CoreError
from inference_core.protocol import KnobValue, SpeculationStats

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
        for name in ("rounds", "requests", "output_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if min(self.levels, default=0) < 1:
            raise ValueError(f"levels are {self.levels}; give some of 1 and more")
        known = [*WORKLOADS, *([OWN] if self.prompts else [])]
        if not self.workloads or set(self.workloads) - set(known):
            raise ValueError(f"workloads are {', '.join(self.workloads) or 'none'}; give some of {', '.join(known)}")
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
