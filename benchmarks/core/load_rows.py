"""One load measured as one row of a benchmark in rounds."""

import time
from typing import Any

from gateway.planning.load_test.run import LoadRun, ProgressHook, busy_share, percentile, summary
from gateway.planning.load_test.workload import BenchOptions, Load


async def load_row(run: LoadRun, load: Load, api: str, progress: ProgressHook = lambda _: None) -> dict[str, Any]:
    """The columns of `aio bench core`, and two more: `e2e_p95_ms`, and `slowest_stream_tok_s`, the fewest tokens per
    second that any answer came with after its first token (None without such answers)."""
    notes = {"api": api, "busy_before": await busy_share()}
    began = time.perf_counter()
    timings = await run.measured(load, progress)
    row = summary(load.columns, timings, time.perf_counter() - began, BenchOptions(), notes)
    done = [timing for timing in timings if timing.error is None]
    p95 = percentile((timing.e2e for timing in done), 0.95)
    slowest = max((later for timing in done if (later := timing.seconds_per_later_token)), default=None)
    return row | {
        "e2e_p95_ms": None if p95 is None else round(p95 * 1e3, 4),
        "slowest_stream_tok_s": None if slowest is None else round(1 / slowest, 4),
    }
