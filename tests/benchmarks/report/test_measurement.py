"""Measurements on disk: cut short they go on, finished they are replaced."""

import pytest

from benchmarks.report.measured import MeasurementError
from benchmarks.report.measurement import Measurement

SETTINGS = {"levels": [1, 2]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "sweep.jsonl"


def test_a_measurement_reads_back_as_it_was_written(path):
    written = Measurement.begin("sweep", SETTINGS, path)
    written.add({"round": 0, "level": 1, "tok_s": 2.5})
    written.finish({"knee": 1})

    found = Measurement.read(path)

    assert (found.head, found.rows, found.results) == (written.head, written.rows, {"knee": 1})
    assert found.finished == written.finished
    assert found.head.machine["cpus"] >= 1


def test_one_that_was_cut_short_goes_on_without_its_broken_last_line(path):
    Measurement.begin("sweep", SETTINGS, path).add({"round": 0, "level": 1})
    with path.open("ab") as file:
        file.write(b'{"row": {"round": 0, "lev')

    again = Measurement.begin("sweep", SETTINGS, path)
    again.add({"round": 0, "level": 2})

    assert again.find(round=0, level=1)
    assert again.find(round=1, level=1) is None
    assert Measurement.read(path).rows == [{"round": 0, "level": 1}, {"round": 0, "level": 2}]


@pytest.mark.parametrize("other", [("sweep", {"levels": [1]}), ("ablation", SETTINGS)])
def test_rows_of_another_kind_or_with_other_settings_are_not_continued(path, other):
    Measurement.begin("sweep", SETTINGS, path).add({"level": 1})

    assert Measurement.begin(*other, path).rows == []


def test_a_finished_one_is_measured_again(path):
    first = Measurement.begin("sweep", SETTINGS, path)
    first.add({"level": 1})
    first.finish({})

    assert Measurement.begin("sweep", SETTINGS, path).rows == []


def test_a_finished_one_stands_if_it_is_to_be_kept(path):
    first = Measurement.begin("sweep", SETTINGS, path)
    first.add({"level": 1})
    first.finish({"knee": 1})
    content = path.read_bytes()

    kept = Measurement.begin("sweep", SETTINGS, path, keep=True)
    kept.finish({"knee": 2})

    assert (kept.rows, kept.results) == ([{"level": 1}], {"knee": 1})
    assert path.read_bytes() == content
    assert Measurement.begin("sweep", {"levels": [3]}, path, keep=True).rows == []


@pytest.mark.parametrize("content", [b"", b"[1]\n", b"text\n"])
def test_what_is_no_measurement_is_refused_by_name(path, content):
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(MeasurementError, match=r"sweep\.jsonl does not begin like a measurement"):
        Measurement.read(path)


def test_a_broken_line_in_the_middle_is_refused_by_number(path):
    Measurement.begin("sweep", SETTINGS, path)
    with path.open("ab") as file:
        file.write(b'{"row": \n{"row": {}}\n')

    with pytest.raises(MeasurementError, match="line 2"):
        Measurement.read(path)
