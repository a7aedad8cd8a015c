"""The tables of a folder's measurements: the load sweep and the ablation, each with its plot and its machine."""

from pathlib import Path

from benchmarks.report.ablation_tables import ablation_tables
from benchmarks.report.markdown import sweep_table
from benchmarks.report.measured import AblationResults, Head, SweepResults, machine_line
from benchmarks.report.measurement import read_results

_SWEEP = "![Throughput over latency, and latencies over concurrency](../img/sweep.png)"
_ABLATION = (
    "![Effect of each technique alone and in the full system, and throughput as one is added to the other]"
    "(../img/ablation.png)"
)


def measured_tables(folder: Path) -> dict[str, str]:
    """`sweep` and `ablation` in Markdown, as far as `folder` has them finished. Raises `MeasurementError`."""
    tables = {}
    if sweep := read_results(folder, "sweep", SweepResults):
        tables["sweep"] = f"{sweep_table(sweep[1])}\n\n{_SWEEP}\n\n{machine_line(sweep[0])}"
    if ablation := read_results(folder, "ablation", AblationResults):
        head, results = ablation
        parts = [ablation_tables(results), *_small_load(head, results), _ABLATION, machine_line(head)]
        tables["ablation"] = "\n\n".join(parts)
    return tables


def _small_load(head: Head, results: AblationResults) -> list[str]:
    """What the mark of some rows means, if any has it."""
    if not any(rung.small for rung in results.ladder) and not any(effect.small for effect in results.effects):
        return []
    options = head.settings["options"]
    load = f"{options['small_requests']} requests, {options['small_concurrency']} in flight"
    return [f"Rows with ¹ are on a small load ({load})."]
