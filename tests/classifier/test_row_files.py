"""Files of rows with known outcomes: which are read, and what is said of those that are not."""

import gzip
from pathlib import Path

import msgspec
import pytest
from synthetic_outcomes import generated_rows

from classifier.errors import TrainingDataError
from classifier.training.data.dataset import OutcomeRow
from classifier.training.data.row_files import read_rows


def write_rows(path: Path, rows: list[OutcomeRow]) -> Path:
    path.write_bytes(gzip.compress(b"\n".join(map(msgspec.json.encode, rows))))
    return path


def test_data_without_the_split_or_of_another_format_are_refused(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl.gz", [r for r in generated_rows(20) if r.split == "train"])
    with pytest.raises(TrainingDataError, match="no row of split 'test'"):
        read_rows(rows, "test")
    (tmp_path / "bad.jsonl").write_text("{}")
    with pytest.raises(TrainingDataError, match=r"bad\.jsonl"):
        read_rows(tmp_path / "bad.jsonl", "test")
