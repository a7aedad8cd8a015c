"""Texts of the report get their figures from files, and parts without figures are left out."""

import json
from pathlib import Path

import pytest

from benchmarks.report.measured import MeasurementError
from benchmarks.sources.figures import Figures, NoFigure, Template


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    rows = [{"step": "decode", "size": 8, "ms": 4.0}, {"step": "decode", "size": 32, "ms": 10.0}, {"step": "prompt"}]
    (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    head = {"measurement": "m", "settings": {"model": "a"}, "machine": {"processor": "P", "cpus": 2}, "started": "2026"}
    spread = {"median": 0.25, "low": 0.2, "high": 0.5}
    end = {"results": {"cost": spread, "none": None}, "finished": "now"}
    (tmp_path / "kept.jsonl").write_text("\n".join(map(json.dumps, [head, {"row": {"ms": 1.0}}, end])))
    return Figures(tmp_path, {"double": lambda folder: 2.0}, {"named": "of {kept[settings][model]}"})


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{steps[rows][size=32][ms]:.1f} ms", "10.0 ms"),
        ("{steps[rows][step=decode][ms]:least|.0f} to {steps[rows][step=decode][ms]:most|.0f}", "4 to 10"),
        ("{kept[results][cost]:inverse|.1f} and {kept[results][cost]:rest|.0%}", "4.0 and 75%"),
        ("{kept[results][cost]:more|+.0%}, {kept[results][cost]:times}", "-75%, 0.25× [0.20 to 0.50]"),
        ("{kept[rows][ms]:number} {named} {double:g}", "1.00 of a 2"),
        ({"of": "steps[rows][step=decode]", "each": "{ms:.0f} at {size}", "join": " or "}, "4 at 8 or 10 at 32"),
        ({"of": "steps[rows]", "each": "{ms:.0f}"}, "4, 10"),
        (["{double:g} times", "{kept[results][none]:g}", "{absent[rows][ms]:g}"], "2 times"),
    ],
)
def test_places_have_the_figures_of_files(figures: Figures, template: Template, text: str) -> None:
    assert figures.text(template) == text


@pytest.mark.parametrize("template", ["{absent[rows][ms]:g}", "{steps[rows][size=9][ms]:g}", ["{kept[results][none]}"]])
def test_a_text_without_its_figures_is_none(figures: Figures, template: Template) -> None:
    with pytest.raises(NoFigure):
        figures.text(template)


def test_a_damaged_file_is_no_missing_one(figures: Figures, tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text("no rows\n")
    with pytest.raises(MeasurementError, match=r"steps\.jsonl does not hold rows"):
        figures.text("{steps[rows][ms]:g}")
