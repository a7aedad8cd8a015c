"""How many lines each room of the house has: a folder of a package, with its `__init__` and its migrations.

`python -m tests.lint.rooms` prints the table. `python -m tests.lint.rooms --write` sets the bounds in `rooms.toml` to
today's counts. A room that grows past its bound needs a commit that raises it and says what for.
"""

import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
BOUNDS = Path(__file__).with_name("rooms.toml")
PRODUCT = ("gateway", "classifier", "tiers", "inference_core", "quality", "migrations")
PACKAGES = (*PRODUCT, "benchmarks", "tests")
RECORDINGS = "tests/recordings"
MADE_BY_PROGRAMS = ("classifier/artefacts/", "tiers/catalogs/")
"""Folders whose JSON programs measure or train. It does not count. The catalogues there are TOML, and count."""

KINDS = {
    ".py": "python",
    ".toml": "rows",
    ".json": "rows",
    ".html": "templates",
    ".css": "templates",
    ".js": "templates",
    ".mako": "templates",
    ".cpp": "native",
    ".h": "native",
}
COLUMNS = ("python", "rows", "templates", "native")


class Room(msgspec.Struct):
    """Physical lines of a room by what they are."""

    python: int = 0
    rows: int = 0
    """Rows of data that people write: TOML and JSON."""
    templates: int = 0
    """Pages, their style and their scripts, and the template of a migration."""
    native: int = 0
    """C++ of the kernels."""

    @property
    def lines(self) -> int:
        return self.python + self.rows + self.templates + self.native

    def add(self, kind: str, lines: int) -> None:
        setattr(self, kind, getattr(self, kind) + lines)


def room_of(path: str) -> str:
    """Return the room of a file: its package and the folder below it, or the package alone for files at its top."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def kind_of(path: str) -> str | None:
    """Return what the lines of a file count as; None where they do not count."""
    suffix = Path(path).suffix
    if path == "tests/lint/rooms.toml" or (suffix == ".json" and path.startswith(MADE_BY_PROGRAMS)):
        return None
    return KINDS.get(suffix)


def count(root: Path, paths: Iterable[str]) -> dict[str, Room]:
    """Count the lines of `paths`, which are relative to `root`, by room."""
    rooms: defaultdict[str, Room] = defaultdict(Room)
    for path in paths:
        if (kind := kind_of(path)) is not None:
            rooms[room_of(path)].add(kind, (root / path).read_bytes().count(b"\n"))
    return dict(sorted(rooms.items()))


def tracked(root: Path) -> list[str]:
    """Return the files of all packages that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PACKAGES]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in dict.fromkeys(names) if (root / name).is_file()]


def bounds() -> dict[str, int]:
    """Return the lines that each room may have."""
    return tomllib.loads(BOUNDS.read_text(encoding="utf-8"))


def totals(rooms: dict[str, Room]) -> dict[str, int]:
    """Return the lines of the product with its rows and templates, and of tests, recordings and benchmarks."""

    def below(*names: str) -> int:
        return sum(room.lines - room.native for name, room in rooms.items() if name.split("/")[0] in names)

    recordings = rooms.get(RECORDINGS, Room())
    return {
        "product (Python, rows, templates)": below(*PRODUCT),
        "product, Python alone": sum(room.python for name, room in rooms.items() if name.split("/")[0] in PRODUCT),
        "tests (without rows of recordings)": below("tests") - recordings.rows,
        "recordings": recordings.rows,
        "benchmarks": below("benchmarks"),
    }


def table(rooms: dict[str, Room]) -> str:
    """Return the rooms with their bounds, and the totals, as text."""
    allowed = bounds()
    lines = [f"{'room':34}{''.join(f'{name:>11}' for name in COLUMNS)}{'bound':>11}"]
    for name, room in rooms.items():
        cells = "".join(f"{getattr(room, column):>11,}" for column in COLUMNS)
        lines.append(f"{name:34}{cells}{allowed.get(name, 0):>11,}")
    lines += ["", *(f"{name:34}{lines_:>11,}" for name, lines_ in totals(rooms).items())]
    return "\n".join(lines)


def write_bounds(rooms: dict[str, Room]) -> None:
    """Set each room's bound to its lines."""
    head = (
        "# The lines that each room may have. A commit that raises one says what for.\n"
        "# `python -m tests.lint.rooms --write` sets them to today's counts.\n"
    )
    rows = "".join(f'"{name}" = {room.lines}\n' for name, room in rooms.items())
    BOUNDS.write_text(head + rows, encoding="utf-8")


def main(arguments: list[str]) -> None:
    rooms = count(ROOT, tracked(ROOT))
    if "--write" in arguments:
        write_bounds(rooms)
    sys.stdout.write(table(rooms) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
