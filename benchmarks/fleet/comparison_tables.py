"""Comparisons of scaling rules as tables in Markdown, put into pages between markers."""

from pathlib import Path

from benchmarks.fleet.comparison import Comparison, Duel
from benchmarks.fleet.scoring import Score


def comparison_text(comparison: Comparison) -> str:
    """Format one trace: a heading, the scores, and the gain of predictive scaling over each reactive rule."""
    head = (
        f"**{comparison.trace}** on {comparison.profile}, cold start {comparison.cold_start_s:.3g} s; requests from "
        f"{comparison.since_s:.0f} s to {comparison.until_s:.0f} s of the trace, "
        f"{comparison.fixed.requests:,} in number"
    )
    rows = [_row(comparison.fixed)]
    for duel in comparison.duels:
        rows += [
            _row(duel.reactive, "reactive, "),
            _row(duel.predictive),
            _row(duel.oracle),
            _row(duel.hindsight, knobs=f"{duel.hindsight.knobs} (in hindsight)"),
            _row(duel.hindsight_oracle, knobs="(in hindsight)"),
        ]
    gains = [
        f"| {duel.reactive.rule} | {_gone(duel, duel.predictive)} | {duel.hours_ratio(duel.predictive):.2f} | "
        f"{duel.over_oracle:+.0%} | {_gone(duel, duel.hindsight)} | {duel.hours_ratio(duel.hindsight):.2f} | "
        f"{duel.hindsight_over_oracle:+.0%} |"
        for duel in comparison.duels
    ]
    return "\n".join(
        [
            head,
            "",
            "| rule | knobs | missed | served well | replica-hours | $ | TTFT p50 s | p99 s | changes |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *rows,
            "",
            "| predictive against | misses gone | hours, times | beyond oracle "
            "| in hindsight: gone | hours, times | beyond oracle |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *gains,
        ]
    )


def _row(score: Score, prefix: str = "", knobs: str | None = None) -> str:
    return (
        f"| {prefix}{score.rule} | {score.knobs if knobs is None else knobs} | {score.missed:,} | "
        f"{score.attainment:.1%} | {score.replica_hours:.2f} | {score.usd:.2f} | "
        f"{score.ttft_p50_s:.2f} | {score.ttft_p99_s:.2f} | {score.changes} |"
    )


def _gone(duel: Duel, ahead: Score) -> str:
    gone = duel.misses_gone(ahead)
    return "none to avoid" if gone is None else f"{gone:.0%}"


def write_between(page: Path, name: str, text: str) -> None:
    """Replace the text between the page's markers of `name`. Raises `ValueError` if it has none."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    old = page.read_text(encoding="utf-8")
    if begin not in old or end not in old:
        raise ValueError(f"{page} has no lines {begin!r} and {end!r} to write between")
    before, _, rest = old.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
