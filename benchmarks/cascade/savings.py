"""`python -m benchmarks savings`: what agreement saves on every recorded ladder, in one measurement and its table."""

from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from benchmarks.cascade.figures import ENOUGH, Worth, without_labels
from benchmarks.cascade.recorded import read_answers
from benchmarks.report.markdown import markdown
from benchmarks.report.measurement import Measurement
from classifier.training.data.dataset import data_folder
from gateway.cli.options import FOLDER, NEW_FILE

PRICES = (1.0, 5.0, 30.0)
TARGET = 0.9


class Ladder(NamedTuple):
    """Recorded answers of three models, the cheapest first."""

    file: str
    source: str | None
    models: tuple[str, str, str]


_LARGE_LLAMA, _SONNET = "Meta-Llama-3.1-70B-Instruct", "claude-3-5-sonnet-20241022"
_MMLU = "mmlu_pro.jsonl.gz"
_REASONING = ("meta-llama_llama-4-scout", "meta-llama_llama-4-maverick", "openai_o3-mini")
LADDERS = {
    "mmlu_pro, two makers": Ladder(_MMLU, None, ("gemini-1.5-flash-002", "Meta-Llama-3_1-70B-Instruct", "gpt4o")),
    "mmlu_pro, 8B and 70B": Ladder(_MMLU, None, ("Meta-Llama-3_1-8B-Instruct", "Meta-Llama-3_1-70B-Instruct", "gpt4o")),
    "gsm8k": Ladder("zeroeval.jsonl.gz", "zeroeval_gsm8k", ("Meta-Llama-3.1-8B-Instruct", _LARGE_LLAMA, _SONNET)),
    "crux": Ladder("zeroeval.jsonl.gz", "zeroeval_crux", ("gpt-4o-mini-2024-07-18", "Qwen2.5-72B-Instruct", _SONNET)),
    "evouna": Ladder("evouna.jsonl.gz", None, ("gpt35", "fid", "gpt4")),
    "reasoning_gym": Ladder("reasoning_gym.jsonl.gz", None, _REASONING),
}


class Saving(Worth, frozen=True, kw_only=True):
    """The worth of agreement on a ladder of `LADDERS`, where every request asks for it and nothing was verified."""

    ladder: str
    prompts: int


class SavingResults(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of `LADDERS`."""

    enough: float
    """Share of the strongest model's quality at which costs are compared."""
    savings: list[Saving]


@click.command()
@click.option("--data", type=FOLDER, help="Folder of the recorded files.  [AIO_DATA; ../shared/data]")
@click.option("--out", type=NEW_FILE, required=True, help="File of the measurement; one that was cut short goes on.")
def savings(data: Path | None, out: Path) -> None:
    """Measure the stage of agreement on six recorded ladders of three tiers, half a minute. Other work on the machine
    does not change the figures.

    Example: python -m benchmarks savings --out docs/measurements/savings.jsonl
    """
    measurement = Measurement.begin("savings", {"prices": PRICES, "target": TARGET, "seed": 0}, out)
    for name, ladder in LADDERS.items():
        if measurement.find(ladder=name) is not None:
            continue
        try:
            answers = (data or data_folder()) / "answers" / ladder.file
            rows = read_answers(answers, ladder.models, ladder.source, None)
        except (ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error
        worth = msgspec.to_builtins(without_labels(rows, PRICES, TARGET, 0))
        measurement.add({"ladder": name, "prompts": len({row.prompt for row in rows})} | worth)
    results = SavingResults(enough=ENOUGH, savings=msgspec.convert(measurement.rows, list[Saving]))
    measurement.finish(msgspec.to_builtins(results))
    click.echo(savings_table(results))


def savings_table(results: SavingResults) -> str:
    """A row for each ladder; costs and qualities are shares of the strongest model's."""
    enough = f"cost at {results.enough:.0%} (lottery)"
    head = ["ladder", "prompts", "asked, agreed of these", "cost / quality", "gain", "shuffled", "over domains", enough]
    rows = [
        [
            each.ladder,
            f"{each.prompts:,}",
            f"{each.asked:.0%}, {each.agreed:.0%}",
            f"{each.cost:.0%} / {each.quality:.0%}",
            f"{each.gain:+.2f} [{each.gain_low:+.2f}, {each.gain_high:+.2f}]",
            f"{each.shuffled_gain:+.2f}",
            f"{each.gain_over_domains:+.2f}",
            f"{each.cost_at_98:.0%} ({each.lottery_cost_at_98:.0%})",
        ]
        for each in results.savings
    ]
    return markdown(head, rows)
