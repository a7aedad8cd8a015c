"""The modules of the project that a running `aio serve` has imported, in the gateway's process and in the cores', and
their lines of code.

`python -m tests.gateway.imported_modules [CATALOG]` prints the lines by package and folder, those imported and all. A
line of code is neither blank nor a comment alone. The catalogue is the laptop's unless another one is named; its
models are loaded, and one request is answered.
"""

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

from tests.support.served import served

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "tiers", "classifier", "inference_core", "quality", "migrations")
# Python's own report on each import, of every process that inherits it.
REPORTED = {"PYTHONPROFILEIMPORTTIME": "1"}
_REPORT = re.compile(r"import time: .*\| +([\w.]+)$", re.MULTILINE)
ASKED = {"model": "auto", "prompt": "Hello", "max_tokens": 1}


class Lines(NamedTuple):
    """Lines of code of a folder: of its imported modules, and of all."""

    imported: int
    all: int


def imported_modules(data: Path, cache: Path, *options: str) -> set[str]:
    """Serve with these options of `aio serve`, answer a request, and return the names of all modules imported until
    then."""
    with served(data, cache, *options, environment=REPORTED) as aio:
        aio.until_whole()
        aio.admin.post("/v1/completions", json=ASKED).raise_for_status()
        return set(_REPORT.findall((data / "log").read_text(errors="replace")))


def lines_by_folder(imported: Set[str], depth: int) -> dict[str, Lines]:
    """Count by folders of `depth` names, `gateway/batches` having two."""
    some, every = Counter[str](), Counter[str]()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            folder, lines = "/".join(parts[:-1][:depth]), _lines_of(file)
            every[folder] += lines
            if ".".join(parts).removesuffix(".__init__") in imported:
                some[folder] += lines
    return {folder: Lines(some[folder], every[folder]) for folder in sorted(every)}


def _lines_of(file: Path) -> int:
    lines = (line.strip() for line in file.read_text().splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def main(options: list[str]) -> None:
    """Print the lines by package and folder."""
    with tempfile.TemporaryDirectory() as folder:
        imported = imported_modules(Path(folder), Path.home() / ".cache/aio", *options)
    for depth in (2, 1):
        print(f"{'':<32}{'imported':>10}{'all':>10}")
        counts = lines_by_folder(imported, depth)
        for name, lines in counts.items():
            print(f"{name:<32}{lines.imported:>10,}{lines.all:>10,}")
    print(f"{'all':<32}{sum(n.imported for n in counts.values()):>10,}{sum(n.all for n in counts.values()):>10,}")


if __name__ == "__main__":
    main(["--catalog", sys.argv[1]] if sys.argv[1:] else [])
