"""What the sources claim next to what was measured here, each with its setting; or why it cannot be had here.

Every figure of ours is read from a stored measurement, so that a new run changes the table and nothing else does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.claims.batching_steps import StepCounts
from benchmarks.report.markdown import number, times
from benchmarks.report.measured import AblationResults, LimitResults, Spread, SweepResults, read_results
from benchmarks.report.peer_tables import results_of
from benchmarks.sources.card import CARD, card_shares
from benchmarks.sources.claim import Claim, origin
from benchmarks.sources.model_claims import drafts, first_day, quantisation, savings
from benchmarks.sources.origins import origin_of
from benchmarks.sources.rows import rows_of

Ratios = dict[str, Spread | None]


def claims(folder: Path) -> list[Claim]:
    """Return all rows, from a folder of measurements. Raises `MeasurementError` for a damaged one."""
    return [row for make in _ROWS for row in make(folder)]


def _batching(folder: Path) -> list[Claim]:
    source = "+40% (000); 10 to 23 times (002, 004), up to 23 times a static batch; no setting is stated"
    alone, full, setting = _effect(folder, "continuous batching")
    rows = [Claim(name="continuous batching, throughput", source=source)]
    if alone is not None and full is not None:
        figure = f"{times(alone['out_tok_s'])} alone, {times(full['out_tok_s'])} in the full system"
        why = (
            f"alone it is over static batches of 8, in the full system over dynamic ones of up to 32. It computes "
            f"{_factor(alone['running_mean'])} and {_factor(full['running_mean'])} as many sequences a step"
            f"{_step_growth(folder)}. A card reads its weights once for all sequences of a step, so there the ratio "
            "of steps counts (next row)"
        )
        rows = [Claim(name=rows[0].name, source=source, here=figure, setting=setting, why=why)]
    return [*rows, _steps(folder)]


def _steps(folder: Path) -> Claim:
    name = "continuous batching, steps of static batches over its own"
    source = "the same; utilisation of 15 to 30% before and 85 to 95% after (004)"
    found = read_results(folder, "batching-steps", StepCounts)
    if found is None:
        return Claim(name=name, source=source)
    results = found[1]
    counts = [one for one in results.counts if one.mode == "continuous"]
    static = {one.callers: one for one in results.counts if one.mode == "static"}
    here = ", ".join(f"{one.gain:.1f}× with {one.callers} callers" for one in counts)
    running = ", ".join(f"{static[one.callers].running:.1f} and {one.running:.1f}" for one in counts)
    return Claim(
        name=name,
        source=source,
        here=here,
        setting=f"{counts[0].requests} requests of the mixed load, nothing computed; "
        + origin(folder, "batching-steps.jsonl"),
        why=f"static batches and continuous ones have {running} sequences a step; more callers, more gain. What a "
        "step costs is left out: the gain where all steps cost the same",
    )


def _step_growth(folder: Path) -> str:
    """How much longer a decoding step takes with more sequences, from step.jsonl."""
    steps = {row["sequences"]: row["total_ms"] for row in rows_of(folder / "step.jsonl") if row["step"] == "decode"}
    if not {8, 32} <= steps.keys():
        return ""
    grown = steps[32] / steps[8]
    return (
        f", but a step of 32 takes {grown:.2f} times one of 8 on this CPU: 4 times the sequences give {4 / grown:.2f}×"
    )


def _paging(folder: Path) -> list[Claim]:
    source = "2 to 4 times the requests in the same memory (000, 002, 004: 60 to 80% wasted before)"
    alone, full, setting = _effect(folder, "paging")
    held = [None if ratios is None else ratios["kv_mb_mean"] for ratios in (alone, full)]
    if alone is None or full is None or held[0] is None or held[1] is None:
        return [Claim(name="paging, requests in the same memory", source=source)]
    saved = 1 / held[0].median, 1 / held[1].median
    return [
        Claim(
            name="paging, requests in the same memory",
            source=source,
            here=f"{saved[0]:.1f} times alone, {saved[1]:.1f} in the full system; throughput "
            f"{times(alone['out_tok_s'])} and {times(full['out_tok_s'])}",
            setting=setting,
            why="memory held for the same requests, without over with; answers may be 256 tokens long and are 48 on "
            "average. With fewer tokens held back the gain is less",
        )
    ]


def _prefix(folder: Path) -> list[Claim]:
    source = "-30 to -50% for repeated patterns (000)"
    alone, full, setting = _effect(folder, "prefix cache")
    if alone is None or full is None:
        latency = Claim(name="prefix cache, latency", source=source)
    else:
        latency = Claim(
            name="prefix cache, latency",
            source=source,
            here=f"first token, p50: {_percent(alone['ttft_p50_ms'])} alone, {_percent(full['ttft_p50_ms'])} in the "
            "full system",
            setting=f"half of the prompts share 256 words; {setting}",
        )
    return [latency, _hits(folder)]


def _hits(folder: Path) -> Claim:
    name, source = (
        "prefix cache, hits",
        "about 90% where voice bots have one system prompt (001: L4; prompts of 1,900 to 2,000)",
    )
    found = read_results(folder, "prefix-hits", dict[str, list[dict[str, Any]]])
    if found is None:
        return Claim(name=name, source=source)
    head, results = found
    options = head.settings["options"]
    here = "; ".join(
        f"{one['share']:.1%} of prompt tokens with `{one['arithmetic']}` prompts (first turns "
        f"{one['first_turns']:.1%}, later ones {one['later_turns']:.1%})"
        for one in results["hits"]
    )
    one = results["hits"][0]
    return Claim(
        name=name,
        source=source,
        here=here,
        setting=f"{options['calls']} calls at a time of {options['turns']} turns through a gateway, "
        f"{one['prompt_tokens']:,.0f} tokens in and {one['answer_tokens']:.0f} out on average, "
        f"{head.settings['model']}; {origin(folder, 'prefix-hits.jsonl')}",
        why="the first call computes the system prompt; `fast` prompts compute what the model said before again, "
        "`exact` ones do not (knob `prefill_arithmetic`)",
    )


def _small_cache(folder: Path) -> list[Claim]:
    name, source = "cache in 8 bits, tokens in the same memory", "about 2 times with FP8 (001: H100)"
    alone, full, setting = _effect(folder, "INT8 KV cache")
    held = [None if ratios is None else ratios["kv_mb_mean"] for ratios in (alone, full)]
    if held[0] is None or held[1] is None:
        return [Claim(name=name, source=source)]
    return [
        Claim(
            name=name,
            source=source,
            here=f"{1 / held[0].median:.2f} times alone, {1 / held[1].median:.2f} in the full system, with INT8",
            setting=setting,
            why="a scale for each token and head takes two bytes more than the numbers; FP8 has them too, on cards",
        )
    ]


def _attention(folder: Path) -> list[Claim]:
    name, source = "FlashAttention", "-35% of attention's time (003; 70B in FP16 on 8 A100)"
    tiled = [row for row in rows_of(folder / CARD) if row.get("kernel") == "prefill" and row["kv_dtype"] == "bfloat16"]
    steps = [row for row in rows_of(folder / "step.jsonl") if row.get("total_ms")]
    setting, why = [], "nothing here computes attention without tiles, so there is no time to compare with"
    if tiled:
        most = max(row["tflop_s"] for row in tiled)
        why += f"; the tiled kernel reaches {most:.0f} TFLOP/s on the card"
        setting.append(origin(folder, CARD))
    if steps:
        shares = [row["attention_ms"] / row["total_ms"] for row in steps]
        setting.append(
            f"attention is {min(shares):.0%} to {max(shares):.0%} of a step of {steps[0]['model']} on a CPU; "
            f"{origin(folder, 'step.jsonl')}"
        )
    return [Claim(name=name, source=source, setting="; ".join(setting), why=why)]


def _edge(folder: Path) -> list[Claim]:
    source = "2,000 queries a second on an edge node with a 7B in INT4 (003: Jetson AGX Orin), 80% of 45,000"
    parts, setting = [], []
    proxied = newest_proxy(folder)
    if proxied is not None:
        parts.append(f"{_rates(proxied)} whole answers a second by a gateway without a model")
        setting.append(origin(folder, proxied.name))
    sweep = read_results(folder, "sweep", SweepResults)
    if sweep is not None:
        best = max(
            (one.figures["out_tok_s"].median for one in sweep[1].points if one.figures["out_tok_s"]), default=0.0
        )
        options = sweep[0].settings["options"]
        parts.append(
            f"{number(best / options['output_tokens'])} answers of {options['output_tokens']} tokens a second with "
            f"{sweep[0].settings['model']['name']}"
        )
        setting.append(origin(folder, "sweep.jsonl"))
    if not parts:
        return [Claim(name="queries of an edge node", source=source)]
    why = (
        "no edge device; a 7B in INT4 reads 3.9 GB a token, which at 205 GB/s are 52 steps a second: 2,000 queries "
        "need large batches or a cache"
    )
    return [
        Claim(name="queries of an edge node", source=source, here="; ".join(parts), setting="; ".join(setting), why=why)
    ]


def _rate(folder: Path) -> list[Claim]:
    source = "1,000 rewrites a second, p99 of 95 and 69 ms (001: a 1B on 4 L4, and on an A100)"
    found, origins = [], []
    proxied = newest_proxy(folder)
    if proxied is not None:
        found.append(f"{_rates(proxied)} with 1 to 8 in flight")
        origins.append(origin(folder, proxied.name))
    limit = read_results(folder, "rewrite", LimitResults)
    if limit is not None and limit[1].highest is not None:
        p99 = limit[0].settings["options"]["p99_ms"]
        found.append(f"with {limit[0].settings['model']['name']} {limit[1].highest.median:g} within {p99:g} ms")
        origins.append(origin(folder, "rewrite.jsonl"))
    if not found:
        return [Claim(name="answers a second, not streamed", source=source)]
    return [
        Claim(
            name="answers a second, not streamed",
            source=source,
            here="; ".join(found),
            setting="; ".join(origins),
            why="the first figures are of one gateway process in front of a stub engine, the newest record; the last "
            "is of a model on the CPU. The source's are of cards",
        )
    ]


def _lag(folder: Path) -> list[Claim]:
    name, source = (
        "event loop's lag, p99, with a core under the gateway",
        "model steps never block the event loop (003)",
    )
    found = read_results(folder, "core-lag", dict[str, Any])
    if found is None:
        return [Claim(name=name, source=source)]
    options, row = found[0].settings["options"], found[1]
    busy = next((one["busy_before"] for one in rows_of(folder / "core-lag.jsonl") if "busy_before" in one), None)
    others = "" if busy is None else f"; other work took {busy:.0%} of the processors before, so this is an upper bound"
    return [
        Claim(
            name=name,
            source=source,
            here=f"{row['p99_ms']:g} ms (limit {options['limit_ms']:g} ms), {row['p50_ms']:g} ms at p50",
            setting=f"{row['streams']} streams of the {options['catalog']} catalogue for {options['seconds']:g} s; "
            + origin(folder, "core-lag.jsonl")
            + others,
        )
    ]


def whole_rates(path: Path) -> list[float]:
    """Return the answers a second of the gateway in closed loops, not streamed."""
    rows = rows_of(path)
    return [row["req_s"] for row in rows if row["target"] == "aio" and not row["stream"] and row["loop"] == "closed"]


def newest_proxy(folder: Path) -> Path | None:
    """The record of the gateway in front of a stub engine that was made last; None without one."""
    found = [path for path in sorted(folder.glob("proxy*.jsonl")) if whole_rates(path)]
    return max(found, key=lambda path: origin_of(path).day, default=None)


def _rates(path: Path) -> str:
    rates = whole_rates(path)
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


def _utilisation(folder: Path) -> list[Claim]:
    name, source = "utilisation", "95% of a GPU is the target (004), 45 to 78% are reported (003)"
    peers = folder / "peers.jsonl"
    bounds: dict[str, float] = next((row["bounds"] for row in rows_of(folder / "kernels.jsonl") if "bounds" in row), {})
    goals = results_of([row for row in rows_of(peers) if "transport" in row]).goals if peers.exists() else []
    shares = {one.name: one.ours.median / bounds[one.bound] for one in goals if one.bound in bounds}
    on_card = card_shares(folder)
    here = [f"{what} {share:.0%}" for what, share in on_card.items()]
    setting = [f"of the card's data sheet; {origin(folder, CARD)}"] if on_card else []
    if shares:
        here += [f"{what} {share:.0%}" for what, share in shares.items()]
        setting.append(f"of what this CPU's measured peaks allow; {origin(folder, 'peers.jsonl')}")
    if not here:
        return [Claim(name=name, source=source)]
    return [
        Claim(
            name=name,
            source=source,
            here=", ".join(here),
            setting="; ".join(setting),
            why="a GPU's utilisation says that it is busy, not how much of its peak it does",
        )
    ]


_ROWS: tuple[Callable[[Path], list[Claim]], ...] = (
    _batching,
    _paging,
    _prefix,
    _small_cache,
    quantisation,
    drafts,
    savings,
    first_day,
    _attention,
    _rate,
    _lag,
    _edge,
    _utilisation,
)


def _effect(folder: Path, technique: str) -> tuple[Ratios | None, Ratios | None, str]:
    """Ratios with over without a technique of the ablation: alone, in the full system; and the setting."""
    found = read_results(folder, "ablation", AblationResults)
    effect = None if found is None else next((one for one in found[1].effects if one.technique == technique), None)
    if found is None or effect is None:
        return None, None, ""
    options = found[0].settings["options"]
    load = f"mixed load, {options['requests']} requests, {options['concurrency']} in flight, {options['rounds']} rounds"
    model = found[0].settings["model"]["name"]
    return effect.alone, effect.full, f"{load}, {model}; {origin(folder, 'ablation.jsonl')}"


def _factor(figure: Spread | None) -> str:
    return "–" if figure is None else f"{figure.median:.2f} times"


def _percent(figure: Spread | None) -> str:
    return "–" if figure is None else f"{figure.median - 1:+.0%}"
