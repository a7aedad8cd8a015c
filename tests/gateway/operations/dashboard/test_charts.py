"""Marks of a chart's axis: few digits, so that their labels are the values; and amounts of money."""

import pytest

from gateway.operations.dashboard.html.charts import ticks, time_marks, top_of
from gateway.operations.dashboard.html.rendering import TEMPLATES


@pytest.mark.parametrize(
    ("most", "marks"),
    [
        (9, [0, 2, 4, 6, 8, 10]),
        (1, [0, 1]),
        (2, [0, 1, 2]),
        (4, [0, 1, 2, 3, 4, 5]),
        (17, [0, 5, 10, 15, 20]),
        (22, [0, 5, 10, 15, 20, 25]),
        (0, [0, 1]),
    ],
)
def test_counts_are_marked_at_whole_numbers(most: float, marks: list[float]) -> None:
    assert [tick.value for tick in ticks(top_of([most]), whole=True)] == marks


@pytest.mark.parametrize("most", [0.013, 0.2, 0.25, 0.9, 1.4, 2.2, 3.0, 7.7, 180.0, 2400.0])
def test_other_values_are_marked_in_steps_that_three_digits_show(most: float) -> None:
    values = [tick.value for tick in ticks(top_of([most]))]
    assert (values[0], values[-1]) == (0, top_of([most]))
    assert len(values) <= 6
    assert [float(f"{value:.3g}") for value in values] == pytest.approx(values, rel=1e-12)


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0.0, "$0.00"), (0.0391, "$0.039"), (-0.0391, "-$0.039"), (1234.5, "$1,234.50"), (-1234.5, "-$1,234.50")],
)
def test_the_sign_of_an_amount_stands_before_the_dollar(usd: float, text: str) -> None:
    assert TEMPLATES.filters["usd"](usd) == text


@pytest.mark.parametrize(
    ("length", "bucket", "labels"),
    [
        (900, 60, ["10:01", "10:04", "10:06", "10:08", "10:10", "10:12", "now"]),
        (3600, 60, ["10:01", "10:10", "10:20", "10:30", "10:40", "10:50", "now"]),
        (86_400, 900, ["10:01", "16:00", "20:00", "00:00", "04:00", "now"]),
        (604_800, 7200, ["May 15", "May 17", "May 18", "May 19", "May 20", "May 21", "now"]),
    ],
)
def test_times_are_marked_where_they_are_round(length: int, bucket: int, labels: list[str]) -> None:
    begin = 1_747_303_260.0
    assert [mark.label for mark in time_marks([begin + n * bucket for n in range(length // bucket)])] == labels
