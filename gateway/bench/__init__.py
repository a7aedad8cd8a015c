"""Measure a core in this process or a server over HTTP under the loads of an OpenAI load generator."""

from gateway.bench.options import BenchOptions
from gateway.bench.report import row_text
from gateway.bench.run import Progress, run_bench
from gateway.bench.target import CoreTarget

__all__ = ["BenchOptions", "CoreTarget", "Progress", "row_text", "run_bench"]
