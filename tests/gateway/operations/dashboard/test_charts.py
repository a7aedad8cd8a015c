"""Marks of a chart's axis: few digits, so that their labels are the values; and amounts of money."""

import itertools
import re

import pytest

from gateway.operations.dashboard.html.charts import (
    Event,
    Mark,
    Plane,
    Series,
    Timeline,
    event_marks,
    ticks,
    time_marks,
    top_of,
)
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
        (3600, 60, ["10:01", "10:20", "10:30", "10:40", "10:50", "now"]),
        (86_400, 900, ["10:01", "16:00", "20:00", "May 16", "04:00", "now"]),
        (604_800, 7200, ["May 15", "May 17", "May 18", "May 19", "May 20", "May 21", "now"]),
        (30 * 86_400, 86_400, ["May 15", "May 22", "May 29", "Jun 05", "now"]),
    ],
)
def test_times_are_marked_where_they_are_round(length: int, bucket: int, labels: list[str]) -> None:
    begin = 1_747_303_260.0
    assert [mark.label for mark in time_marks([begin + n * bucket for n in range(length // bucket)])] == labels


@pytest.mark.parametrize("hour", range(1, 24))
def test_a_day_has_the_name_of_the_next_where_it_begins_and_no_label_over_another(hour: int) -> None:
    begin = 1_747_267_200.0 + hour * 3600 + 60
    marks = time_marks([begin + n * 900 for n in range(96)])
    assert "May 16" in [mark.label for mark in marks]
    assert all(left.sides[1] < right.sides[0] for left, right in itertools.pairwise(marks))


def test_events_that_are_near_to_each_other_share_a_line() -> None:
    times = [60.0 * n for n in range(61)]
    ats = {"A": -5, "B": 1800, "C": 1830, "D": 3599, "E": 9999}
    events = [Event(at, letter, f"{letter} at {at}") for letter, at in ats.items()]

    marks = event_marks(times, events)

    assert [(mark.label, round(mark.place), mark.anchor) for mark in marks] == [
        ("A", 0, "start"), ("B–C", 300, "middle"), ("D–E", 600, "end")
    ]  # fmt: skip
    assert marks[1].title == "B at 1800; C at 1830"


def test_the_values_of_a_chart_have_one_unit() -> None:
    series = [Series(name="p50", values=[0.04, 0.2, None]), Series(name="p95", values=[0.3, 1.7, 0.9])]
    shown = Timeline(title="First token", times=[0.0, 60.0, 120.0], series=series, format="seconds")

    drawn = _drawn("{{ c.timeline(shown) }}", shown=shown)

    marks = re.findall(r'<text class="axis" x="-8"[^>]*>([^<]*)<', drawn)
    assert {mark.split()[1] for mark in marks} == {"s"}
    assert re.findall(r'<td class="num"[^>]*>([^<]*)<', drawn) == ["0.04 s", "0.3 s", "0.2 s", "1.7 s", "–", "0.9 s"]


def test_charts_have_headings_and_labels_without_long_fractions() -> None:
    third = Mark(name="measured", x=0.1633333333, y=1 / 3)
    target = "{% call c.plane('Target', plane, [], [third], 'cost', 'quality') %}{% endcall %}"
    for chart in (target, "{{ c.shares('Tiers', [('small', 1, 1)]) }}"):
        drawn = _drawn(chart, plane=Plane(), third=third)
        assert re.search(r"<figcaption><h3>(Target|Tiers)</h3></figcaption>", drawn), chart
        labels = re.findall(r'aria-label="([^"]*)"', drawn) + re.findall(r"<title>([^<]*)<", drawn)
        assert not [label for label in labels if re.search(r"\d\.\d{3}", label)]


def _drawn(chart: str, **known: object) -> str:
    text = '{% import "charts.html" as c with context %}' + chart
    return TEMPLATES.from_string(text).render(**known)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.1234, 3, "0.123"),
        (12.34, 3, "12.3"),
        (1234.5, 3, "1,234"),
        (120.0, 2, "120"),
        (-4000.0, 3, "-4,000"),
        (None, 3, "–"),
    ],
)
def test_large_numbers_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert TEMPLATES.filters["number"](value, digits) == text
