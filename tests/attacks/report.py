"""The table of an attack, for a terminal and for docs/results/attacks.md."""

from collections.abc import Sequence

from tests.attacks.runner import Verdict, total

HEAD = (
    "class",
    "inputs",
    "5xx",
    "deaths",
    "stalls",
    "worst lag ms",
    "errors logged",
    "unanswered",
    "memory MiB",
    "bypasses",
)


def row(verdict: Verdict) -> tuple[str, ...]:
    """The cells of a class."""
    return (
        verdict.name,
        f"{verdict.inputs:,}",
        str(verdict.server_errors),
        str(verdict.deaths),
        str(verdict.stalls),
        f"{verdict.worst_lag * 1e3:.0f}" if verdict.worst_lag > 0.05 else "< 50",
        str(verdict.errors),
        str(verdict.unanswered),
        f"{verdict.grown_bytes / 2**20:.0f}",
        str(verdict.bypasses),
    )


def line(cells: Sequence[str]) -> str:
    """A row for a terminal."""
    return f"{cells[0]:34}" + "".join(f"{cell:>14}" for cell in cells[1:])


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The table of the documentation."""
    rows = [HEAD, ("---",) + ("---:",) * (len(HEAD) - 1), *map(row, verdicts), row(total("all", verdicts))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
