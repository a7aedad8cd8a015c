"""The tables of a folder's measurements: the load sweep and the ablation, each with its plot and its machine."""

from pathlib import Path

from gateway.reporting.ablation_tables import ablation_tables
from gateway.reporting.measured import AblationResults, SweepResults, machine_line, read_results
from gateway.reporting.tables import sweep_table

_SWEEP = "![Throughput over latency, and latencies over concurrency](img/sweep.png)"
_ABLATION = (
    "![Effect of each technique alone and in the full system, and throughput as one is added to the other]"
    "(img/ablation.png)"
)


def measured_tables(folder: Path) -> dict[str, str]:
    """`sweep` and `ablation` in Markdown, as far as `folder` has them finished. Raises `MeasurementError`."""
    tables = {}
    if sweep := read_results(folder, "sweep", SweepResults):
        tables["sweep"] = f"{sweep_table(sweep[1])}\n\n{_SWEEP}\n\n{machine_line(sweep[0])}"
    if ablation := read_results(folder, "ablation", AblationResults):
        tables["ablation"] = f"{ablation_tables(ablation[1])}\n\n{_ABLATION}\n\n{machine_line(ablation[0])}"
    return tables
