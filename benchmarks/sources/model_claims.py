"""Claims about models and their use: what quantising loses, what drafts are worth, what routing saves."""

import re
from pathlib import Path
from typing import Any

from benchmarks.claims.quantised import QuantisedResults, QuantisedRow
from benchmarks.core.speculation import SpeculationResults
from benchmarks.report.measured import AblationResults, read_results
from benchmarks.sources.card import CARD, card_speeds
from benchmarks.sources.claim import NOT_MEASURED, Claim, origin

_ROUNDED = "RTN, 4 bits"
# Source 004's table: memory, loss on MMLU, gain of throughput. How ours are named in `quantised`.
_METHODS = (
    ("SmoothQuant, W8A8", "2.0x; below 0.5%; 1.5 to 1.8x", "SmoothQuant, INT8"),
    ("GPTQ, W4A16", "3.5 to 4.0x; 0.5 to 2%; 2.5 to 3.0x", "GPTQ, 4 bits"),
    ("AWQ, W4A16", "3.5 to 4.0x; 0.3 to 1.5%; 2.5 to 3.2x", "AWQ, 4 bits"),
    ("FP8, E4M3", "2.0x; below 0.2% (004), 0.8 to 1.4 points on MMLU and MATH (002); 1.8 to 2.0x", "FP8, E4M3"),
    # The grid that AWQ and GPTQ start from: what either is worth is what it adds to this.
    ("rounding to nearest, W4A16", "–; the baseline of GPTQ and AWQ; –", _ROUNDED),
    (
        "Q4_K_M (here Q4_1)",
        "3.0 to 3.5x; 0.5 to 2%; 2.0 to 2.5x on a CPU",
        "as it is, INT4 weights and INT8 activations",
    ),
)
_HIDDEN = "99%"
_SAVING = "60 to 80% of the budget is wasted without routing, 65% saved, 3 to 5 times cheaper (004)"
# Ladder, cost and quality of the first day, as shares of the strongest tier's, of the table of replays.
_FIRST_DAY = re.compile(r"^\| (\w+), [\d,]+ held out \| (\d+)% / (\d+)% \|", re.MULTILINE)


def quantisation(folder: Path) -> list[Claim]:
    """Return source 004's table of methods, a row each."""
    found = read_results(folder, "quantised", QuantisedResults)
    rows = []
    for name, source, way in _METHODS:
        row = None if found is None else next((one for one in found[1].rows if one.way == way), None)
        claim = Claim(name=f"{name}: memory; loss; speed", source=source)
        if found is not None and row is not None:
            smaller, cpu_speed = _on_this_cpu(folder) if row.smaller is None else (row.smaller, None)
            on_card = None if row.smaller is None else _on_the_card(folder, row.compute)
            speed = NOT_MEASURED
            if cpu_speed is not None:
                speed = f"{cpu_speed:.2f}× of bfloat16 on the CPU"
            elif on_card is not None:
                speed = f"{on_card:.2f}× of BF16, one answer at a time on one H200"
            chance = "p below 0.01" if row.p_value < 0.01 else f"p = {row.p_value:.2f}"
            setting = (
                f"{found[0].settings['model']}, a model of 135M, against float32; {origin(folder, 'quantised.jsonl')}"
            )
            if on_card is not None:
                setting += f"; speed of an 8B of random weights, {origin(folder, CARD)}"
            claim = Claim(
                name=claim.name,
                source=source,
                here=f"{_times(smaller)}; perplexity {row.perplexity_rise:+.1%}, {-100 * row.loss:+.1f} points of "
                f"right sums ({row.right} of {row.questions}, {row.reference_right} before; {chance}), hidden states "
                f"{row.hidden_cosine:.1%} alike (above {_HIDDEN} in 001); speed {speed}",
                setting=setting,
                why=_why(row, found[1].rows),
            )
        rows.append(claim)
    return rows


def _why(row: QuantisedRow, rows: list[QuantisedRow]) -> str:
    if row.compute == "int4-int8":
        return "the loss is that of the arithmetic; what the file's maker lost is not known here"
    parts = [f"{row.questions} sums of a small model tell a loss of several points, and no smaller one"]
    plain = next((one for one in rows if one.way == _ROUNDED), None)
    if plain is not None and row.compute == plain.compute:
        worse = [what for what, loses in (("perplexity", row.perplexity_rise > plain.perplexity_rise),
                                          ("right sums", row.right < plain.right)) if loses]  # fmt: skip
        if worse:
            parts.append(f"worse than rounding to nearest (below) in {' and '.join(worse)}, so not recommended")
    if row.compute == "int4":
        parts.append("the model's weights are on a grid of 4 bits already, so a copy of 4 bits rounds a second time")
    return "; ".join(parts)


def _on_the_card(folder: Path, compute: str) -> float | None:
    """How much faster the card answers with weights of this arithmetic than with 16 bits; None if not measured."""
    speeds = card_speeds(folder)
    return speeds[compute] / speeds["dense"] if {compute, "dense"} <= speeds.keys() else None


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def _on_this_cpu(folder: Path) -> tuple[float | None, float | None]:
    """How much smaller all weights are, and how much faster answers, in INT4 and INT8 than in bfloat16 (ablation)."""
    found = read_results(folder, "ablation", AblationResults)
    variants = {} if found is None else {one.compute: one for one in found[1].computes}
    if not {"int4-int8", "bfloat16"} <= variants.keys():
        return None, None
    ours, base = variants["int4-int8"], variants["bfloat16"]
    speeds = ours.figures["out_tok_s"], base.figures["out_tok_s"]
    if speeds[0] is None or speeds[1] is None:
        return base.weights_mb / ours.weights_mb, None
    return base.weights_mb / ours.weights_mb, speeds[0].median / speeds[1].median


def drafts(folder: Path) -> list[Claim]:
    """Return the acceptance of drafted tokens, by a model and by prompt lookup."""
    source = "75 to 85% of an 8B for a 70B, 65 to 75% of Phi-3-mini for Mixtral (004)"
    rows = []
    for file, what in (("draft", "INT4 copy drafts for BF16"), ("workloads", "prompt lookup")):
        found = read_results(folder, file, SpeculationResults)
        claim = Claim(name=f"draft acceptance, {what}", source=source if file == "draft" else "the same")
        if found is not None:
            head, results = found
            modes = {one.mode for one in results.worth}
            mode = "on" if "on" in modes else "auto"
            worth = [one for one in results.worth if one.level == 1 and one.mode == mode]
            claim = Claim(
                name=claim.name,
                source=claim.source,
                here=", ".join(f"{one.workload} {one.accepted:.0%}" for one in worth if one.accepted is not None),
                setting=f"{head.settings['model']['name']}, one request at a time; {origin(folder, f'{file}.jsonl')}",
                why="the same weights in two arithmetics, not two models"
                if file == "draft"
                else "nothing is drafted by a model: the text is copied from the prompt",
            )
        rows.append(claim)
    return rows


def savings(folder: Path) -> list[Claim]:
    """Return what comparing cheap answers saves on recorded answers."""
    name = "saving by cheap answers that agree (no routing by the prompt), and times cheaper"
    found = read_results(folder, "savings", dict[str, Any])
    if found is None:
        return [Claim(name=name, source=_SAVING)]
    head, results = found
    costs = {one["ladder"]: one["cost_at_98"] for one in results["savings"]}
    least, most = min(costs.values()), max(costs.values())
    each = ", ".join(f"{ladder} {1 - cost:.0%}" for ladder, cost in costs.items())
    lottery = [1 - one["lottery_cost_at_98"] for one in results["savings"]]
    prices = " : ".join(f"{price:g}" for price in head.settings["prices"])
    return [
        Claim(
            name=name,
            source=_SAVING,
            here=f"{1 - most:.0%} to {1 - least:.0%} ({each}), {1 / most:.1f} to {1 / least:.1f} times",
            setting=f"recorded answers of real models at {prices}, {results['enough']:.0%} of the strongest's quality "
            f"kept, no labels; {origin(folder, 'savings.jsonl')}",
            why=f"another technique than the source's: two cheap tiers are asked, and the strongest where they differ. "
            f"The source counts no lost quality. Fixed tiers mixed in hindsight save {min(lottery):.0%} to "
            f"{max(lottery):.0%}; the source's own arithmetic gives 63% (50% with its checks)",
        )
    ]


def first_day(folder: Path) -> list[Claim]:
    """Return what routing by complexity saves before any label, and the quality that it keeps: the source's technique.

    The replays of whole gateways keep no file; their table is on a page of `folder`'s neighbour `results`.
    """
    name = "saving by routing by complexity, on the first day"
    page = folder.parent / "results" / "quality.md"
    rows = _FIRST_DAY.findall(page.read_text(encoding="utf-8")) if page.is_file() else []
    if not rows:
        return [Claim(name=name, source=_SAVING)]
    kept = [(ladder, 100 - int(cost), int(quality)) for ladder, cost, quality in rows]
    return [
        Claim(
            name=name,
            source=_SAVING,
            here=", ".join(f"{ladder} {saved}% at {quality}% of the quality" for ladder, saved, quality in kept),
            setting="the whole gateway on recorded answers at 1 : 5 : 30 : 100, no labels; "
            "`python -m benchmarks replay LADDER --until retrained`, [quality.md](quality.md)",
            why="quality is the strongest tier's share that is no worse. It is lost, which the source does not count: "
            "no ladder keeps 98%. What labels add is in the same table",
        )
    ]
