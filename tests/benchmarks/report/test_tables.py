"""How figures are written."""

import pytest

from benchmarks.report.markdown import markdown, number, ranged, times
from benchmarks.report.measured import Spread


def test_a_table_aligns_names_to_the_left_and_figures_to_the_right():
    assert markdown(["in flight", "tok/s"], [["1", "103"], ["32", "1,343"]]) == "\n".join(
        ["| in flight | tok/s |", "| --------- | ----: |", "| 1         |   103 |", "| 32        | 1,343 |"]
    )


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0.00"), (3.14159, "3.14"), (31.4159, "31.4"), (3141.59, "3,142")]
)
def test_numbers_have_three_figures_or_are_whole(value, text):
    assert number(value) == text


def test_a_range_is_shown_where_rounds_differ():
    assert ranged(Spread(103.0, 100.2, 104.9)) == "103 (100 to 105)"
    assert ranged(Spread(103.2, 103.1, 103.3)) == "103"
    assert times(Spread(2.5, 2.41, 2.62)) == "2.50× [2.41 to 2.62]"
    assert (ranged(None), times(None)) == ("–", "–")
