"""Jinja for chat templates: a sandbox whose templates pay for their work out of a `RenderBudget`."""

from types import BuiltinFunctionType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from inference_core.tokenization.template_budget import RenderBudget
from inference_core.tokenization.template_code import BudgetedCode
from inference_core.tokenization.template_filters import TEMPLATE_FILTERS, TEMPLATE_TESTS, BudgetContext


class _Namespace(Namespace):
    """One whose text does not go on into its values, which may hold others any number of times."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; rendering outputs its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Format:
    """`'...'.format`, which only `TemplateEnvironment.call` can call."""

    def __init__(self, text: str, named: bool) -> None:
        self.text, self.named = text, named


class _Formatter(SandboxedFormatter):
    def __init__(self, environment: jinja2.Environment, budget: RenderBudget) -> None:
        super().__init__(environment)
        self._budget = budget

    def format_field(self, value: Any, format_spec: str) -> Any:
        return self._budget.format_field(value, format_spec, super().format_field)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What transformers gives to chat templates, with `globals` such as `raise_exception` and `filters` added."""

    code_generator_class = BudgetedCode
    context_class = BudgetContext
    # They are not computed at compile time; the code of each is that of `BudgetedCode`.
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            optimized=False,
            cache_size=0,
        )
        self.filters: Any = TEMPLATE_FILTERS
        self.tests: Any = TEMPLATE_TESTS
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]

    def wrap_str_format(self, value: Any) -> Any:
        """See `SandboxedEnvironment.wrap_str_format`."""
        if isinstance(value, BuiltinFunctionType | MethodType) and value.__name__ in ("format", "format_map"):
            owner = value.__self__
            if isinstance(owner, str):
                return _Format(str(owner), value.__name__ == "format_map")
        return None

    def call(self, context: BudgetContext, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """See `SandboxedEnvironment.call`."""
        budget = context.budget
        if obj.__class__ is BuiltinFunctionType or (obj.__class__ is MethodType and isinstance(obj.__self__, str)):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return budget.call(obj, args, kwargs)
        if obj.__class__ is _Format:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            if obj.named:
                (kwargs,) = args
                args = ()
            budget.spend(len(obj.text))
            return budget.made(_Formatter(self, budget).vformat(obj.text, args, kwargs))
        if obj.__class__ is Macro:
            if obj.catch_varargs or obj.catch_kwargs:
                budget.made([*args, *kwargs.values()])
            return super().call(context, obj, *args, **kwargs)
        budget.spend(len(args) + len(kwargs))
        if obj.__class__ is MethodType and isinstance(obj.__self__, LoopContext):
            budget.made(args)
        return budget.made(super().call(context, obj, *args, **kwargs))
