"""From single requests to one row of figures: percentiles, throughput, goodput, errors."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.planning.load_test.options import BenchOptions


@dataclass(slots=True)
class Timing:
    """One request as its sender saw it; seconds since it was due. `gaps` lie between one output and the next."""

    asked: int
    ttft: float | None = None
    gaps: list[float] = field(default_factory=list)
    e2e: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    has_usage: bool = False
    error: str | None = None

    @property
    def seconds_per_later_token(self) -> float | None:
        return sum(self.gaps) / (self.output_tokens - 1) if self.gaps and self.output_tokens > 1 else None

    def note_text(self, now: float, due: float, last: float) -> float:
        """Text came at `now`, the last before it at `last`; returns `now`, the next call's `last`."""
        if self.ttft is None:
            self.ttft = now - due
        else:
            self.gaps.append(now - last)
        return now

    def is_good(self, options: BenchOptions) -> bool:
        """Answered within the objectives for the first token and for the mean time per later one."""
        if self.error is not None or self.ttft is None:
            return False
        if options.slo_ttft_ms and self.ttft * 1e3 > options.slo_ttft_ms:
            return False
        later = self.seconds_per_later_token
        return not (options.slo_itl_ms and later and later * 1e3 > options.slo_itl_ms)


def percentile(values: Iterable[float], q: float) -> float | None:
    """Nearest-rank percentile; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def summary(
    load: dict[str, Any], timings: list[Timing], wall: float, options: BenchOptions, notes: dict[str, Any]
) -> dict[str, Any]:
    """One row: the load's columns, the figures (milliseconds and tokens per second), the notes; rounded."""
    done = [timing for timing in timings if timing.error is None]
    output, prompt = sum(t.output_tokens for t in done), sum(t.prompt_tokens for t in done)
    row: dict[str, Any] = {
        **load,
        "requests": len(timings),
        "ok": len(done),
        "errors": dict(Counter(t.error for t in timings if t.error is not None)),
        "wall_s": wall,
        "out_tok_s": output / wall,
        "total_tok_s": (output + prompt) / wall,
        "req_s": len(done) / wall,
        **_spread("ttft", [t.ttft for t in done if t.ttft is not None]),
        **_spread("itl", [gap for t in done for gap in t.gaps]),
        **_spread("e2e", [t.e2e for t in done]),
    }
    if options.slo_ttft_ms or options.slo_itl_ms:
        good = sum(timing.is_good(options) for timing in timings)
        row |= {"goodput_req_s": good / wall, "good_fraction": good / len(timings)}
    row |= {
        "mean_prompt": prompt / len(done) if prompt else None,
        "mean_output": output / len(done) if done else None,
        "short_answers": sum(t.output_tokens < t.asked for t in done),
        "no_usage": sum(not t.has_usage for t in done),
        **notes,
    }
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def _spread(name: str, seconds: list[float]) -> dict[str, float | None]:
    p50, p90, p99 = (percentile(seconds, q) for q in (0.5, 0.9, 0.99))
    row = {
        f"{name}_{label}_ms": None if p is None else p * 1e3 for label, p in (("p50", p50), ("p90", p90), ("p99", p99))
    }
    return row | {f"{name}_p99_over_p50": p99 / p50 if p50 and p99 is not None else None}


def row_text(row: dict[str, Any]) -> str:
    """A row for people: `column=value` pairs on one line."""
    return "  ".join(f"{name}={_short(value)}" for name, value in row.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.{1 if abs(value) >= 10 else 3}f}"
    return str(value)
