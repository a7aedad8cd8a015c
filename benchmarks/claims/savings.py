"""What routing saves on recorded answers of real models, against always the strongest one (SPEC RT-09, source 004)."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.cascade.figures import ENOUGH, without_labels
from benchmarks.cascade.recorded import read_answers
from benchmarks.report.measurement import Measurement

PRICES = (1.0, 5.0, 30.0)
TARGET = 0.9


class Ladder(NamedTuple):
    """Recorded answers of three models, the cheapest first."""

    file: str
    source: str | None
    models: tuple[str, str, str]


_LLAMA = "Meta-Llama-3.1-70B-Instruct"
LADDERS = {
    "mmlu_pro, two makers": Ladder(
        "mmlu_pro.jsonl.gz", None, ("gemini-1.5-flash-002", "Meta-Llama-3_1-70B-Instruct", "gpt4o")
    ),
    "mmlu_pro, 8B and 70B": Ladder(
        "mmlu_pro.jsonl.gz", None, ("Meta-Llama-3_1-8B-Instruct", "Meta-Llama-3_1-70B-Instruct", "gpt4o")
    ),
    "gsm8k": Ladder(
        "zeroeval.jsonl.gz", "zeroeval_gsm8k", ("Meta-Llama-3.1-8B-Instruct", _LLAMA, "claude-3-5-sonnet-20241022")
    ),
    "crux": Ladder(
        "zeroeval.jsonl.gz",
        "zeroeval_crux",
        ("gpt-4o-mini-2024-07-18", "Qwen2.5-72B-Instruct", "claude-3-5-sonnet-20241022"),
    ),
    "evouna": Ladder("evouna.jsonl.gz", None, ("gpt35", "fid", "gpt4")),
    "reasoning_gym": Ladder(
        "reasoning_gym.jsonl.gz", None, ("meta-llama_llama-4-scout", "meta-llama_llama-4-maverick", "openai_o3-mini")
    ),
}


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """`cost` and `quality` of the product's stage of agreement as shares of always the strongest model's, without a
    label; `cost_at_98`: least cost of a mixture with fixed tiers that keeps 98% of its quality, `lottery_cost_at_98`:
    that of fixed tiers alone."""

    ladder: str
    prompts: int
    cost: float
    quality: float
    cost_at_98: float
    lottery_cost_at_98: float


class SavingResults(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of `LADDERS`; `enough`: the share of quality at which costs are compared."""

    enough: float
    savings: list[Saving]


def measure_savings(
    folder: Path, measurement: Measurement, progress: Callable[[str], None] = lambda name: None
) -> SavingResults:
    """Run every ladder of the recorded files in `folder` that `measurement` lacks, and finish it.

    Raises ValueError and OSError for files that are missing or hold no such answers.
    """
    for name, ladder in LADDERS.items():
        if measurement.find(ladder=name) is None:
            progress(name)
            rows = read_answers(folder / ladder.file, ladder.models, ladder.source, None)
            worth = without_labels(rows, PRICES, TARGET, 0)
            saving = Saving(
                ladder=name,
                prompts=len({row.prompt for row in rows}),
                cost=worth.cost,
                quality=worth.quality,
                cost_at_98=worth.cost_at_98,
                lottery_cost_at_98=worth.lottery_cost_at_98,
            )
            measurement.add(msgspec.to_builtins(saving))
    results = SavingResults(enough=ENOUGH, savings=[msgspec.convert(row, Saving) for row in measurement.rows])
    measurement.finish(msgspec.to_builtins(results))
    return results
