"""Tables in Markdown of benchmarks of the core; the command line shows the same."""

from benchmarks.core.interference import InterferenceResults
from benchmarks.core.speculation import SpeculationResults
from benchmarks.report.markdown import markdown, middle, number, ranged, times


def interference_tables(results: InterferenceResults) -> str:
    """The long prompt, joining a busy batch, the shared prefix."""
    prefix = results.shared_prefix
    beside: list[list[str]] = []
    for long in results.long_prompts:
        knobs = "auto-tuned" if long.tuned else "fixed knobs"
        quiet = [middle(long.quiet_p50), ranged(long.quiet_p95), ranged(long.quiet_p99), "1", "–"]
        beside.append([f"nothing else, {knobs}", *quiet])
        loaded = [middle(long.beside_p50), ranged(long.beside_p95), ranged(long.beside_p99), times(long.p99_ratio)]
        beside.append([f"the long prefill, {knobs}", *loaded, ranged(long.long_ttft)])
    return "\n\n".join(
        [
            markdown(
                ["other load", "streams' ITL p50 ms", "p95 ms", "p99 ms", "p99 ratio", "the long prompt's TTFT ms"],
                beside,
            ),
            markdown(
                ["streams decoding", "TTFT p50 ms", "TTFT p99 ms"],
                [[str(j.streams), ranged(j.ttft_p50), ranged(j.ttft_p99)] for j in results.occupancy],
            ),
            markdown(
                ["TTFT p50 ms, new prompt", "prefix cached", "times lower"],
                [[ranged(prefix.cold), ranged(prefix.warm), times(prefix.times_lower)]],
            ),
        ]
    )


def speculation_table(results: SpeculationResults) -> str:
    """One row per workload and level: with and without drafts."""
    head = [results.way, "in flight", "without, output tokens/s", "with drafts", "ratio [95% interval]"]
    head += ["drafts accepted", "tokens a step"]
    rows = [
        [
            worth.workload,
            str(worth.level),
            ranged(worth.without),
            ranged(worth.having),
            times(worth.ratio),
            "–" if worth.accepted is None else f"{worth.accepted:.0%}",
            number(worth.per_round),
        ]
        for worth in results.worth
    ]
    return markdown(head, rows)


def workloads_table(results: SpeculationResults) -> str:
    """One row per workload, level and mode of drafting, never pooled."""
    worth = {(each.workload, each.level, each.mode): each for each in results.worth}
    head = ["workload", "in flight", f"{results.way} drafts", "answer tokens", "output tokens/s"]
    head += ["to off [95% interval]", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "E2E p95 ms"]
    head += ["drafts accepted", "tokens a step"]
    rows = []
    for load in results.loads:
        figures, drafts = load.figures, worth.get((load.workload, load.level, load.mode))
        accepted = None if drafts is None else drafts.accepted
        columns = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p95_ms")
        rows.append(
            [
                load.workload,
                str(load.level),
                load.mode,
                middle(figures["mean_output"]),
                ranged(figures["out_tok_s"]),
                "–" if drafts is None else times(drafts.ratio),
                *(middle(figures[name]) for name in columns),
                "–" if accepted is None else f"{accepted:.0%}",
                number(None if drafts is None else drafts.per_round),
            ]
        )
    return markdown(head, rows)
