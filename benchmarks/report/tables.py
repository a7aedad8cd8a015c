"""Tables in Markdown of interference and of speculation; the command line shows the same."""

from benchmarks.core.interference import InterferenceResults
from benchmarks.core.speculation import SpeculationResults
from gateway.reporting.tables import markdown, middle, number, ranged, times


def interference_tables(results: InterferenceResults) -> str:
    """The long prompt, joining a busy batch, the shared prefix."""
    prefix = results.shared_prefix
    beside: list[list[str]] = []
    for long in results.long_prompts:
        knobs = "auto-tuned" if long.tuned else "fixed knobs"
        beside.append([f"nothing else, {knobs}", middle(long.quiet_p50), ranged(long.quiet_p99), "1", "–"])
        loaded = [middle(long.beside_p50), ranged(long.beside_p99), times(long.p99_ratio), ranged(long.long_ttft)]
        beside.append([f"the long prefill, {knobs}", *loaded])
    return "\n\n".join(
        [
            markdown(
                ["other load", "streams' ITL p50 ms", "ITL p99 ms", "p99 ratio", "the long prompt's TTFT ms"],
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
