"""The rows of a measurement, whether under a head or as plain JSON lines."""

import json
from pathlib import Path
from typing import Any


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows in order; none without the file."""
    if not path.is_file():
        return []
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return [line.get("row", line) for line in lines]
