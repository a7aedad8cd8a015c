"""The report: the sources' tables in their own form with measurements from here, and gaps where there are none."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.claims.naive import NAIVE, NaiveResults
from benchmarks.report.markdown import limit_table, number, ranged, times
from benchmarks.report.measured import (
    AblationResults,
    Head,
    LimitResults,
    MeasurementError,
    Spread,
    SweepPoint,
    SweepResults,
    machine_line,
    read_results,
)
from benchmarks.report.measured_tables import measured_tables
from benchmarks.report.rounds import spread
from benchmarks.sources.claim import HEAD, NOT_MEASURED
from benchmarks.sources.claims import claims
from benchmarks.sources.features import ENGINE_FEATURES, ENGINES, SERVER_FEATURES, SERVERS, Feature
from benchmarks.sources.origins import UNKNOWN, measurements_of, origin_of
from benchmarks.sources.rows import rows_of
from benchmarks.sources.stages import Stage, stage_times, stages
from quality.estimates.served import TOKENS

# Source 001, as stated.
_REWRITE = (("TensorRT-LLM", "4 × L4", "1000", "95 ms"), ("TensorRT-LLM", "1 × A100 40 GB", "1000", "69 ms"))
# Source 003, as stated: before and after.
_BEFORE_AFTER = (
    ("P95 latency (ms)", "210", "68"),
    ("throughput (QPS)", "12 k", "45 k"),
    ("cost per 1k tokens", "$0.12", "$0.03"),
    ("GPU utilisation (avg)", "45 %", "78 %"),
)


def report(measurements: Path) -> str:
    """Return the page, from a folder of measurements. Raises `MeasurementError` for a damaged one."""
    parts = measured_tables(measurements)
    sweep = read_results(measurements, "sweep", SweepResults)
    sections = [
        ("What the sources claim", claim_section(measurements)),
        ("A 100-token answer, stage by stage", stage_section(stages(measurements), _timed_model(measurements, sweep))),
        ("Voice bot: 1,900 to 2,000 tokens in, 200 out", _voice(parts, sweep and sweep[0], measurements)),
        ("Query rewriting: 10 to 20 tokens, not streamed", _rewrite(measurements)),
        ("One technique at a time", parts.get("ablation", NOT_MEASURED)),
        ("One request at a time, the same engine", _one_at_a_time(measurements, sweep)),
        ("Before and after", _before_after(measurements)),
        ("Feature matrix", feature_section()),
        ("Records", record_section(measurements)),
    ]
    head = (
        f"# Report\n\nMade by `python -m benchmarks sources` from `docs/measurements`: the sources' tables in their "
        f"own form. “{NOT_MEASURED}” means that there is no measurement here; the sources' figures are theirs."
    )
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections)]) + "\n"


def claim_section(measurements: Path) -> str:
    """Return the table of the sources' single figures next to ours."""
    rows = [
        [one.name, one.source, one.here, one.setting or UNKNOWN, one.why or UNKNOWN] for one in claims(measurements)
    ]
    return (
        _table(HEAD, rows) + "\n\nNumbers in brackets are the sources'. `python -m benchmarks claims PART` measures "
        "batching-steps, quantised and naive again, `cascade` the savings; prefix-hits, core-lag and loop-lag are of "
        "commit 33132abc, which had their programs; other commands are in [performance.md](performance.md)."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def stage_section(found: Sequence[Stage], model: str | None = None) -> str:
    """Return budget against measurement, and the resulting tokens per second, per stream and overall. `model`: of the
    measured decoding, with its machine."""
    decode = next(stage for stage in found if stage.name == "decode")
    speed = NOT_MEASURED
    if decode.measured_ms:
        speed = f"{(TOKENS - 1) * 1000 / decode.measured_ms:.0f} tokens a second on one stream"
    if model is not None:
        speed += f", with {model}, which does not compare engines"
    return (
        _stage_table(found)
        + f"\n\nThe source's 65 ms for 99 tokens are 1,523 tokens a second on one stream; its 1,200 are in all. "
        f"Here: {speed}. {_budget_kept(found)}"
    )


def _budget_kept(found: Sequence[Stage]) -> str:
    """Whether the stages are of one run, and their sum within the source's."""
    known = [stage for stage in found if stage.measured_ms is not None]
    if len(known) < len(found) or {stage.source.split(",")[0] for stage in known} != {"stages.json"}:
        return (
            "The stages are not all of one run, so their sum is not held against the source's 100 ms; `python -m "
            "benchmarks stages --out docs/measurements/stages.json` times all five in one."
        )
    total, budget = sum(stage.measured_ms or 0.0 for stage in known), sum(stage.budget_ms for stage in known)
    kept = "within" if total <= budget else "above"
    late = [stage.name for stage in known if (stage.measured_ms or 0.0) > stage.budget_ms]
    return (
        f"All stages are of one run on one machine; the sum is {kept} the source's {budget:g} ms"
        f"{': ' + ' and '.join(late) + ' take longer than it says' if late else ''}."
    )


def _timed_model(measurements: Path, sweep: tuple[Head, SweepResults] | None) -> str | None:
    """Model and machine of the file that the decoding is from, as `stages` chooses it."""
    timed = stage_times(measurements)
    if timed is None:
        return sweep and _model(sweep[0])
    known = {"cpus", "processor"} <= timed.machine.keys()
    machine = f" on {timed.machine['cpus']} CPUs of {timed.machine['processor']}" if known else ""
    return f"{timed.model}{machine}"


def _model(head: Head) -> str:
    """The measured model and its machine."""
    model = head.settings["model"]
    return f"{model['name']} ({model['compute']}) on {head.machine['cpus']} CPUs"


def _stage_table(found: Sequence[Stage]) -> str:
    rows = [
        [
            stage.name,
            f"{stage.budget_ms:g}",
            NOT_MEASURED if stage.measured_ms is None else f"{stage.measured_ms:.2f}",
            stage.source,
        ]
        for stage in found
    ]
    known = [stage.measured_ms for stage in found if stage.measured_ms is not None]
    rows.append(["all", f"{sum(s.budget_ms for s in found):g}", f"{sum(known):.2f}" if known else NOT_MEASURED, ""])
    return _table(["stage", "source 000, ms", "here, ms", "from"], rows)


def _voice(parts: dict[str, str], sweep: Head | None, measurements: Path) -> str:
    found = _search(read_results(measurements, "voice", LimitResults))
    own = f"The ladder here: {NOT_MEASURED}."
    if sweep is not None:
        options = sweep.settings["options"]
        own = (
            f"The ladder in the source's form, of {options['prompt_tokens']} tokens in and {options['output_tokens']} "
            f"out with {_model(sweep)}:\n\n{parts['sweep']}"
        )
    return (
        f"Llama 3.1 8B on an L4 or an A100: {NOT_MEASURED}; `python -m benchmarks source-loads` compares the source's "
        f"table with the planner's formulas ([planning.md](../reference/planning.md)).\n\n{found}\n\n{own}"
    )


def _search(found: tuple[Head, LimitResults] | None) -> str:
    """The loads that a search for the highest one tried, with model and machine."""
    if found is None:
        return f"The profile here: {NOT_MEASURED}."
    head, results = found
    return f"The profile here with {_model(head)}:\n\n{limit_table(results)}\n\n{machine_line(head)}"


def _rewrite(measurements: Path) -> str:
    found = read_results(measurements, "rewrite", LimitResults)
    rows = [*_REWRITE, ("AIO, a model of 1B", "–", NOT_MEASURED, NOT_MEASURED)]
    if found is not None:
        head, results = found
        rate = f"{results.highest.median:g}" if results.highest else "–"
        p99_ms = head.settings["options"]["p99_ms"]
        rows.append((f"AIO, {_model(head)}", head.machine["processor"], rate, f"{p99_ms:g} ms"))
    table = _table(["runtime (first rows: source 001)", "hardware", "max requests/s", "max p99 latency"], rows)
    return f"{table}\n\n{_search(found)}"


def _one_at_a_time(measurements: Path, sweep: tuple[Head, SweepResults] | None) -> str:
    """Return the one-request loop and the knee of the sweep: the same engine, machine and prompts (SPEC TB-07); and a
    naive server's loop."""
    points = {} if sweep is None else {point.concurrency: point for point in sweep[1].points}
    if sweep is None or 1 not in points:
        return f"{NOT_MEASURED}\n\n{_naive(measurements)}"
    knee = points[sweep[1].knee]
    rows = [
        ["a loop that sends a request when the one before is answered", _tokens(points[1]), "–"],
        [
            f"{knee.concurrency} in flight, the knee of the sweep",
            _tokens(knee),
            times(knee.gain or _gain(points[1], knee)),
        ],
    ]
    table = _table(["load", "output tokens/s", "to one request at a time"], rows)
    return (
        f"{table}\n\nSource 004 says 10 to 50 times over a naive server. This loop has the engine's "
        f"kernels, cache and quantised weights, so the gain is that of batching alone; with {_model(sweep[0])}."
        f"\n\n{_naive(measurements)}"
    )


def _naive(measurements: Path) -> str:
    """Return the cost of the loop that is naive, in CPU time."""
    found = read_results(measurements, "naive", NaiveResults)
    if found is None:
        return f"`{NAIVE}`: {NOT_MEASURED}."
    head, results = found
    options = head.settings["options"]
    rows = [[one.way, ranged(one.ms_per_token), "–" if one.way == NAIVE else times(one.gain)] for one in results.ways]
    table = _table(["BF16 weights, one thread", "CPU ms per output token", "to the naive loop"], rows)
    return (
        f"{table}\n\nCPU time, prompts included: {options['prompt_tokens']} tokens in and "
        f"{options['output_tokens']} out, {options['rounds']} rounds, {head.settings['model']}; "
        "`python -m benchmarks claims naive`."
    )


def _tokens(point: SweepPoint) -> str:
    return ranged(point.figures["out_tok_s"])


def _gain(alone: SweepPoint, together: SweepPoint) -> Spread | None:
    """The ratio of the medians, and the least and the most that the rounds allow."""
    one, many = alone.figures["out_tok_s"], together.figures["out_tok_s"]
    if one is None or many is None:
        return None
    return Spread(many.median / one.median, many.low / one.high, many.high / one.low)


def _before_after(measurements: Path) -> str:
    """Source 003's table; here the first and the last step of an ablation on the same load (SPEC TB-09)."""
    ablation = read_results(measurements, "ablation", AblationResults)
    here = {} if ablation is None else _first_and_last(*ablation, rows_of(measurements / "ablation.jsonl"))
    rows = [[name, before, after, here.get(name, NOT_MEASURED)] for name, before, after in _BEFORE_AFTER]
    text = _table(["source 003", "before", "after", "here"], rows) + "\n\nNo fleet was run before and after"
    if ablation is None:
        return f"{text}; nothing stands in."
    return (
        f"{text}. In its place: static batches, and all techniques, on the mixed load of the ladder above, with "
        f"{_model(ablation[0])}; the cost is at the same price of the machine, and requests that a step computes stand "
        "for the use of GPUs."
    )


def _first_and_last(head: Head, results: AblationResults, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Throughput with the cost that follows from it, latency and use of the first and last rung on the same load."""
    rungs = [rung for rung in results.ladder if not rung.small]
    if len(rungs) < 2:
        return {}
    speeds, running = ([rung.figures[name] for rung in (rungs[0], rungs[-1])] for name in ("out_tok_s", "running_mean"))
    if None in speeds or None in running:
        return {}
    first, last = (speed.median for speed in speeds if speed is not None)
    in_flight = head.settings["options"]["concurrency"]
    used = [f"{one.median / in_flight:.0%}" for one in running if one is not None]
    found = {
        "throughput (QPS)": f"{number(first)} before, {number(last)} after (output tokens/s)",
        "cost per 1k tokens": f"{number(first / last)} times the cost before (per output token)",
        "GPU utilisation (avg)": f"{used[0]} before, {used[1]} after (of the {in_flight} requests in flight)",
    }
    late = [_p90(rows, rung.configuration) for rung in (rungs[0], rungs[-1])]
    if late[0] is not None and late[1] is not None:
        found["P95 latency (ms)"] = f"{number(late[0])} before, {number(late[1])} after (P90 of whole answers)"
    return found


def _p90(rows: Sequence[dict[str, Any]], arm: str) -> float | None:
    """Of whole answers of a configuration in milliseconds, the median over its rounds; None without rows."""
    found = spread([row["e2e_p90_ms"] for row in rows if row.get("arm") == arm])
    return None if found is None else found.median


def feature_section() -> str:
    """Return both matrices, with the tests of each feature of ours."""
    return "\n\n".join(
        [
            _features(ENGINE_FEATURES, ENGINES),
            _features(SERVER_FEATURES, SERVERS),
            "The other servers' features are as sources 004 and 003 state, not checked here.",
        ]
    )


def _features(features: Sequence[Feature], names: Sequence[str]) -> str:
    rows = [
        [
            each.name,
            f"{each.ours}: " + ", ".join(map(_link, each.tests)),
            *(each.others[name] for name in names),
        ]
        for each in features
    ]
    return _table(["feature", "AIO", *names], rows)


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name}](../../tests/{file})"


def record_section(measurements: Path) -> str:
    """Return what is recorded of each measurement: machine, versions, commit, day, seed and raw rows (SPEC TB-10)."""
    rows = [_record(path) for path in measurements_of(measurements)]
    text = _table(["file", "machine", "versions", "commit", "when", "seed", "raw rows"], rows)
    return (
        f"{text}\n\n“–” is not on record. “stored by”: the commit that added the file, which is later than the code "
        "that measured it. `python -m benchmarks origins` has their ages."
    )


def _record(path: Path) -> list[str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    head = json.loads(lines[0]) if path.suffix == ".jsonl" else json.loads(path.read_text(encoding="utf-8"))
    head = head if isinstance(head, dict) else {}
    found = origin_of(path)
    raw = str(len(lines) - ("settings" in head)) if path.suffix == ".jsonl" else UNKNOWN
    name = f"[{path.name}](../measurements/{path.name})"
    return [name, found.processor, found.versions, found.at, found.day or UNKNOWN, _seed(head), raw]


def _seed(value: object) -> str:
    if isinstance(value, dict):
        if "seed" in value:
            return str(value["seed"])
        return next((found for each in value.values() if (found := _seed(each)) != "–"), "–")
    return "–"


@click.command()
@click.option(
    "--measurements",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("docs/measurements"),
    show_default=True,
    help="Folder of measurements.",
)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Page to write.  [print it]")
def sources(measurements: Path, page: Path | None) -> None:
    """Make the page from measurements.

    Example: python -m benchmarks sources --page docs/results/report.md
    """

    try:
        text = report(measurements)
    except MeasurementError as error:
        raise click.ClickException(str(error)) from error
    if page is None:
        click.echo(text, nl=False)
    else:
        page.write_text(text, encoding="utf-8")
