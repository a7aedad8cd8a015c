"""Measures a core in process: the loads and columns of an OpenAI load generator, without HTTP in the times."""

from gateway.bench.options import BenchOptions
from gateway.bench.report import row_text
from gateway.bench.run import Progress, run_bench
from gateway.bench.target import CoreTarget
from gateway.fleet.trace_file import TraceError

__all__ = ["BenchOptions", "CoreTarget", "Progress", "TraceError", "row_text", "run_bench"]
