"""The mutants of a source file: copies of its syntax tree with one small fault each."""

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """`tree`: of the whole module with one node replaced, which shares the others with all mutants; `was` and `became`:
    that node, at `line`; `lines`: those of its statement, without the statements in it."""

    line: int
    was: str
    became: str
    tree: ast.Module
    lines: frozenset[int]

    def __str__(self) -> str:
        return f"{self.line}: {self.was}  ->  {self.became}"


def mutants_of(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, from its first line to its last. Texts, annotations, options of classes and
    imports stay."""
    tree = ast.parse(source)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for node, way in _sites(tree):
        # Outer statements come first. Of none are the lines of `except` and `case`.
        own = [lines for statement in statements if node.lineno in (lines := _own_lines(statement))]
        lines = own[-1] if own else range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for changed in _changed(node):
            mutated = _replaced(way, ast.fix_missing_locations(ast.copy_location(copy.copy(changed), node)))
            yield Mutant(node.lineno, _shown(node), _shown(changed), mutated, frozenset(lines))


class _Step(NamedTuple):
    """From a node to one in its field `name`: that itself, or at `index` of the list that it is."""

    node: ast.AST
    name: str
    index: int | None


def _replaced(way: Sequence[_Step], new: ast.AST) -> Any:
    """Return a copy of the first node of `way` with `new` at its end; nodes that are not on it are shared."""
    for node, name, index in reversed(way):
        twin = copy.copy(node)
        if index is not None:
            values = list(getattr(node, name))
            values[index] = new
        setattr(twin, name, new if index is None else values)
        new = twin
    return new


def _sites(node: ast.AST, way: tuple[_Step, ...] = ()) -> Iterator[tuple[ast.expr | ast.stmt, tuple[_Step, ...]]]:
    """Every expression and statement but annotations and options of classes, in the order of the text, each with the
    way to it."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        # Frozen or not, with slots or not: no value changes.
        if isinstance(node, ast.ClassDef) and name in ("keywords", "decorator_list"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            there = (*way, _Step(node, name, index))
            if isinstance(child, ast.expr | ast.stmt):
                yield child, there
            if isinstance(child, ast.AST):
                yield from _sites(child, there)


def _own_lines(statement: ast.stmt) -> range:
    """From its decorators to its end, or to the first statement in it."""
    decorators = getattr(statement, "decorator_list", [])
    first = min(node.lineno for node in [statement, *decorators])
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if body is None:
        return range(first, (statement.end_lineno or first) + 1)
    inner = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    return range(first, max(first, inner.lineno - 1) + 1)


def _changed(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.Compare(left, [op, *others], comparators) if type(op) in _COMPARE:
            yield ast.Compare(left, [_COMPARE[type(op)](), *others], comparators)
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            yield ast.BinOp(left, _ARITHMETIC[type(op)](), right)
            if isinstance(op, ast.Mult | ast.Div):
                yield left
            if isinstance(op, ast.Mult):
                yield right
        case ast.AugAssign(target, op, value) if type(op) in _ARITHMETIC:
            yield ast.AugAssign(target, _ARITHMETIC[type(op)](), value)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.If(test, body, orelse) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(value) if isinstance(value, bool):
            yield ast.Constant(not value)
        case ast.Constant(value) if isinstance(value, int | float):
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name), args, keywords) if name in _NAMES:
            yield ast.Call(ast.Name(_NAMES[name], ast.Load()), args, keywords)
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 100 else text[:99] + "…"
