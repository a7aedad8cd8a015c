"""Tables in Markdown of what measurements say; the command line shows the same."""

from collections.abc import Sequence

from benchmarks.report.measured import LimitResults, Spread, SweepResults


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with padded cells: the first column to the left, figures to the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        figures = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return f"| {' | '.join([row[0].ljust(widths[0]), *figures])} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(cells[0]), line(rule), *(line(row) for row in cells[1:])])


def number(value: float | None) -> str:
    """Three figures or the whole number, whichever is more."""
    if value is None:
        return "–"
    size = abs(value)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:,.{decimals}f}"


def ranged(figure: Spread | None) -> str:
    """Median (low to high)."""
    if figure is None:
        return "–"
    if number(figure.low) == number(figure.high):
        return number(figure.median)
    return f"{number(figure.median)} ({number(figure.low)} to {number(figure.high)})"


def middle(figure: Spread | None) -> str:
    """The median alone."""
    return number(None if figure is None else figure.median)


def times(figure: Spread | None) -> str:
    """A ratio [least to most within a round]."""
    if figure is None:
        return "–"
    if f"{figure.low:.2f}" == f"{figure.high:.2f}":
        return f"{figure.median:.2f}×"
    return f"{figure.median:.2f}× [{figure.low:.2f} to {figure.high:.2f}]"


def sweep_table(results: SweepResults) -> str:
    """One row per concurrency, with its gain over the loop of one request if there were several rounds; the knee."""
    head = ["in flight", "output tokens/s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "E2E p50 ms"]
    rows = [
        [
            str(point.concurrency),
            ranged(point.figures["out_tok_s"]),
            *(
                middle(point.figures[name])
                for name in ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms")
            ),
        ]
        for point in results.points
    ]
    if any(point.gain for point in results.points):
        head.append("to one request at a time [95% interval]")
        rows = [[*row, times(point.gain)] for row, point in zip(rows, results.points, strict=True)]
    bend = f"The knee is at {results.knee} in flight; the asymptotes meet at {number(results.saturation)}."
    return f"{markdown(head, rows)}\n\n{bend}"


def limit_table(results: LimitResults) -> str:
    """Every load that was tried, and the highest that kept the promise in each round."""
    head = [results.offered, "kept in rounds", "requests/s", "output tokens/s", "TTFT p50 ms", "TTFT p99 ms"]
    head += ["E2E p50 ms", "E2E p99 ms", "slowest stream, tokens/s"]
    columns = ("req_s", "out_tok_s", "ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p99_ms", "slowest_stream_tok_s")
    rows = [
        [str(load.offered), f"{load.kept} of {load.rounds}", *(ranged(load.figures[name]) for name in columns)]
        for load in results.loads
    ]
    most = results.highest
    highest = "–" if most is None else f"{most.median:g} ({most.low:g} to {most.high:g} over the rounds)"
    return f"{markdown(head, rows)}\n\nThe most with {results.promise}: {highest}."
