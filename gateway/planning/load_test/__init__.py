"""Measure a core in this process or a server over HTTP under the loads of an OpenAI load generator."""

from gateway.planning.load_test.run import CoreTarget, Progress, row_text, run_bench
from gateway.planning.load_test.workload import BenchOptions

__all__ = ["BenchOptions", "CoreTarget", "Progress", "row_text", "run_bench"]
