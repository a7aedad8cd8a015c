"""Measure a core in this process or a server over HTTP under the loads of an OpenAI load generator."""

from gateway.planning.load_test.options import BenchOptions
from gateway.planning.load_test.report import row_text
from gateway.planning.load_test.run import Progress, run_bench
from gateway.planning.load_test.target import CoreTarget

__all__ = ["BenchOptions", "CoreTarget", "Progress", "row_text", "run_bench"]
