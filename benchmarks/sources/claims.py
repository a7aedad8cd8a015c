"""What the sources claim next to what was measured here, each with its setting; or why it cannot be had here.

The rows are in tables.toml. Every figure of ours is read from a stored measurement, so that a new run changes the table
and nothing else does.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report.measured import AblationResults, SweepResults
from benchmarks.report.measurement import read_results, rows_of
from benchmarks.report.peer_tables import results_of
from benchmarks.report.rounds import spread
from benchmarks.sources.figures import Figures, NoFigure, Template
from benchmarks.sources.origins import in_words, origin_of
from gateway.planning.load_test.measured_groups import peak_of
from inference_core.loaders.decoder_tensors import SHAPES
from inference_core.placement.hardware import reported_device
from inference_core.placement.weight_formats import model_weights

NOT_MEASURED = "not measured"
# What `make bench-gpu` printed of one card.
CARD = "gpu-h200.jsonl"
_SHAPE = "llama-3.1-8b"
BUSY_STREAMS = 64
_ROUNDED = "RTN, 4 bits"
# Ladder, cost and quality of the first day, as shares of the strongest tier's, of the table of replays.
_FIRST_DAY = re.compile(r"^\| (\w+), [\d,]+ held out \| (\d+)% / (\d+)% \|", re.MULTILINE)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A row: what the sources say with their setting, our figure, its setting, and why the two differ; all but the
    sources' words as templates. `of`: a list of figures, of which each is a row; else there is one."""

    name: str
    source: str
    here: Template = NOT_MEASURED
    setting: Template = ""
    why: Template = ""
    of: str = ""


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature (SPEC TB-11). `tests`: pytest's names, below tests/, of tests that fail if it stops being true.
    `others`: as source 004 or 003 states, by the names of the servers."""

    name: str
    ours: str = "yes"
    tests: tuple[str, ...]
    others: dict[str, str]


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """What tables.toml holds. `methods`: the sources' rows, as its comment says."""

    texts: dict[str, Template]
    methods: list[tuple[str, str, str]]
    claims: list[Claim]
    engines: list[Feature]
    servers: list[Feature]


@cache
def tables() -> Tables:
    """Return the sources' tables, with the places of our figures."""
    return msgspec.toml.decode((files("benchmarks.sources") / "tables.toml").read_bytes(), type=Tables)


def claims(folder: Path) -> list[Claim]:
    """Return all rows filled in, from a folder of measurements. Raises `MeasurementError` for a damaged one."""
    figures = Figures(folder, _DERIVED, tables().texts)
    filled = []
    for claim in tables().claims:
        items: list[Mapping[str, Any]] = _DERIVED[claim.of](folder) if claim.of else [{}]
        filled += [_filled(claim, figures, item) for item in items]
    return filled


def _filled(claim: Claim, figures: Figures, item: Mapping[str, Any]) -> Claim:
    def cell(template: Template, join: str = "; ") -> str:
        try:
            return figures.text(template, item, join)
        except NoFigure:
            return ""

    name, source, here = (cell(template) for template in (claim.name, claim.source, claim.here))
    if not here:
        return Claim(name=name, source=source)
    return Claim(name=name, source=source, here=here, setting=cell(claim.setting), why=cell(claim.why, ""))


def _effects(folder: Path) -> dict[str, Any] | None:
    stored = read_results(folder, "ablation", AblationResults)
    return stored and {effect.technique: msgspec.to_builtins(effect) for effect in stored[1].effects}


def _step_growth(folder: Path) -> dict[str, float] | None:
    """How much longer a decoding step takes with more sequences, and what four times as many gain."""
    rows = rows_of(folder / "step.jsonl")
    steps = {row["sequences"]: row["total_ms"] for row in rows if row["step"] == "decode"}
    if not {8, 32} <= steps.keys():
        return None
    grown = steps[32] / steps[8]
    return {"grown": grown, "gain": 4 / grown}


def _attention_shares(folder: Path) -> list[float] | None:
    rows = rows_of(folder / "step.jsonl")
    return [row["attention_ms"] / row["total_ms"] for row in rows if row.get("total_ms")] or None


def whole_rates(path: Path) -> list[float]:
    """Return the answers a second of the gateway in closed loops, not streamed."""
    rows = rows_of(path)
    return [row["req_s"] for row in rows if row["target"] == "aio" and not row["stream"] and row["loop"] == "closed"]


def newest_proxy(folder: Path) -> Path | None:
    """The record of the gateway in front of a stub engine that was made last; None without one."""
    paths = [path for path in sorted(folder.glob("proxy*.jsonl")) if whole_rates(path)]
    return max(paths, key=lambda path: origin_of(path).day, default=None)


def _proxy(folder: Path) -> dict[str, Any] | None:
    path = newest_proxy(folder)
    return None if path is None else {"rates": whole_rates(path), "origin": in_words(path)}


def _sweep_answers(folder: Path) -> float | None:
    """Whole answers a second at the best concurrency of the sweep."""
    stored = read_results(folder, "sweep", SweepResults)
    if stored is None:
        return None
    best = max((speed.median for point in stored[1].points if (speed := point.figures["out_tok_s"])), default=0.0)
    return best / float(stored[0].settings["options"]["output_tokens"])


def _knee(folder: Path) -> dict[str, Any] | None:
    """The point of the sweep at its knee."""
    stored = read_results(folder, "sweep", SweepResults)
    points = [] if stored is None else [point for point in stored[1].points if point.concurrency == stored[1].knee]
    return msgspec.to_builtins(points[0]) if points else None


def _ends(folder: Path) -> dict[str, Any] | None:
    """Figures of the first and the last step of the ablation on the mixed load, the median P90 of whole answers too;
    `cost` of a token afterwards, at the same price of the machine, over that before."""
    stored = read_results(folder, "ablation", AblationResults)
    rungs = [] if stored is None else [rung for rung in stored[1].ladder if not rung.small]
    speeds = [speed.median for rung in rungs if (speed := rung.figures["out_tok_s"])]
    if len(rungs) < 2 or len(speeds) < len(rungs):
        return None
    ends: dict[str, Any] = {"cost": speeds[0] / speeds[-1]}
    for name, rung in (("before", rungs[0]), ("after", rungs[-1])):
        of_rung = [row for row in rows_of(folder / "ablation.jsonl") if row.get("arm") == rung.configuration]
        late = spread([row["e2e_p90_ms"] for row in of_rung])
        ends[name] = msgspec.to_builtins(rung.figures | {"e2e_p90_ms": late})
    return ends


def _utilisation(folder: Path) -> list[dict[str, Any]] | None:
    """Shares of the card's data sheet, then of what this CPU's measured peaks allow."""
    rows = rows_of(folder / "kernels.jsonl")
    bounds: dict[str, float] = next((row["bounds"] for row in rows if "bounds" in row), {})
    goals = results_of([row for row in rows_of(folder / "peers.jsonl") if "transport" in row]).goals
    shares = card_shares(folder) | {result.goal.name: result.ours.median / bounds[result.goal.bound] for result in goals
                                    if result.goal.bound in bounds}  # fmt: skip
    return [{"what": what, "share": share} for what, share in shares.items()] or None


def card_shares(folder: Path) -> dict[str, float]:
    """Return what the card reached of its data sheet, by what was computed; empty without a data sheet.

    A step of one answer reads every weight but the table of embeddings, of which it reads a row.
    """
    rows = rows_of(folder / CARD)
    device = reported_device(next((row["machine"]["gpu"] for row in rows if "machine" in row), ""))
    peak = None if device is None else peak_of(device, cards=1, tensor=1)
    if peak is None:
        return {}
    config = SHAPES[_SHAPE]
    read_bytes = 2 * (model_weights(config).linear + config.vocab_size * config.hidden_size)
    shares = {}
    for row in rows:
        if row.get("stage") == "8b-bf16-one-stream" and "itl_mean_ms" in row:
            steps = 1000 / row["itl_mean_ms"]
            shares["one answer of an 8B in BF16, bandwidth"] = steps / peak.decode(1, config, read_bytes)
        if row.get("stage") == "8b-bf16-prefill" and "seconds" in row:
            tokens_per_second = row["requests"] * row["prompt_tokens"] / row["seconds"]
            shares["products of its prompts of 8,192 tokens, operations"] = tokens_per_second / peak.prefill(config)
    attention = [row["tflop_s"] for row in rows if row.get("kernel") == "prefill"]
    if attention:
        shares["attention of prompts, operations"] = max(attention) * 1e12 / peak.flops
    return shares


def _first_day(folder: Path) -> list[dict[str, Any]] | None:
    """What routing by complexity saves before any label, and the quality that it keeps. The replays of whole gateways
    keep no file; their table is on a page of `folder`'s neighbour `results`."""
    page = folder.parent / "results" / "quality.md"
    rows = _FIRST_DAY.findall(page.read_text(encoding="utf-8")) if page.is_file() else []
    return [{"ladder": ladder, "saved": 100 - int(cost), "quality": quality} for ladder, cost, quality in rows] or None


def _methods(folder: Path) -> list[dict[str, Any]]:
    """Source 004's table of methods, an item each: the row of `quantised`, and how it compares."""
    stored = read_results(folder, "quantised", dict[str, list[dict[str, Any]]])
    rows = {} if stored is None else {row["way"]: row for row in stored[1]["rows"]}
    on_card = [row for row in rows_of(folder / CARD) if row.get("shape") == _SHAPE and "out_tok_s" in row]
    alone = {row["compute"]: row["out_tok_s"] for row in on_card if row["stage"].endswith("-one-stream")}
    busy = {row["compute"]: row["out_tok_s"] for row in on_card if _is_busy(row)}
    items = []
    for method, said, way in tables().methods:
        item: dict[str, Any] = {"method": method, "said": said, "way": None}
        if way in rows:
            row = rows[way]
            chance = "p below 0.01" if row["p_value"] < 0.01 else f"p = {row['p_value']:.2f}"
            item |= row | {"chance": chance, "points": -100 * row["loss"], "on_card": None}
            item |= {"speed": NOT_MEASURED, "why": _why(row, rows.get(_ROUNDED))}
            if row["smaller"] is None:
                item |= _on_this_cpu(folder)
            elif {row["compute"], "dense"} <= alone.keys():
                item |= {"on_card": in_words(folder / CARD)}
                item |= {"speed": _speed_on_card(row["compute"], alone, busy)}
        items.append(item)
    return items


def _is_busy(row: dict[str, Any]) -> bool:
    """Return whether these are many long answers at a time, the load that formats were compared under."""
    return bool(row["stage"].endswith("-256") and row["concurrency"] == BUSY_STREAMS)


def _speed_on_card(compute: str, alone: dict[str, float], busy: dict[str, float]) -> str:
    """Say the speed of a format over BF16's: of one answer, and of many, which may be slower."""
    speed = f"{alone[compute] / alone['dense']:.2f}× of BF16, one answer at a time on one H200"
    many = f"{BUSY_STREAMS} answers at a time"
    if {compute, "dense"} <= busy.keys():
        return f"{speed}, {busy[compute] / busy['dense']:.2f}× with {many}"
    return f"{speed}, with {many} not measured"


def _why(row: dict[str, Any], plain: dict[str, Any] | None) -> str:
    if row["compute"] == "int4-int8":
        return "the loss is that of the arithmetic; what the file's maker lost is not known here"
    parts = [f"{row['questions']} sums of a small model tell a loss of several points, and no smaller one"]
    if plain is not None and row["compute"] == plain["compute"]:
        loses = {
            "perplexity": row["perplexity_rise"] > plain["perplexity_rise"],
            "right sums": row["right"] < plain["right"],
        }
        if worse := [what for what, is_worse in loses.items() if is_worse]:
            parts.append(f"worse than rounding to nearest (below) in {' and '.join(worse)}, so not recommended")
    if row["compute"] == "int4":
        parts.append("the model's weights are on a grid of 4 bits already, so a copy of 4 bits rounds a second time")
    return "; ".join(parts)


def _on_this_cpu(folder: Path) -> dict[str, Any]:
    """How much smaller all weights are, and how much faster answers, in INT4 and INT8 than in bfloat16 (ablation)."""
    stored = read_results(folder, "ablation", AblationResults)
    variants = {} if stored is None else {variant.compute: variant for variant in stored[1].computes}
    if not {"int4-int8", "bfloat16"} <= variants.keys():
        return {}
    ours, base = variants["int4-int8"], variants["bfloat16"]
    smaller = {"smaller": base.weights_mb / ours.weights_mb}
    fast, slow = ours.figures["out_tok_s"], base.figures["out_tok_s"]
    if fast is None or slow is None:
        return smaller
    return smaller | {"speed": f"{fast.median / slow.median:.2f}× of bfloat16 on the CPU"}


_DERIVED: dict[str, Callable[[Path], Any]] = {
    "effects": _effects,
    "step-growth": _step_growth,
    "attention-shares": _attention_shares,
    "newest-proxy": _proxy,
    "sweep-answers": _sweep_answers,
    "knee": _knee,
    "ends": _ends,
    "utilisation": _utilisation,
    "first-day": _first_day,
    "methods": _methods,
}
