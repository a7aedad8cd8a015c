"""Marks of a chart's axis: few digits, so that their labels are the values; and amounts of money."""

import pytest

from gateway.operations.dashboard.html.charts import ticks, top_of
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
