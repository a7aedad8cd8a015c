"""The report: the sources' tables in their own form with measurements from here, and gaps where there are none."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.report.measured import MeasurementError
from benchmarks.sources.ages import read_marks
from benchmarks.sources.claims import NOT_MEASURED, Feature, claims, tables
from benchmarks.sources.origins import UNKNOWN, measurements_of, origin_of
from gateway.cli.options import FOLDER, NEW_FILE
from quality.estimates.served import BUDGET_MS, TOKENS


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, in milliseconds; `measured_ms` is None without a measurement. `source`: file and figure."""

    name: str
    budget_ms: float
    measured_ms: float | None
    source: str


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in milliseconds over so many answers, one at a time, by a tier that runs here.

    `queue_ms` of waiting for the first step, `planning_ms` for the steps of the prompt, then `prefill_ms`, of which
    `kv_ms` went to the prompt's KV blocks, then `token_ms` for each further token. `route_ms` of a decision and
    `stream_ms` of the rest of an answer over HTTP, of the same run. `machine`: as of a measurement.
    """

    model: str
    requests: int
    prompt_tokens: int
    queue_ms: float
    planning_ms: float
    kv_ms: float
    prefill_ms: float
    token_ms: float
    route_ms: float | None = None
    stream_ms: float | None = None
    started: str = ""
    machine: dict[str, Any] = {}


def stages(measurements: Path) -> list[Stage]:
    """Return all five stages, as stages.json timed them in one run; without it none is measured."""
    times = stage_times(measurements)
    timed = {} if times is None else _timed_stages(times)
    return [
        Stage(name=name, budget_ms=budget, measured_ms=measured, source=source if measured is not None else "")
        for name, budget in BUDGET_MS.items()
        for measured, source in [timed.get(name, (None, ""))]
    ]


def stage_times(measurements: Path) -> StageTimes | None:
    """What stages.json says, if it is there."""
    path = measurements / "stages.json"
    return msgspec.json.decode(path.read_bytes(), type=StageTimes) if path.is_file() else None


def _timed_stages(times: StageTimes) -> dict[str, tuple[float | None, str]]:
    of = f"stages.json, p50 of {times.requests}"
    kv = f"of {times.prompt_tokens} tokens, of which {times.kv_ms:.2f} ms are for KV blocks"
    return {
        "route": (times.route_ms, f"{of} decisions of a server"),
        "schedule": (
            times.queue_ms + times.planning_ms,
            f"{of} answers one at a time: waiting, and planning the prompt's steps",
        ),
        "prefill": (times.prefill_ms, f"stages.json, prompts {kv}"),
        "decode": ((TOKENS - 1) * times.token_ms, f"stages.json, {TOKENS - 1} times {times.token_ms:.2f} ms a token"),
        "stream": (times.stream_ms, "stages.json, a streamed answer at its client minus the other stages, p50"),
    }


def report(measurements: Path) -> str:
    """Return the page, from a folder of measurements. Raises `MeasurementError` for a damaged one."""
    sections = {
        "What the sources claim": _claims(measurements),
        "A 100-token answer, stage by stage": stage_section(stages(measurements), _timed_model(measurements))
        + (f"\n\n**{mark}**" if (mark := read_marks(measurements).get("stages.json")) else ""),
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
    rows = [[claim.name, claim.source, *(str(cell) or UNKNOWN for cell in (claim.here, claim.setting, claim.why))]
            for claim in claims(measurements)]  # fmt: skip
    return (
        f"{_table(head, rows)}\n\nNumbers in brackets are the sources'. “old”: its code has changed much since, or its "
        "program is gone (column “age” of the [records](#records)). `python -m benchmarks claims` counts the "
        "steps of batches again, `savings` the savings; quantised and naive are of commit 87ccfa41, prefix-hits, "
        "core-lag and loop-lag of 33132abc, which had their programs; other commands and all figures of the loads are "
        "in [performance.md](performance.md) and [history.md](history.md)."
    )


def stage_section(timed_stages: Sequence[Stage], model: str | None = None) -> str:
    """Return budget against measurement, and the resulting tokens per second, per stream and overall. `model`: of the
    measured decoding, with its machine."""
    decode = next(stage for stage in timed_stages if stage.name == "decode")
    speed = NOT_MEASURED
    if decode.measured_ms:
        speed = f"{(TOKENS - 1) * 1000 / decode.measured_ms:.0f} tokens a second on one stream"
    if model is not None:
        speed += f", with {model}, which does not compare engines"
    rows = [[stage.name, f"{stage.budget_ms:g}", _ms(stage.measured_ms), stage.source] for stage in timed_stages]
    measured_ms = [stage.measured_ms for stage in timed_stages if stage.measured_ms is not None]
    budget_ms = sum(stage.budget_ms for stage in timed_stages)
    rows.append(["all", f"{budget_ms:g}", _ms(sum(measured_ms) if measured_ms else None), ""])
    return (
        _table(["stage", "source 000, ms", "here, ms", "from"], rows)
        + f"\n\nThe source's 65 ms for 99 tokens are 1,523 tokens a second on one stream; its 1,200 are in all. "
        f"Here: {speed}. {_budget_kept(timed_stages)}"
    )


def _ms(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}"


def _budget_kept(timed_stages: Sequence[Stage]) -> str:
    """Whether the sum of the stages is within the source's."""
    measured = [(stage, stage.measured_ms) for stage in timed_stages if stage.measured_ms is not None]
    if len(measured) < len(timed_stages):
        return "`python -m benchmarks stages --out docs/measurements/stages.json` times all five in one run."
    budget = sum(stage.budget_ms for stage in timed_stages)
    kept = "within" if sum(ms for _, ms in measured) <= budget else "above"
    late = " and ".join(stage.name for stage, ms in measured if ms > stage.budget_ms)
    longer = f": {late} take longer than it says" if late else ""
    return f"All stages are of one run on one machine; the sum is {kept} the source's {budget:g} ms{longer}."


def _timed_model(measurements: Path) -> str | None:
    """Model and machine of the stages."""
    timed = stage_times(measurements)
    if timed is None:
        return None
    has_machine = {"cpus", "processor"} <= timed.machine.keys()
    return timed.model + (f" on {timed.machine['cpus']} CPUs of {timed.machine['processor']}" if has_machine else "")


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
    text = _table(["file", "machine", "versions", "commit", "when", "seed", "raw rows", "age"], rows)
    return (
        f"{text}\n\n“–” is not on record. “stored by”: the commit that added the file, which is later than the code "
        "that measured it. `python -m benchmarks origins` has their ages."
    )


def _record(path: Path) -> list[str]:
    text, is_list = path.read_text(encoding="utf-8"), path.suffix == ".jsonl"
    lines = [line for line in text.splitlines() if line.strip()]
    head = json.loads(lines[0] if is_list else text)
    raw = str(len(lines) - ("settings" in head)) if is_list else UNKNOWN
    origin, name = origin_of(path), f"[{path.name}](../measurements/{path.name})"
    mark = read_marks(path.parent).get(path.name, "")
    return [name, origin.processor, origin.versions, origin.at, origin.day or UNKNOWN, _seed(head), raw, mark]


def _seed(value: object) -> str:
    if isinstance(value, dict):
        if "seed" in value:
            return str(value["seed"])
        return next((seed for each in value.values() if (seed := _seed(each)) != "–"), "–")
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
