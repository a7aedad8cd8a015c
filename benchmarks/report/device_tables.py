"""What `make bench-gpu` printed, as tables: linear layers, attention, and models of true shape."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.report.markdown import markdown
from benchmarks.report.measured import MeasurementError
from benchmarks.report.page import page_option, show_tables
from gateway.cli.options import FILE

Row = dict[str, Any]
_ROWS = (1, 4, 16, 64, 256, 4096)
# Marks a first token whose median is of prompts of which a load before left a part in the cache.
CACHED = " *"


def device_tables(path: Path) -> dict[str, str]:
    """The tables by the names of their places. Raises `MeasurementError` for a file of anything else."""
    try:
        rows = [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines() if line]
        machine = next(row["machine"] for row in rows if "machine" in row)
        return {
            "machine": f"Measured on one {machine['gpu']} ({machine['memory_gib']:g} GiB), CUDA {machine['cuda']}, "
            f"torch {machine['torch']}, Python {machine['python']}.",
            "linears": _linears([row for row in rows if "projection" in row]),
            "attention": _attention([row for row in rows if row.get("kernel") in ("decode", "prefill")]),
            "models": _models([row for row in rows if "out_tok_s" in row]),
        }
    except (msgspec.MsgspecError, StopIteration, KeyError) as error:
        raise MeasurementError(f"{path} is no output of `make bench-gpu`: {error!r}") from error


def _linears(rows: Sequence[Row]) -> str:
    """Microseconds by scheme of each projection and number of rows."""
    schemes = list(dict.fromkeys(row["scheme"] for row in rows))
    times = {(row["projection"], row["rows"], row["scheme"]): row["us"] for row in rows}
    shapes = {row["projection"]: (row["inputs"], row["outputs"]) for row in rows}
    cells = [
        [f"{name}, {inputs:,} × {outputs:,}", str(count), *(f"{times[name, count, s]:.1f}" for s in schemes)]
        for name, (inputs, outputs) in shapes.items()
        for count in _ROWS
    ]
    return markdown(["projection", "rows", *(f"{scheme} µs" for scheme in schemes)], cells)


def _attention(rows: Sequence[Row]) -> str:
    """Microseconds and what was reached by phase, cache and load."""
    cells = [
        [
            f"{row['kernel']}, {row['kv_dtype']} cache",
            f"{row['sequences']} × {row['context']:,}"
            if row["kernel"] == "decode"
            else f"{row['queries']:,} of {row['context']:,}",
            f"{row['us']:,.1f}",
            f"{row['gb_s']:,.0f} GB/s" if "gb_s" in row else f"{row['tflop_s']:.0f} TFLOP/s",
        ]
        for row in rows
    ]
    return markdown(["phase", "tokens", "µs", "reached"], cells)


def _models(rows: Sequence[Row]) -> str:
    """Tokens per second and latencies by stage and load; `CACHED` where a part of most prompts was in the cache."""
    cells = [
        [
            row["stage"] + (f", through {row['adapters']} adapters" if row["adapters"] else ""),
            str(row["concurrency"]),
            f"{row['prompt_tokens']:,} + {row['output_tokens']}",
            f"{row['out_tok_s']:,.1f}",
            f"{row['total_tok_s']:,.0f}",
            f"{row['ttft_p50_ms']:,.1f}{CACHED if _median_is_cached(row, rows[:number]) else ''}",
            f"{row['ttft_p99_ms']:,.1f}",
            f"{row['itl_p50_ms']:.2f}",
            f"{row['itl_p99_ms']:.2f}",
        ]
        for number, row in enumerate(rows)
    ]
    heads = ["stage", "at once", "prompt + answer", "output tokens/s", "all tokens/s", "first token p50 ms", "p99"]
    return markdown([*heads, "between tokens p50 ms", "p99"], cells)


def _median_is_cached(row: Row, before: Sequence[Row]) -> bool:
    """Whether most prompts began with one of an earlier load of the stage.

    Rows without a seed are of loads that all drew their tokens from one seed: prompt i of n tokens is the tokens from
    i n on, so it begins with an earlier load's prompt j of m tokens where i n = j m.
    """
    if "seed" in row:
        return False
    cached_starts = {
        number * earlier["prompt_tokens"]
        for earlier in before
        if (earlier["stage"], earlier["adapters"]) == (row["stage"], row["adapters"])
        for number in range(earlier["requests"])
    }
    hits = sum(number * row["prompt_tokens"] in cached_starts for number in range(row["requests"]))
    return hits > int(row["requests"]) / 2


@click.command()
@click.argument("results", type=FILE)
@page_option
def device(results: Path, pages: tuple[Path, ...]) -> None:
    """Write down what `make bench-gpu > RESULTS` measured on a card.

    Example: python -m benchmarks device docs/measurements/gpu-h200.jsonl --page docs/results/performance-gpu.md
    """
    show_tables(device_tables, results, pages)
