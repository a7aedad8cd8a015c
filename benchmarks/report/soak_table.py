"""The table of a soak in Markdown; the command line shows the same."""

from collections import Counter

from benchmarks.gateway.soak.figures import SoakResults
from benchmarks.report.markdown import markdown, number

_MB = 1e6
# Figures, their titles, and what one of the unit is.
_ROWS = {
    "resident": ("resident MB", _MB),
    "resident_most": ("most within a minute, MB", _MB),
    "proportional": ("proportional (PSS) MB", _MB),
    "open_files": ("fewest open files within a minute", 1.0),
    "threads": ("fewest threads", 1.0),
    "added_p50_ms": ("added p50 ms", 1.0),
    "added_p99_ms": ("added p99 ms", 1.0),
}


def soak_table(results: SoakResults) -> str:
    """The first third after the warm-up against the last; then requests, failures, files and bytes of data."""
    rows = [
        [title, number(change.first / unit), number(change.last / unit), f"{change.growth:+.1%}"]
        for name, (title, unit) in _ROWS.items()
        for change in [results.changes[name]]
    ]
    table = markdown([f"minutes {results.warm:g} to {results.minutes:g}", "first third", "last third", "growth"], rows)
    before, after = results.before, results.after
    # Why is in the file.
    wrong: Counter[str] = Counter()
    for what, count in results.failures.items():
        wrong[what.partition(":")[0]] += count
    failed = ", ".join(f"{kind} {count:,}" for kind, count in wrong.items())
    drawn = ", ".join(f"{kind} {count:,}" for kind, count in results.kinds.items())
    return (
        f"{table}\n\n{results.requests:,} requests; wrong answers: {failed or 'none'}. Drawn: {drawn}.\n\nWithout "
        f"requests, before and after: {number(before.resident / _MB)} and {number(after.resident / _MB)} MB resident, "
        f"{before.open_files} and {after.open_files} open files, {before.threads} and {after.threads} threads. The "
        f"data folder grew by {results.data_per_request:,.0f} bytes per request."
    )
