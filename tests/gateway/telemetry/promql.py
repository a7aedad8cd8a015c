"""The part of PromQL that our rules and dashboards use, evaluated over series made up by tests.

Vectors match one to one on equal labels, rates are plain differences; histogram_quantile is linear within a bucket.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]
Value = float | Vector


class Series:
    """Values of a metric over time, in seconds; None is a missing sample."""

    def __init__(self, name: str, at: Callable[[float], float | None] | float, **labels: str) -> None:
        self.name, self.labels = name, tuple(sorted(labels.items()))
        self.at = at if callable(at) else lambda _: float(at)


_TOKEN = re.compile(
    r"\s*(?:(\d+(?:\.\d+)?(?:e-?\d+)?)(?![smhd\w])|([A-Za-z_:][\w:]*)|\"([^\"]*)\"|(>=|<=|==|!=|=~|[-+*/()<>{},=\[\]])|(\d+[smhd]))"
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq}
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "max": max, "min": min, "avg": lambda v: sum(v) / len(v), "count": len,
}  # fmt: skip


def metric_names(expression: str) -> set[str]:
    """Every metric that an expression reads."""
    parser = _Parser(expression)
    parser.parse()
    return parser.metrics


def evaluate(expression: str, series: Sequence[Series], at: float) -> Value:
    """The expression's value at a time."""
    found: Value = _Parser(expression).parse()(series, at)
    return found


def fires(expression: str, for_seconds: float, series: Sequence[Series], until: float, step: float = 1.0) -> bool:
    """Whether an alert of this expression is firing at `until`: it held at every step for that long before."""
    times = [until - step * number for number in range(math.floor(for_seconds / step) + 1)]
    return all(bool(evaluate(expression, series, time)) for time in times)


def seconds_of(duration: str) -> float:
    """Seconds of a duration such as 5m."""
    return float(duration[:-1]) * _SECONDS[duration[-1]]


class _Parser:
    def __init__(self, expression: str) -> None:
        self.tokens, place = [], 0
        while expression[place:].strip():
            match = _TOKEN.match(expression, place)
            assert match, f"not understood: {expression[place:]!r}"
            kind = match.lastindex or 0
            self.tokens.append((kind, match[kind]))
            place = match.end()
        self.place = 0
        self.metrics: set[str] = set()

    def parse(self) -> Any:
        parsed = self._comparison()
        while self._next("or"):
            parsed = _either(parsed, self._comparison())
        assert self.place == len(self.tokens), f"left over: {self.tokens[self.place :]}"
        return parsed

    def _next(self, *texts: str) -> str | None:
        if self.place < len(self.tokens) and (not texts or self.tokens[self.place][1] in texts):
            self.place += 1
            return self.tokens[self.place - 1][1]
        return None

    def _comparison(self) -> Any:
        left = self._sum()
        while sign := self._next(*_COMPARE):
            left = _compared(left, _COMPARE[sign], self._sum())
        return left

    def _sum(self) -> Any:
        left = self._product()
        while sign := self._next("+", "-"):
            left = _combined(left, _ARITHMETIC[sign], self._product())
        return left

    def _product(self) -> Any:
        left = self._primary()
        while sign := self._next("*", "/"):
            left = _combined(left, _ARITHMETIC.get(sign, _divided), self._primary())
        return left

    def _primary(self) -> Any:
        kind, text = self.tokens[self.place]
        self.place += 1
        if kind == 1:
            return lambda series, at: float(text)
        if text == "(":
            inside = self._comparison()
            assert self._next(")")
            return inside
        if text in _AGGREGATES:
            return self._aggregate(text)
        if self._next("("):
            return self._function(text)
        return self._selector(text)

    def _aggregate(self, name: str) -> Any:
        by = self._by()
        assert self._next("(")
        inside = self._comparison()
        assert self._next(")")
        by = by or self._by()

        def value(series: Sequence[Series], at: float) -> Vector:
            groups: dict[Labels, list[float]] = {}
            for labels, one in inside(series, at).items():
                groups.setdefault(tuple((k, v) for k, v in labels if k in by), []).append(one)
            return {labels: float(_AGGREGATES[name](values)) for labels, values in groups.items()}

        return value

    def _by(self) -> list[str]:
        names: list[str] = []
        if self._next("by"):
            assert self._next("(")
            while (token := self._next()) != ")":
                assert token is not None
                names += [token] if token != "," else []
        return names

    def _function(self, name: str) -> Any:
        arguments = [self._comparison()]
        while self._next(","):
            arguments.append(self._comparison())
        assert self._next(")")
        if name in ("rate", "increase"):
            return lambda series, at: arguments[0](series, at, name)
        if name == "clamp_min":
            return lambda series, at: {k: max(v, arguments[1](series, at)) for k, v in arguments[0](series, at).items()}
        assert name == "histogram_quantile", name
        return lambda series, at: _histogram_quantile(arguments[0](series, at), arguments[1](series, at))

    def _selector(self, name: str) -> Any:
        self.metrics.add(name)
        matchers: list[tuple[str, str, str]] = []
        if self._next("{"):
            while not self._next("}"):
                label, sign, wanted = self._next(), self._next(), self._next()
                assert label is not None
                assert sign is not None
                assert wanted is not None
                matchers.append((label, sign, wanted))
                self._next(",")
        window = 0.0
        if self._next("["):
            window = seconds_of(self._next() or "")
            assert self._next("]")

        def value(series: Sequence[Series], at: float, how: str = "") -> Vector:
            assert bool(window) == bool(how), f"{name}: a range and a rate go together"
            found = {}
            for one in series:
                if one.name != name or not all(_matches(dict(one.labels), *matcher) for matcher in matchers):
                    continue
                now, before = one.at(at), one.at(at - window)
                if now is not None and before is not None:
                    change = now - before
                    found[one.labels] = now if not how else change / window if how == "rate" else change
            return found

        return value


def _matches(labels: dict[str, str], label: str, sign: str, wanted: str) -> bool:
    given = labels.get(label, "")
    if sign == "=~":
        return re.fullmatch(wanted, given) is not None
    return (given == wanted) is (sign == "=")


def _divided(left: float, right: float) -> float:
    return left / right if right else math.nan


def _combined(left: Any, combine: Callable[[float, float], float], right: Any) -> Any:
    def value(series: Sequence[Series], at: float) -> Value:
        a, b = left(series, at), right(series, at)
        if isinstance(a, dict) and isinstance(b, dict):
            return {labels: combine(a[labels], b[labels]) for labels in a.keys() & b.keys()}
        if isinstance(a, dict):
            return {labels: combine(one, b) for labels, one in a.items()}
        if isinstance(b, dict):
            return {labels: combine(a, one) for labels, one in b.items()}
        return combine(a, b)

    return value


def _either(left: Any, right: Any) -> Any:
    return lambda series, at: right(series, at) | left(series, at)


def _compared(left: Any, compare: Callable[[float, float], bool], right: Any) -> Any:
    def value(series: Sequence[Series], at: float) -> Vector:
        a, b = left(series, at), right(series, at)
        assert isinstance(a, dict)
        assert not isinstance(b, dict)
        return {labels: one for labels, one in a.items() if compare(one, b)}

    return value


def _histogram_quantile(share: float, buckets: Vector) -> Vector:
    by_labels: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        rest = tuple((k, v) for k, v in labels if k != "le")
        by_labels.setdefault(rest, []).append((float(dict(labels)["le"]), count))
    found = {}
    for labels, pairs in by_labels.items():
        pairs.sort()
        rank, low, passed = share * pairs[-1][1], 0.0, 0.0
        if pairs[-1][1] <= 0:
            continue
        for bound, count in pairs:
            if count >= rank:
                found[labels] = low if math.isinf(bound) else low + (bound - low) * (rank - passed) / (count - passed)
                break
            low, passed = bound, count
    return found
