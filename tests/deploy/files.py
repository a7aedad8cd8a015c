"""Where the files under test are, and what runs the tools that judge them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def read_yaml(path: Path) -> Any:
    """A file of one document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """A tool, to its end; what it says, whether it fails or not."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=60)


def strings(value: Any) -> Iterator[str]:
    """Every text of a document, at whatever depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value
