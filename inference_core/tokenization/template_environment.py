"""Jinja for chat templates: a sandbox whose templates pay for their work out of a `RenderBudget`.

The code of a template is Jinja's own, with calls of the budget where it makes values or runs again: where a loop or
macro starts, where something is written, and for operators, literals and slices. Nothing is computed while a template
is compiled: constants are not folded. A key of a dictionary is read without Jinja's function, which makes up for the
calls.
"""

from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, MethodType
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from inference_core.tokenization.template_budget import RenderBudget
from inference_core.tokenization.template_filters import TEMPLATE_FILTERS, TEMPLATE_TESTS, BudgetContext

_CONST = (nodes.Const, nodes.TemplateData)
_DICT_NAMES = frozenset(dir(dict))
# What is read of a loop most often: numbers.
_OF_LOOP = ("index", "index0", "first", "last", "length", "revindex", "revindex0")
# Of texts or lists that are joined in one step, which is paid for after it.
_AT_ONCE = 16


class BudgetedCode(CodeGenerator):
    """Writes the calls of the budget into a template's code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._units: dict[int, int] = {}
        self._counted: set[int] = set()

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        # Each body that may run again is paid for when it starts.
        repeated = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
        statements = cast(Iterator[nodes.For], node.find_all(repeated))
        self._units = {id(statement.body): _units(statement.body) for statement in statements}
        super().visit_Template(node, frame)

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("budget = context.budget")
        self.writeline("concat = budget.joined")

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        if (units := self._units.get(id(nodes))) is not None:
            self.writeline(f"budget.left -= {units}")
            self.writeline("if budget.left < 0: budget.refill()")
        super().blockvisit(nodes, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.test is not None:
            if node.recursive:
                self.fail("a recursive loop with a condition is not supported", node.lineno)
            # Values that the condition leaves out take time, too.
            self._counted.add(id(node.iter))
        super().visit_For(node, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> None:
        is_counted = id(node) in self._counted
        self.write("budget.counted(" if is_counted else "")
        super().visit(node, *args, **kwargs)
        self.write(")" if is_counted else "")

    # A text is written as it is, and paid for when all are joined.

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self._written = self.temporary_identifier()
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            self.write("budget.made(")
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write(f"({self._written} if ({self._written} := ")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_post(node, frame, finalize)
            self.write(")")
        else:
            self.write(f").__class__ is str else budget.output({self._written}))")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, _CONST):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _called(self, method: str, frame: Frame, *parts: nodes.Node) -> None:
        self.write(f"budget.{method}(")
        for part in parts:
            self.visit(part, frame)
            self.write(", ")
        self.write(")")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        parts: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            parts.insert(0, left.right)
            left = left.left
        groups = [parts[at : at + _AT_ONCE] for at in range(0, len(parts), _AT_ONCE)]
        self.write("budget.sum(" * len(groups))
        self.visit(left, frame)
        for group in groups:
            for part in group:
                self.write(" + ")
                self.visit(part, frame)
            self.write(")")

    def visit_Mul(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._called("multiply", frame, node.left, node.right)

    def visit_Pow(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._called("power", frame, node.left, node.right)

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:
        if not isinstance(node.right, nodes.Const):
            self._called("modulo", frame, node.left, node.right)
            return
        left, right = self.temporary_identifier(), repr(node.right.value)
        self.write(f"({left} % {right} if ({left} := ")
        self.visit(node.left, frame)
        self.write(f").__class__ is int else budget.modulo({left}, {right}))")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("budget.made(")
        if len(node.nodes) > _AT_ONCE:
            first = nodes.Concat(node.nodes[:_AT_ONCE], lineno=node.lineno)
            node = nodes.Concat([first, *node.nodes[_AT_ONCE:]], lineno=node.lineno)
        super().visit_Concat(node, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        (first, *others) = node.ops
        if not others and first.op in ("in", "notin") and not _is_const(first.expr):
            self.write("(not " if first.op == "notin" else "(")
            self._called("contains", frame, node.expr, first.expr)
            self.write(")")
            return
        self.write("(")
        self._compared(node.expr, frame, pays=bool(others) or not _is_scalar(first.expr))
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._compared(operand.expr, frame, pays=bool(others))
        self.write(")")

    def _compared(self, node: nodes.Expr, frame: Frame, *, pays: bool) -> None:
        if not pays or _is_scalar(node) or _is_const(node):
            self.visit(node, frame)
            return
        name = self.temporary_identifier()
        self.write(f"({name} if ({name} := ")
        self.visit(node, frame)
        self.write(f").__class__ is str else budget.compared({name}))")

    def _literal(self, node: nodes.Literal, frame: Frame, visit: Callable[[Any, Frame], None]) -> None:
        if _is_const(node) or getattr(node, "ctx", "load") != "load":
            visit(node, frame)
            return
        self.write("budget.made(")
        visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._literal(node, frame, super().visit_List)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        self._literal(node, frame, super().visit_Tuple)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._literal(node, frame, super().visit_Dict)

    def _read(self, node: nodes.Getattr | nodes.Getitem, key: str, frame: Frame, method: str) -> None:
        """Write the value of a key of a dictionary, which most are; of anything else `environment` knows it."""
        name = self.temporary_identifier()
        self.write(f"({name}[{key!r}] if ({name} := ")
        self.visit(node.node, frame)
        self.write(f").__class__ is dict and {key!r} in {name} else environment.{method}({name}, {key!r}))")

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        if isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr in _OF_LOOP:
            name = self.temporary_identifier()
            self.write(f"({name}.{node.attr} if ({name} := ")
            self.visit(node.node, frame)
            self.write(f").__class__ is LoopContext else environment.getattr({name}, {node.attr!r}))")
        elif node.attr in _DICT_NAMES:
            super().visit_Getattr(node, frame)
        else:
            self._read(node, node.attr, frame, "getattr")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self._read(node, node.arg.value, frame, "getitem")
            return
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        self._called("sliced", frame, node.node, *(nodes.Const(None) if one is None else one for one in bounds))


def _units(body: Iterable[nodes.Node]) -> int:
    """The nodes of a body, and the characters that it writes as they are."""
    units = 1
    for node in body:
        units += 1 + len(getattr(node, "data", "")) + _units(node.iter_child_nodes())
    return units


def _is_const(node: nodes.Node) -> bool:
    """Whether a value is written down in the template."""
    if isinstance(node, nodes.Neg | nodes.Pos):
        return _is_const(node.node)
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_const, node.items))
    if isinstance(node, nodes.Dict):
        return all(_is_const(pair.key) and _is_const(pair.value) for pair in node.items)
    return isinstance(node, _CONST)


def _is_scalar(node: nodes.Node) -> bool:
    """Whether a value is never a container with others in it, so that a comparison with it is short."""
    return isinstance(node, nodes.Const | nodes.Compare | nodes.Test | nodes.Not | nodes.Sub | nodes.Neg | nodes.Mod)


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
