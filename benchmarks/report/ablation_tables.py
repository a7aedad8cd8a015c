"""The tables of an ablation, in Markdown."""

from benchmarks.report.markdown import markdown, middle, number, ranged, times
from benchmarks.report.measured import AblationResults, Effect, Spread

# Figures of which less is better, in the order in which they decide where throughput does not.
_LESS_IS_BETTER = {
    "ttft_p50_ms": "TTFT p50",
    "ttft_p99_ms": "TTFT p99",
    "itl_p99_ms": "ITL p99",
    "kv_mb_mean": "KV MB",
}


def ablation_tables(results: AblationResults) -> str:
    """The ladder, effects alone and in the full system, decoding features, arithmetic."""
    parts = (_ladder, _effects, _features, _computes)
    return "\n\n".join(part(results) for part in parts)


def _ladder(results: AblationResults) -> str:
    head = ["added", "output tokens/s", "to the row before", "TTFT p50 ms", "p99", "ITL p50 ms", "p99"]
    head += ["running", "KV MB", "resident MB"]
    rows = [
        [
            f"{rung.technique} ¹" if rung.small else rung.technique,
            ranged(rung.figures["out_tok_s"]),
            times(rung.step["out_tok_s"] if rung.step else None),
            *(middle(rung.figures[name]) for name in ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms")),
            *(middle(rung.figures[name]) for name in ("running_mean", "kv_mb_mean", "peak_resident_mb")),
        ]
        for rung in results.ladder
    ]
    return markdown(head, rows)


def _effects(results: AblationResults) -> str:
    head = ["technique", "throughput, alone", "in the full system", "interaction"]
    head += [
        "TTFT p50, alone",
        "full",
        "TTFT p99, alone",
        "full",
        "ITL p99, alone",
        "full",
        "KV MB, alone",
        "full",
        "verdict",
    ]
    rows = []
    for effect in results.effects:
        full = effect.full or {}
        row = [f"{effect.technique} ¹" if effect.small else effect.technique]
        row += [times(effect.alone["out_tok_s"]), times(full.get("out_tok_s")), number(effect.interaction)]
        for name in ("ttft_p50_ms", "ttft_p99_ms", "itl_p99_ms", "kv_mb_mean"):
            row += [_factor(effect.alone[name]), _factor(full.get(name))]
        rows.append([*row, verdict(effect)])
    return markdown(head, rows)


def verdict(effect: Effect) -> str:
    """Whether the full system should keep a technique, and the figure that decides it (SPEC TB-05).

    A figure decides if its ratio's range within rounds does not span 1: throughput, else the first that gains. A single
    round has no range, so nothing follows from it.
    """
    if effect.full is None:
        return "not in the full system"
    ranges = {name: ratio for name, ratio in effect.full.items() if ratio is not None and ratio.low < ratio.high}
    if not ranges:
        return "too few rounds"
    throughput = ranges.get("out_tok_s")
    if throughput is not None and not throughput.low <= 1 <= throughput.high:
        return f"{'keep' if throughput.low > 1 else 'drop'}: throughput"
    gains = [label for name, label in _LESS_IS_BETTER.items() if name in ranges and ranges[name].high < 1]
    return f"keep: {gains[0]}" if gains else "drop: no gain"


def _features(results: AblationResults) -> str:
    head = ["decoding feature", "load", "throughput, to the same without", "TTFT p50", "ITL p50", "ITL p99"]
    rows = [
        [
            effect.feature,
            "copying, one at a time" if effect.load == "copy" else effect.load,
            times(effect.ratios["out_tok_s"]),
            *(_factor(effect.ratios[name]) for name in ("ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")),
        ]
        for effect in results.features
    ]
    return markdown(head, rows)


def _factor(figure: Spread | None) -> str:
    return "–" if figure is None else f"{figure.median:.2f}×"


def _computes(results: AblationResults) -> str:
    head = ["arithmetic", "weights MB", "output tokens/s", "to float32", "TTFT p50 ms", "ITL p50 ms"]
    rows = [
        [
            variant.compute,
            number(variant.weights_mb),
            ranged(variant.figures["out_tok_s"]),
            times(variant.ratios["out_tok_s"]),
            middle(variant.figures["ttft_p50_ms"]),
            middle(variant.figures["itl_p50_ms"]),
        ]
        for variant in results.computes
    ]
    return markdown(head, rows)
