"""Geometry of the charts: turns numbers into coordinates of an SVG view box, which the templates draw.

Charts are drawn on the server, so that they work without JavaScript, obey a Content-Security-Policy without inline
style, print, and are readable: every chart comes with a table or labels. A script shows the table's row of the time
that is pointed at.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

WIDTH, HEIGHT = 600.0, 160.0
# Dash patterns by colour, so that lines can be distinguished without colour.
DASHES = {1: "none", 2: "8 4", 3: "2 4", 4: "10 3 2 3", 5: "14 4", 6: "4 2", 7: "10 3 2 3 2 3", 8: "1 3"}


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A line with a value per point of time; None where there is none."""

    name: str
    values: Sequence[float | None]
    colour: int | str = "ink"
    """The number of the tier that it is of; else a name: `ink`, `quiet`, `good`, `warn` or `bad`."""
    dashes: str = "none"


class Event(msgspec.Struct, frozen=True):
    """What happened at a time (epoch seconds): a vertical line with a letter."""

    at: float
    letter: str
    title: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over time, with a value for each of `times` (epoch seconds, evenly spaced)."""

    title: str
    times: Sequence[float]
    series: Sequence[Series]
    format: str
    """Name of the filter that shows a value."""
    events: Sequence[Event] = ()
    """In order of their times."""

    @property
    def top(self) -> float:
        """Return the value at the upper end of the axis."""
        return top_of_all(self.series)


class TimeMark(msgspec.Struct, frozen=True):
    """A mark on the axis of time or of an event: its position, its label, and which part of the label stands there."""

    place: float
    label: str
    anchor: str = "middle"
    title: str = ""

    @property
    def sides(self) -> tuple[float, float]:
        """Where the label begins and ends on a phone, whose letters are the largest."""
        width = len(self.label) * _LETTER
        left = self.place - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return left, left + width


class Tick(msgspec.Struct, frozen=True):
    """A mark on an axis: its position and label."""

    place: float
    value: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A line through points of a plane, in order."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int | str = "ink"
    dashes: str = "none"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a plane; [`low`, `high`] is the interval of its `y`, if any."""

    name: str
    x: float
    y: float
    colour: int | str = "ink"
    low: float | None = None
    high: float | None = None


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges of x and y; points outside are drawn at the edge."""

    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)
    width: float = WIDTH
    height: float = 240.0

    def across(self, x: float) -> float:
        return round(self.width * _part(x, *self.x), 1)

    def down(self, y: float) -> float:
        return round(self.height * (1 - _part(y, *self.y)), 1)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Return the `d` of a path through points."""
        return "".join(f"{'L' if n else 'M'}{self.across(x)} {self.down(y)}" for n, (x, y) in enumerate(points))

    def ticks(self, axis: tuple[float, float]) -> list[float]:
        """Return values for the marks of an axis, both ends included."""
        return [axis[0] + (axis[1] - axis[0]) * n / 5 for n in range(6)]


class Segment(msgspec.Struct, frozen=True):
    """A part of a bar."""

    x: float
    width: float
    share: float


def top_of(values: Sequence[float | None]) -> float:
    """Return a round number not below any value; 1 if none is above 0."""
    most = max((value for value in values if value is not None and math.isfinite(value)), default=0.0)
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(step * size for step in (1, 2, 2.5, 5, 10) if step * size >= most * (1 - 1e-9))


def top_of_all(series: Sequence[Series]) -> float:
    """As `top_of`, over all lines."""
    return top_of([value for line in series for value in line.values])


def ticks(top: float, *, whole: bool = False) -> list[Tick]:
    """Return marks of a vertical axis from 0 to `top` of `top_of`, both included: at most six, in steps of one or few
    digits. `whole`: at whole numbers."""
    parts = 4 if f"{top:e}".startswith("2.0") else 5
    if whole and top / parts % 1:
        parts = int(top) if 1 <= top <= 5 and not top % 1 else 1
    return [Tick(HEIGHT * (1 - i / parts), top * i / parts) for i in range(parts + 1)]


# Steps between marks of time, seconds.
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_STEPS = (
    *(_MINUTE * count for count in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * count for count in (1, 2, 4, 6, 12)),
    *(_DAY * count for count in (1, 2, 7, 14, 30, 60)),
)
_MOST_MARKS = 7
# The width of a letter of a label on a phone, and the least space between labels.
_LETTER, _SPACE = 12.5, 8.0
# Room for the letters of a line and those of the next, of three letters each.
_EVENT_SPACE = 3 * _LETTER + _SPACE
_DATE = "%b %d"


def time_marks(times: Sequence[float]) -> list[TimeMark]:
    """Return marks at round times, UTC, between one at the beginning and one that says "now". A mark whose label would
    lie over another is left out; where a day begins, its name stands in place of the time."""
    begin, end = times[0], times[-1]
    length = end - begin
    step = next((step for step in _TIME_STEPS if length / step <= _MOST_MARKS), _TIME_STEPS[-1])
    form = "%H:%M" if step < _DAY else _DATE
    first = math.ceil(begin / step) * step
    midnights: list[TimeMark] = []
    others: list[TimeMark] = []
    for at in range(first, math.floor(end) + 1, step):
        is_midnight = step < _DAY and not at % _DAY
        mark = _time_mark((at - begin) / length, _time(at, _DATE if is_midnight else form))
        (midnights if is_midnight else others).append(mark)
    ends = [_time_mark(1.0, "now"), _time_mark(0.0, _time(begin, form))]
    marks: list[TimeMark] = []
    for mark in (*midnights, *ends, *others):
        left, right = mark.sides
        if all(right + _SPACE <= other.sides[0] or other.sides[1] + _SPACE <= left for other in marks):
            marks.append(mark)
    return sorted(marks, key=lambda mark: mark.place)


def _time_mark(share: float, label: str, title: str = "") -> TimeMark:
    """Return a mark whose label does not leave the axis."""
    mark_x, half = share * WIDTH, len(label) * _LETTER / 2
    anchor = "start" if mark_x < half else "end" if mark_x > WIDTH - half else "middle"
    return TimeMark(mark_x, label, anchor, title)


def event_marks(times: Sequence[float], events: Sequence[Event]) -> list[TimeMark]:
    """Return lines at the events. Events whose letters would lie over each other share the line of the first."""
    begin, length = times[0], max(times[-1] - times[0], 1.0)
    groups: list[tuple[float, list[Event]]] = []
    for event in events:
        share = min(max((event.at - begin) / length, 0.0), 1.0)
        if groups and (share - groups[-1][0]) * WIDTH < _EVENT_SPACE:
            groups[-1][1].append(event)
        else:
            groups.append((share, [event]))
    return [_time_mark(share, _letters(group), "; ".join(event.title for event in group)) for share, group in groups]


def _letters(events: Sequence[Event]) -> str:
    first, last = events[0].letter, events[-1].letter
    return first if first == last else f"{first}–{last}"


def _time(at: float, form: str) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(form)


def line(values: Sequence[float | None], top: float, width: float = WIDTH) -> str:
    """Return the `d` of a path through the values, evenly spaced; it breaks where a value is missing.

    A value between two breaks becomes a dot.
    """
    step = width / max(len(values) - 1, 1)
    parts: list[str] = []
    drawing = False
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            drawing = False
            continue
        x, y = index * step, HEIGHT * (1 - min(max(value / top, 0.0), 1.0))
        parts.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        alone = not drawing and (index + 1 == len(values) or values[index + 1] is None)
        if alone:
            parts.append("h0.01")
        drawing = True
    return "".join(parts)


def segments(values: Sequence[float]) -> list[Segment]:
    """Cut a bar of `WIDTH` into shares; zero shares have no width."""
    total = math.fsum(values)
    parts, x = [], 0.0
    for value in values:
        share = value / total if total > 0 else 0.0
        parts.append(Segment(round(x, 2), round(share * WIDTH, 2), share))
        x += share * WIDTH
    return parts


def length(value: float | None, top: float, width: float = WIDTH) -> float:
    return 0.0 if value is None or top <= 0 else round(width * min(max(value / top, 0.0), 1.0), 2)


def _part(value: float, least: float, most: float) -> float:
    return min(max((value - least) / (most - least), 0.0), 1.0)
