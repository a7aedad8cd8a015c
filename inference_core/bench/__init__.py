"""Measures a core in process: the loads and columns of an OpenAI load generator, without HTTP in the times."""

from inference_core.bench.options import BenchOptions
from inference_core.bench.report import row_text
from inference_core.bench.run import Progress, run_bench
from inference_core.bench.target import CoreTarget
from inference_core.bench.trace_file import TraceError

__all__ = ["BenchOptions", "CoreTarget", "Progress", "TraceError", "row_text", "run_bench"]
