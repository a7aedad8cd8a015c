"""A room of the house grows only in a commit that raises its bound."""

from pathlib import Path

from tests.lint.rooms import ROOT, Room, bounds, count, kind_of, room_of, totals, tracked

LOOSE = 0.10
"""A bound may be this much above its room. A room that shrank by more takes its bound along."""


def test_no_room_has_more_lines_than_its_bound() -> None:
    allowed = bounds()
    grown = {name: room.lines for name, room in count(ROOT, tracked(ROOT)).items() if room.lines > allowed.get(name, 0)}
    assert grown == {}, "delete as much as you add, or raise the bound in tests/lint/rooms.toml and say what for"


def test_a_room_that_shrank_takes_its_bound_along() -> None:
    rooms = count(ROOT, tracked(ROOT))
    gone = set(bounds()) - set(rooms)
    loose = {name for name, most in bounds().items() if most * (1 - LOOSE) > rooms.get(name, Room()).lines + 100}
    assert gone | loose == set(), "lower the bound: python -m tests.lint.rooms --write"


def test_a_file_counts_in_its_folder_below_the_package_and_by_its_kind(tmp_path: Path) -> None:
    files = {
        "tiers/build.py": "a\n",
        "tiers/dialects/quirks/a.toml": "a\nb\n",
        "tiers/dialects/deep/er.py": "a\n",
        "gateway/admin/page.html": "a\n",
        "classifier/native/a.h": "a\n",
        "classifier/artefacts/v1/manifest.json": "a\n",
        "tests/recordings/chat/a.json": "a\nb\nc\n",
        "tests/recordings/playing.py": "a\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    rooms = count(tmp_path, files)
    assert rooms == {
        "classifier/native": Room(native=1),
        "gateway/admin": Room(templates=1),
        "tests/recordings": Room(python=1, rows=3),
        "tiers": Room(python=1),
        "tiers/dialects": Room(python=1, rows=2),
    }
    assert totals(rooms) == {
        "product (Python, rows, templates)": 5,
        "product, Python alone": 2,
        "tests (without rows of recordings)": 1,
        "recordings": 3,
        "benchmarks": 0,
    }


def test_measured_files_are_no_rows() -> None:
    assert kind_of("tiers/catalogs/ladder_outcomes.json") is None
    assert kind_of("tiers/catalogs/ladder.toml") == "rows"
    assert room_of("tiers/catalogs/ladder.toml") == "tiers/catalogs"
