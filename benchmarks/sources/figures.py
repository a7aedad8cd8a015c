"""Texts with figures of stored measurements in them: `{FILE[KEY][KEY]:FORM}`, so that the tables are data."""

from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

from benchmarks.report.markdown import number, times
from benchmarks.report.measured import Spread
from benchmarks.report.measurement import kept_in, rows_of
from benchmarks.sources.origins import in_words

# A text; `{of, each, join}`: a text for each item of what `of` names; a list of texts, of which those are left out
# whose figures there are not.
Template = str | dict[str, str] | list["str | dict[str, str]"]


class NoFigure(LookupError):
    """A text has a place for a figure that was not measured."""


class Figure:
    """A value of a measurement. `[key]` is a field, of a list the field of each item that has it; `[key=value]` are the
    items of a list with this field. A form may name steps before it, as in `{…:least|inverse|.1f}`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: str) -> "Figure":
        name, is_filter, wanted = key.partition("=")
        value: Any = None
        if isinstance(self.value, list):
            rows = [row for row in self.value if row.get(name) is not None]
            value = [row for row in rows if str(row[name]) == wanted] if is_filter else [row[name] for row in rows]
        elif isinstance(self.value, dict):
            value = self.value.get(name)
        if value is None or value == []:
            raise NoFigure(key)
        return Figure(value)

    def __format__(self, form: str) -> str:
        *steps, form = form.split("|")
        value = self.value
        for step in steps:
            value = _STEPS[step](value)
        if isinstance(value, list):
            value = value[0]
        if form == "times":
            return times(Spread(**value))
        return number(_plain(value)) if form == "number" else format(_plain(value), form)


def _plain(value: Any) -> Any:
    """The median of rounds; other values as they are."""
    return value["median"] if isinstance(value, dict) else value


_STEPS: dict[str, Callable[[Any], Any]] = {
    "least": lambda values: min(map(_plain, values)),
    "most": lambda values: max(map(_plain, values)),
    "inverse": lambda value: 1 / _one(value),
    "rest": lambda value: 1 - _one(value),
    "more": lambda value: _one(value) - 1,
}


def _one(value: Any) -> float:
    return float(_plain(value[0] if isinstance(value, list) else value))


class Figures(Formatter):
    """The figures of the measurements in `folder` by the names of their files: `settings`, `results`, `rows` and
    `origin` of each. `derived` ones are computed from the folder, and `texts` are templates with a name."""

    def __init__(
        self, folder: Path, derived: Mapping[str, Callable[[Path], Any]], texts: Mapping[str, Template]
    ) -> None:
        self._folder, self._derived, self._texts = folder, derived, texts
        self._known: dict[str, Any] = {}

    def text(self, template: Template, item: Mapping[str, Any] | None = None, join: str = "; ") -> str:
        """Fill in the template. Raises `NoFigure` if none of its parts has its figures, and `MeasurementError` for a
        damaged file."""
        if isinstance(template, str):
            return self.vformat(template, (), item or {})
        parts: list[tuple[Template, Mapping[str, Any] | None]]
        if isinstance(template, dict):
            items = self._list(template["of"])
            parts, join = [(template["each"], row) for row in items], template.get("join", ", ")
        else:
            parts = [(part, item) for part in template]
        texts = []
        for part, own in parts:
            try:
                texts.append(self.text(part, own, join))
            except NoFigure:
                continue
        if not texts:
            raise NoFigure(str(template))
        return join.join(texts)

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """See `string.Formatter`."""
        name = str(key)
        if name in kwargs:
            if kwargs[name] is None:
                raise NoFigure(name)
            return Figure(kwargs[name])
        if name in self._texts:
            return self.text(self._texts[name])
        if name not in self._known:
            derive = self._derived.get(name)
            self._known[name] = _measured(self._folder, name) if derive is None else derive(self._folder)
        if self._known[name] is None:
            raise NoFigure(name)
        return Figure(self._known[name])

    def _list(self, name: str) -> list[dict[str, Any]]:
        figure: Figure = self.get_field(name, (), {})[0]
        return [row if isinstance(row, dict) else {"value": row} for row in figure.value]


def _measured(folder: Path, name: str) -> dict[str, Any] | None:
    """What the file NAME.jsonl says: a measurement, or plain rows; None without it."""
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        return None
    whole = kept_in(path)
    said = {} if whole is None else {"settings": whole.head.settings, "results": whole.results}
    return said | {"rows": rows_of(path), "origin": in_words(path)}
