"""The report: the sources' tables in their own form with measurements from here, and gaps where there are none."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

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
)  # fmt: skip
from benchmarks.report.measured_tables import measured_tables
from benchmarks.report.measurement import rows_of
from benchmarks.report.rounds import spread
from benchmarks.sources.claims import NOT_MEASURED, Feature, claims, tables
from benchmarks.sources.origins import UNKNOWN, measurements_of, origin_of
from benchmarks.sources.stages import Stage, stage_times, stages
from gateway.operations.cli.options import FOLDER, NEW_FILE
from quality.estimates.served import TOKENS

Sweep = tuple[Head, SweepResults] | None


def report(measurements: Path) -> str:
    """Return the page, from a folder of measurements. Raises `MeasurementError` for a damaged one."""
    parts = measured_tables(measurements)
    sweep = read_results(measurements, "sweep", SweepResults)
    sections = {
        "What the sources claim": _claims(measurements),
        "A 100-token answer, stage by stage": stage_section(stages(measurements), _timed_model(measurements)),
        "Voice bot: 1,900 to 2,000 tokens in, 200 out": _voice(parts, sweep, measurements),
        "Query rewriting: 10 to 20 tokens, not streamed": _rewrite(measurements),
        "One technique at a time": parts.get("ablation", NOT_MEASURED),
        "One request at a time, the same engine": _one_at_a_time(measurements, sweep),
        "Before and after": _before_after(measurements),
        "Feature matrix": f"{_features(tables().engines)}\n\n{_features(tables().servers)}\n\n"
        "The other servers' features are as sources 004 and 003 state, not checked here.",
        "Records": _records(measurements),
    }
    head = (
        f"# Report\n\nMade by `python -m benchmarks sources` from `docs/measurements`: the sources' tables in their "
        f"own form. “{NOT_MEASURED}” means that there is no measurement here; the sources' figures are theirs."
    )
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections.items())]) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _claims(measurements: Path) -> str:
    """The sources' single figures next to ours."""
    head = ("claim", "sources, and their setting", "here", "setting here, and what it is from", "why they differ")
    rows = [[one.name, one.source, *(str(cell) or UNKNOWN for cell in (one.here, one.setting, one.why))]
            for one in claims(measurements)]  # fmt: skip
    return (
        f"{_table(head, rows)}\n\nNumbers in brackets are the sources'. `python -m benchmarks claims` counts the "
        "steps of batches again, `cascade` the savings; quantised and naive are of commit 87ccfa41, prefix-hits, "
        "core-lag and loop-lag of 33132abc, which had their programs; other commands are in "
        "[performance.md](performance.md)."
    )


def stage_section(found: Sequence[Stage], model: str | None = None) -> str:
    """Return budget against measurement, and the resulting tokens per second, per stream and overall. `model`: of the
    measured decoding, with its machine."""
    decode = next(stage for stage in found if stage.name == "decode")
    speed = NOT_MEASURED
    if decode.measured_ms:
        speed = f"{(TOKENS - 1) * 1000 / decode.measured_ms:.0f} tokens a second on one stream"
    if model is not None:
        speed += f", with {model}, which does not compare engines"
    rows = [[one.name, f"{one.budget_ms:g}", _ms(one.measured_ms), one.source] for one in found]
    known = [one.measured_ms for one in found if one.measured_ms is not None]
    rows.append(["all", f"{sum(one.budget_ms for one in found):g}", _ms(sum(known) if known else None), ""])
    return (
        _table(["stage", "source 000, ms", "here, ms", "from"], rows)
        + f"\n\nThe source's 65 ms for 99 tokens are 1,523 tokens a second on one stream; its 1,200 are in all. "
        f"Here: {speed}. {_budget_kept(found)}"
    )


def _ms(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}"


def _budget_kept(found: Sequence[Stage]) -> str:
    """Whether the sum of the stages is within the source's."""
    known = [(stage, stage.measured_ms) for stage in found if stage.measured_ms is not None]
    if len(known) < len(found):
        return "`python -m benchmarks stages --out docs/measurements/stages.json` times all five in one run."
    budget = sum(stage.budget_ms for stage in found)
    kept = "within" if sum(ms for _, ms in known) <= budget else "above"
    late = " and ".join(stage.name for stage, ms in known if ms > stage.budget_ms)
    longer = f": {late} take longer than it says" if late else ""
    return f"All stages are of one run on one machine; the sum is {kept} the source's {budget:g} ms{longer}."


def _timed_model(measurements: Path) -> str | None:
    """Model and machine of the stages."""
    timed = stage_times(measurements)
    if timed is None:
        return None
    known = {"cpus", "processor"} <= timed.machine.keys()
    return timed.model + (f" on {timed.machine['cpus']} CPUs of {timed.machine['processor']}" if known else "")


def _model(head: Head) -> str:
    """The measured model and its machine."""
    model = head.settings["model"]
    return f"{model['name']} ({model['compute']}) on {head.machine['cpus']} CPUs"


def _voice(parts: dict[str, str], sweep: Sweep, measurements: Path) -> str:
    own = f"The ladder here: {NOT_MEASURED}."
    if sweep is not None:
        options = sweep[0].settings["options"]
        own = (
            f"The ladder in the source's form, of {options['prompt_tokens']} tokens in and {options['output_tokens']} "
            f"out with {_model(sweep[0])}:\n\n{parts['sweep']}"
        )
    return (
        f"Llama 3.1 8B on an L4 or an A100: {NOT_MEASURED}; `python -m benchmarks source-loads` compares the source's "
        "table with the planner's formulas ([planning.md](../reference/planning.md)).\n\n"
        f"{_search(read_results(measurements, 'voice', LimitResults))}\n\n{own}"
    )


def _search(found: tuple[Head, LimitResults] | None) -> str:
    """The loads that a search for the highest one tried, with model and machine."""
    if found is None:
        return f"The profile here: {NOT_MEASURED}."
    return f"The profile here with {_model(found[0])}:\n\n{limit_table(found[1])}\n\n{machine_line(found[0])}"


def _rewrite(measurements: Path) -> str:
    found = read_results(measurements, "rewrite", LimitResults)
    rows = [*tables().rewrite, ("AIO, a model of 1B", "–", NOT_MEASURED, NOT_MEASURED)]
    if found is not None:
        head, results = found
        rate = f"{results.highest.median:g}" if results.highest else "–"
        p99 = f"{head.settings['options']['p99_ms']:g} ms"
        rows.append((f"AIO, {_model(head)}", head.machine["processor"], rate, p99))
    table = _table(["runtime (first rows: source 001)", "hardware", "max requests/s", "max p99 latency"], rows)
    return f"{table}\n\n{_search(found)}"


def _one_at_a_time(measurements: Path, sweep: Sweep) -> str:
    """Return the one-request loop and the knee of the sweep: the same engine, machine and prompts (SPEC TB-07); and a
    naive server's loop."""
    points = {} if sweep is None else {point.concurrency: point for point in sweep[1].points}
    if sweep is None or 1 not in points:
        return f"{NOT_MEASURED}\n\n{_naive(measurements)}"
    knee = points[sweep[1].knee]
    rows = [
        ["a loop that sends a request when the one before is answered", ranged(points[1].figures["out_tok_s"]), "–"],
        [f"{knee.concurrency} in flight, the knee of the sweep", ranged(knee.figures["out_tok_s"]),
         times(knee.gain or _gain(points[1], knee))],
    ]  # fmt: skip
    return (
        f"{_table(['load', 'output tokens/s', 'to one request at a time'], rows)}\n\n"
        "Source 004 says 10 to 50 times over a naive server. This loop has the engine's kernels, cache and quantised "
        f"weights, so the gain is that of batching alone; with {_model(sweep[0])}.\n\n{_naive(measurements)}"
    )


def _gain(alone: SweepPoint, together: SweepPoint) -> Spread | None:
    """The ratio of the medians, and the least and the most that the rounds allow."""
    one, many = alone.figures["out_tok_s"], together.figures["out_tok_s"]
    if one is None or many is None:
        return None
    return Spread(many.median / one.median, many.low / one.high, many.high / one.low)


def _naive(measurements: Path) -> str:
    """Return the cost of the loop that is naive, in CPU time."""
    found = read_results(measurements, "naive", dict[str, list[dict[str, Any]]])
    if found is None:
        return f"`transformers.generate` in a loop: {NOT_MEASURED}."
    head, results = found
    options, rows = head.settings["options"], []
    for each in results["ways"]:
        cost, gain = (Spread(**each[name]) for name in ("ms_per_token", "gain"))
        rows.append([each["way"], ranged(cost), "–" if gain.low == gain.high else times(gain)])
    table = _table(["BF16 weights, one thread", "CPU ms per output token", "to the naive loop"], rows)
    return (
        f"{table}\n\nCPU time, prompts included: {options['prompt_tokens']} tokens in and "
        f"{options['output_tokens']} out, {options['rounds']} rounds, {head.settings['model']}; "
        "`claims naive` of commit 87ccfa41."
    )


def _before_after(measurements: Path) -> str:
    """Source 003's table; here the first and the last step of an ablation on the same load (SPEC TB-09)."""
    ablation = read_results(measurements, "ablation", AblationResults)
    here = {} if ablation is None else _first_and_last(*ablation, rows_of(measurements / "ablation.jsonl"))
    rows = [[name, before, after, here.get(name, NOT_MEASURED)] for name, before, after in tables().before_after]
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
    ends = (rungs[0], rungs[-1]) if len(rungs) > 1 else ()
    speeds, running = ([one for rung in ends if (one := rung.figures[name])] for name in ("out_tok_s", "running_mean"))
    if len(speeds) < 2 or len(running) < 2:
        return {}
    first, last = (speed.median for speed in speeds)
    in_flight = head.settings["options"]["concurrency"]
    used = [f"{one.median / in_flight:.0%}" for one in running]
    found = {
        "throughput (QPS)": f"{number(first)} before, {number(last)} after (output tokens/s)",
        "cost per 1k tokens": f"{number(first / last)} times the cost before (per output token)",
        "GPU utilisation (avg)": f"{used[0]} before, {used[1]} after (of the {in_flight} requests in flight)",
    }
    late = [spread([row["e2e_p90_ms"] for row in rows if row.get("arm") == rung.configuration]) for rung in ends]
    if late[0] is not None and late[1] is not None:
        shown = f"{number(late[0].median)} before, {number(late[1].median)} after (P90 of whole answers)"
        found["P95 latency (ms)"] = shown
    return found


def _features(features: Sequence[Feature]) -> str:
    """A matrix, with the tests of each feature of ours."""
    rows = [
        [each.name, f"{each.ours}: {', '.join(map(_link, each.tests))}", *each.others.values()] for each in features
    ]
    return _table(["feature", "AIO", *features[0].others], rows)


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name}](../../tests/{file})"


def _records(measurements: Path) -> str:
    """Return what is recorded of each measurement: machine, versions, commit, day, seed and raw rows (SPEC TB-10)."""
    rows = [_record(path) for path in measurements_of(measurements)]
    text = _table(["file", "machine", "versions", "commit", "when", "seed", "raw rows"], rows)
    return (
        f"{text}\n\n“–” is not on record. “stored by”: the commit that added the file, which is later than the code "
        "that measured it. `python -m benchmarks origins` has their ages."
    )


def _record(path: Path) -> list[str]:
    text, is_list = path.read_text(encoding="utf-8"), path.suffix == ".jsonl"
    lines = [line for line in text.splitlines() if line.strip()]
    head = json.loads(lines[0] if is_list else text)
    raw = str(len(lines) - ("settings" in head)) if is_list else UNKNOWN
    found, name = origin_of(path), f"[{path.name}](../measurements/{path.name})"
    return [name, found.processor, found.versions, found.at, found.day or UNKNOWN, _seed(head), raw]


def _seed(value: object) -> str:
    if isinstance(value, dict):
        if "seed" in value:
            return str(value["seed"])
        return next((found for each in value.values() if (found := _seed(each)) != "–"), "–")
    return "–"


@click.command()
@click.option("--measurements", type=FOLDER, default=Path("docs/measurements"), help="Folder of measurements.")
@click.option("--page", type=NEW_FILE, help="Page to write.  [print it]")
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
