"""Real prompts for tests, from `AIO_DATA` or next to the checkout, never part of it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from classifier.training.data.dataset import data_folder


def data_file(name: str) -> Path:
    """Return the path of a data file; skip the calling test without it."""
    path = data_folder() / name
    if not path.exists():
        pytest.skip(f"needs {name}: set AIO_DATA to the folder that holds it (looked in {path.parent})")
    return path


def rows(name: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The first rows of a JSONL file, gzipped or not."""
    path = data_file(name)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return [json.loads(line) for _, line in zip(range(limit or 10**9), lines, strict=False)]
