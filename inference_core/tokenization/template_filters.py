"""Jinja's filters and tests for chat templates, paid for out of a `RenderBudget`."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from jinja2.filters import FILTERS, do_trim
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import _PassArg, pass_context

from inference_core.tokenization.template_budget import RenderBudget


class BudgetContext(Context):
    """The variables of one render, and what it may still do."""

    budget: RenderBudget

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        context = super().derived(locals)
        assert isinstance(context, BudgetContext)
        context.budget = self.budget
        return context


_Budgeted = Callable[..., Any]
_JINJAS = cast(Mapping[str, _Budgeted], FILTERS)


def _plain(name: str) -> Callable[..., Any]:
    """Jinja's filter, called with the context whatever it takes."""
    original = _JINJAS[name]
    wanted = _PassArg.from_obj(original)

    def call(context: BudgetContext, *args: Any, **kwargs: Any) -> Any:
        if wanted is _PassArg.context:
            return original(context, *args, **kwargs)
        if wanted is _PassArg.eval_context:
            return original(context.eval_ctx, *args, **kwargs)
        if wanted is _PassArg.environment:
            return original(context.environment, *args, **kwargs)
        return original(*args, **kwargs)

    return call


def _with(name: str, before: Callable[..., Any]) -> _Budgeted:
    """The filter on what `before` returns for its value and arguments; the result is paid for."""
    original, plain = _JINJAS[name], _plain(name)

    @pass_context
    def filtered(context: BudgetContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = context.budget
        return budget.made(plain(context, before(budget, value, *args, **kwargs), *args, **kwargs))

    @pass_context
    def alone(context: BudgetContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = context.budget
        return budget.made(original(before(budget, value, *args, **kwargs), *args, **kwargs))

    return alone if _PassArg.from_obj(original) is None else filtered


def _text(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a text, or of anything whose text is taken."""
    if value.__class__ is not str:
        budget.spend(budget.weight(value))
    return value


def _lazy(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> Any:
    return budget.counted(value)


def _all(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Of all values at once, which are compared with each other."""
    if not value:
        return value
    found = budget.listed(value.items() if isinstance(value, dict) else value)
    budget.spend(4 * budget.weight(found))
    return value if isinstance(value, dict) else found


def _parts(budget: RenderBudget, value: Any, *args: Any, **kwargs: Any) -> Any:
    for count in (*args, *kwargs.values()):
        budget.width(count)
    return budget.counted(value)


def _lists(name: str) -> _Budgeted:
    """A filter that yields lists."""
    parts = _with(name, _parts)

    @pass_context
    def filtered(context: BudgetContext, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return map(context.budget.made, parts(context, *args, **kwargs))

    return filtered


def _round(budget: RenderBudget, value: Any, precision: int = 0, *args: Any, **kwargs: Any) -> Any:
    if abs(precision) > 100:
        raise OverflowError("a precision of more than 100 digits")
    return value


def _indent(budget: RenderBudget, value: Any, width: Any = 4, *args: Any, **kwargs: Any) -> Any:
    each = width if isinstance(width, int) else len(width)
    budget.spend(len(value) + max(each, 0) * (value.count("\n") + 2))
    return value


def _centred(budget: RenderBudget, value: Any, width: int = 80) -> Any:
    budget.width(width)
    return value


def _replaced(budget: RenderBudget, value: Any, old: Any, new: Any, *args: Any, **kwargs: Any) -> Any:
    text = budget.output(value)
    budget.replace(text, str(old), str(new))
    return value


def _joined(budget: RenderBudget, value: Any, d: Any = "", attribute: Any = None) -> Any:
    items = list(budget.counted(value))
    budget.join(str(d), items)
    return items


@pass_context
def _trim(context: BudgetContext, value: Any, chars: str | None = None) -> Any:
    budget = context.budget
    if value.__class__ is not str:
        return budget.made(do_trim(value, chars))
    budget.left -= len(value)
    if budget.left < 0:
        budget.refill()
    return value.strip(chars)


@pass_context
def _list(context: BudgetContext, value: Any) -> list[Any]:
    return context.budget.listed(value)


@pass_context
def _format(context: BudgetContext, value: Any, *args: Any, **kwargs: Any) -> Any:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    text = value if isinstance(value, str) else str(value)
    return context.budget.modulo(text, kwargs or args)


@pass_context
def _sum(context: BudgetContext, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    values = iterable if attribute is None else _plain("map")(context, iterable, attribute=attribute)
    total = start
    for value in context.budget.counted(values):
        total = context.budget.sum(total + value)
    return total


@pass_context
def _to_json(
    context: BudgetContext,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Any:
    """Replaces Jinja's own filter, which escapes HTML: models were not trained on that."""
    budget = context.budget
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None and separators is None:
        return budget.output(encoder.encode(value))
    budget.width(indent)
    return "".join(map(budget.output, encoder.iterencode(value)))


def _comparison(name: str) -> _Budgeted:
    compare = cast(_Budgeted, TESTS[name])

    @pass_context
    def test(context: BudgetContext, value: Any, other: Any) -> Any:
        return compare(context.budget.compared(value), other)

    return test


@pass_context
def _in(context: BudgetContext, value: Any, seq: Any) -> bool:
    return context.budget.contains(value, seq)


# What no prompt needs, and what searches a text with expressions of its own.
_LEFT_OUT = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
TEMPLATE_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: function for name, function in _JINJAS.items() if name not in _LEFT_OUT},
    **{name: _with(name, _text) for name in (
        "capitalize", "e", "escape", "forceescape", "lower", "reverse", "safe", "string", "title", "truncate",
        "upper", "urlencode", "wordcount",
    )},
    **{name: _with(name, _lazy) for name in ("map", "reject", "rejectattr", "select", "selectattr")},
    **{name: _with(name, _all) for name in ("dictsort", "groupby", "max", "min", "sort", "unique")},
    **{name: _lists(name) for name in ("batch", "slice")},
    "center": _with("center", _centred),
    "format": _format,
    "indent": _with("indent", _indent),
    "join": _with("join", _joined),
    "list": _list,
    "replace": _with("replace", _replaced),
    "round": _with("round", _round),
    "sum": _sum,
    "tojson": _to_json,
    "trim": _trim,
}  # fmt: skip
TEMPLATE_TESTS: dict[str, Callable[..., Any]] = {
    **cast(Mapping[str, _Budgeted], TESTS),
    **{name: _comparison(name) for name in (
        "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt", "lessthan", "<=", "le",
    )},
    "in": _in,
}  # fmt: skip
