"""The command `aio classifier pretrain`, independent of the command-line library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from classifier.features.routing_input import routing_input_of_text
from classifier.training.data.dataset import data_folder, load_outcomes
from classifier.training.recipes.pretrain import PretrainSettings, pretrain
from classifier.training.recipes.training_loop import Progress


@dataclass(frozen=True)
class PretrainOutcome:
    """The written checkpoint and its masked-language-modelling loss on held-out prompts, nats."""

    folder: Path
    texts: int
    valid_loss: float
    losses: list[tuple[int, float]]


def pretrain_command(
    output: Path,
    settings: PretrainSettings,
    *,
    data: Path | None = None,
    hold: Sequence[str] = (),
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> PretrainOutcome:
    """Train a tokeniser and a DistilBERT from scratch on the prompts of the train split, into the folder `output`.

    Domains in `hold` are left out. The state is kept in `<output>.state` until the end: call again to resume after an
    interruption. Raises `TrainingDataError` if the data are missing or `output` exists.
    """
    rows = [row for row in load_outcomes(data or data_folder()) if row.split == "train" and row.domain not in hold]
    texts = [routing_input_of_text(row.prompt).turn for row in rows]
    last = Progress(key="")

    def report(now: Progress, steps: int) -> None:
        nonlocal last
        last = now
        progress(f"masked words, valid loss {now.losses[-1][1]:.2f}", now.step / steps)

    progress("training the tokeniser", 0.0)
    work = output.with_name(f"{output.name}.state")
    folder = pretrain(texts, output, settings, work=work, report=report)
    return PretrainOutcome(folder, len(texts), last.best if last.best is not None else float("nan"), last.losses)
