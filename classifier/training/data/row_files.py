"""The rows of an evaluation: the public outcomes' folder, or any file of rows in the same format."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from classifier.errors import TrainingDataError
from classifier.training.data.dataset import EXACT_METRICS, FILE, OutcomeRow, data_folder, load_outcomes

# Beside the public outcomes' own exact metrics: what other collections call a verdict of right or wrong.
VERDICTS = (*EXACT_METRICS, "judge", "mixed")
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class EvaluationRows:
    """`train` and `valid` fit and tune what is compared; `measured` are the rows of the split asked for; `every` all
    rows of the file. `borrowed`: training rows come from the public outcomes because the file has none."""

    train: list[OutcomeRow]
    valid: list[OutcomeRow]
    measured: list[OutcomeRow]
    every: list[OutcomeRow]
    borrowed: bool

    def without(self, hold: Sequence[str]) -> "EvaluationRows":
        """The same without rows of the domains `hold`, except that `every` stays."""
        kept = [[row for row in rows if row.domain not in hold] for rows in (self.train, self.valid, self.measured)]
        return EvaluationRows(kept[0], kept[1], kept[2], every=self.every, borrowed=self.borrowed)

    def held(self, hold: Sequence[str]) -> list[OutcomeRow]:
        """All rows of the domains `hold`, of any split: they train nothing, so each may be measured."""
        return [row for row in self.every if row.domain in hold]


def read_rows(data: Path | None, split: str) -> EvaluationRows:
    """Rows from `data`: a folder with routing_outcomes.jsonl.gz (None: `AIO_DATA` or ../shared/data), or a file of
    rows, gzipped or not. A file without training rows borrows the public outcomes' where they are found.

    Raises `TrainingDataError` for a missing or damaged file and for a split without rows.
    """
    every = _rows(data) if data is not None and data.is_file() else load_outcomes(data or data_folder())
    if split not in SPLITS:
        raise TrainingDataError(f"split is {split!r}; allowed are {', '.join(SPLITS)}.")
    parts = {name: [row for row in every if row.split == name] for name in SPLITS}
    if not parts[split]:
        raise TrainingDataError(f"the data have no row of split {split!r}; they have {len(every)} rows in all.")
    borrowed = not (parts["train"] and parts["valid"])
    if borrowed and (data_folder() / FILE).is_file():
        measured = {row.prompt for row in parts[split]}
        public = [row for row in load_outcomes(data_folder()) if row.prompt not in measured]
        parts |= {name: [row for row in public if row.split == name] for name in ("train", "valid")}
    return EvaluationRows(parts["train"], parts["valid"], parts[split], every, borrowed)


def _rows(path: Path) -> list[OutcomeRow]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            rows = [msgspec.json.decode(line, type=OutcomeRow) for line in file if line.strip()]
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise TrainingDataError(f"{path}: {error}") from error
    return [row for row in rows if row.metric in VERDICTS]
