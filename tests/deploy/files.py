"""Locations of the files under test, and a runner for the tools that check them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def read_yaml(path: Path) -> Any:
    """Read a file of one document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end; return its output, whether it fails or not."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=60)


def strings(value: Any) -> Iterator[str]:
    """Yield every string of a document, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value
