"""Which structs have many fields, and which functions read many fields of one struct.

Types come from annotations alone: of parameters, variables, attributes and results. A container counts as what it
contains. What a name is assigned holds in its whole function.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple

Types = frozenset[str]
"""Classes, by `path::Class`, that a value may be or contain."""
NOTHING: Types = frozenset()
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Read(NamedTuple):
    """A function that reads or writes fields of a struct."""

    function: str
    """As `path::Class.function`; functions inside count as parts of it."""
    struct: str
    """As `path::Class`."""
    fields: frozenset[str]


class Module:
    """The names of a module, and its classes and functions."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        body = ast.parse(source).body
        # What stands under `if TYPE_CHECKING` is named by annotations, too.
        body += [statement for block in body if isinstance(block, ast.If) for statement in block.body]
        self.classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        self.functions = {node.name: node for node in body if isinstance(node, Function)}
        self.imports: dict[str, tuple[str, str]] = {}
        """By local name: the module, as the start of a path, and the name there."""
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.module.replace(".", "/"), alias.name)


class Structs:
    """The classes of a program, from its modules' sources by path."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._modules = [Module(path, source) for path, source in sources.items()]
        self._defining: defaultdict[str, list[Module]] = defaultdict(list)
        for module in self._modules:
            for name in [*module.classes, *module.functions]:
                self._defining[name].append(module)
        self._members: dict[str, dict[str, Types]] = {}
        self._bases: dict[str, list[str]] = {}
        self._fields: dict[str, frozenset[str]] = {}
        self._unread: dict[str, tuple[Module, ast.ClassDef]] = {}
        """Classes whose methods were not yet read for what they assign to attributes."""
        for module in self._modules:
            for node in module.classes.values():
                self._read_class(module, node)

    def large(self, most: int) -> dict[str, frozenset[str]]:
        """Return the fields of each class with more than `most` of them, those of its bases included."""
        fields = {struct: self.fields(struct) for struct in self._members}
        return {struct: names for struct, names in sorted(fields.items()) if len(names) > most}

    def fields(self, struct: str) -> frozenset[str]:
        """Return the annotated fields of a class and of its bases."""
        return self._fields[struct].union(*(self.fields(base) for base in self._bases[struct]))

    def reads(self, structs: Mapping[str, frozenset[str]], most: int) -> list[Read]:
        """Return each function that reads more than `most` fields of one of `structs`, given with their fields."""
        reads: list[Read] = []
        for module in self._modules:
            for name, node, owner in _functions(module):
                attributes = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
                names = {part.attr for part in attributes}
                if all(len(fields & names) <= most for fields in structs.values()):
                    continue
                scope = Scope(self, module, node, owner)
                typed = [(scope.type_of(part.value), part.attr) for part in attributes]
                for struct, fields in structs.items():
                    read = fields.intersection(name for types, name in typed if struct in types)
                    if len(read) > most:
                        reads.append(Read(f"{module.path}::{name}", struct, read))
        return sorted(reads)

    def named(self, module: Module, annotation: ast.AST | None, owner: str | None = None) -> Types:
        """Return the classes that an annotation names; `Self` is `owner`."""
        if annotation is None:
            return NOTHING
        types: set[str] = set()
        for node in ast.walk(annotation):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isprintable():
                types |= self._named_by_text(module, node.value, owner)
            elif isinstance(node, ast.Name) and node.id == "Self" and owner is not None:
                types.add(owner)
            elif isinstance(node, ast.Name | ast.Attribute):
                types |= self._classes(module, node)
        return frozenset(types)

    def member(self, struct: str, name: str) -> Types | None:
        """Return the types of an attribute, or of a method's results; None if the class has no such member."""
        if name not in self._members[struct] and struct in self._unread:
            self._read_attributes(struct, *self._unread.pop(struct))
        if name in self._members[struct]:
            return self._members[struct][name]
        inherited = (self.member(base, name) for base in self._bases[struct])
        return next((types for types in inherited if types is not None), None)

    def global_name(self, module: Module, name: str) -> Types:
        """Return the class, or the types of the function's results, that a global name of a module stands for."""
        home = self._home(module, name)
        if home is None:
            return NOTHING
        place, original = home
        if original in place.classes:
            return frozenset({f"{place.path}::{original}"})
        return self.named(place, place.functions[original].returns)

    def _named_by_text(self, module: Module, text: str, owner: str | None) -> Types:
        try:
            return self.named(module, ast.parse(text, mode="eval").body, owner)
        except SyntaxError:
            return NOTHING

    def _classes(self, module: Module, node: ast.Name | ast.Attribute) -> Types:
        if isinstance(node, ast.Attribute):
            homes = self._defining[node.attr] if isinstance(node.value, ast.Name) else []
            return frozenset(f"{home.path}::{node.attr}" for home in homes if node.attr in home.classes)
        home = self._home(module, node.id)
        return frozenset({f"{home[0].path}::{home[1]}"}) if home is not None and home[1] in home[0].classes else NOTHING

    def _home(self, module: Module, name: str) -> tuple[Module, str] | None:
        """Return the module that defines a name of `module`, and the name there; a package may pass on a name."""
        if name in module.classes or name in module.functions:
            return module, name
        if name not in module.imports:
            return None
        source, original = module.imports[name]
        exact = [home for home in self._defining[original] if home.path in (f"{source}.py", f"{source}/__init__.py")]
        passed_on = [home for home in self._defining[original] if home.path.startswith(f"{source}/")]
        homes = exact or passed_on
        return (homes[0], original) if homes else None

    def _read_class(self, module: Module, node: ast.ClassDef) -> None:
        struct = f"{module.path}::{node.name}"
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        named = [self.named(module, base) for base in bases if isinstance(base, ast.Name | ast.Attribute)]
        self._bases[struct] = [base for types in named for base in types if base != struct]
        annotated = [
            part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]
        fields = {part.target.id: part.annotation for part in annotated if isinstance(part.target, ast.Name)}
        self._fields[struct] = frozenset(n for n, kind in fields.items() if "ClassVar" not in ast.unparse(kind))
        self._unread[struct] = module, node
        self._members[struct] = {name: self.named(module, kind, struct) for name, kind in fields.items()}
        for part in node.body:
            if isinstance(part, Function):
                self._members[struct][part.name] = self.named(module, part.returns, struct)

    def _read_attributes(self, struct: str, module: Module, node: ast.ClassDef) -> None:
        for method in node.body:
            if isinstance(method, Function):
                scope = Scope(self, module, method, struct)
                for part in ast.walk(method):
                    for target, value in _assigned(part):
                        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                            kind = part.annotation if isinstance(part, ast.AnnAssign) else None
                            types = self.named(module, kind, struct) or scope.type_of(value)
                            self._members[struct].setdefault(target.attr, types)


class Scope:
    """The types of a function's variables and expressions."""

    def __init__(self, structs: Structs, module: Module, function: Function, owner: str | None) -> None:
        self._structs = structs
        self._module = module
        self._variables: dict[str, Types] = {}
        if owner is not None and function.args.args:
            self._variables[function.args.args[0].arg] = frozenset({owner})
        parts = list(ast.walk(function))
        for part in parts:
            if isinstance(part, ast.arg) and part.annotation is not None:
                self._variables[part.arg] = structs.named(module, part.annotation, owner)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                self._variables[part.target.id] = structs.named(module, part.annotation, owner)
        for _ in range(2):
            for part in parts:
                for target, value in _assigned(part):
                    self._assign(target, value)

    def type_of(self, value: ast.expr) -> Types:
        """Return the types of an expression; a call's are those of what it calls."""
        match value:
            case ast.Name(id=name):
                return self._variables.get(name) or self._structs.global_name(self._module, name)
            case ast.Attribute(value=owner, attr=name):
                types = self.type_of(owner)
                members = [self._structs.member(struct, name) for struct in types]
                # A container's method (`values`, `get`) gives what the container holds.
                return types if None in members else reduce(frozenset.union, (m for m in members if m), NOTHING)
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in PASSING:
                return self._any(arguments)
            case ast.Call(func=inner) | ast.Subscript(value=inner) | ast.NamedExpr(value=inner):
                return self.type_of(inner)
            case ast.Await(value=inner) | ast.Starred(value=inner) | ast.DictComp(value=inner):
                return self.type_of(inner)
            case ast.ListComp(elt=inner) | ast.SetComp(elt=inner) | ast.GeneratorExp(elt=inner):
                return self.type_of(inner)
            case ast.BoolOp(values=values) | ast.Dict(values=values) | ast.List(elts=values) | ast.Tuple(elts=values):
                return self._any(values)
            case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, right=right):
                return self._any([left, right])
            case _:
                return NOTHING

    def _any(self, values: Iterable[ast.expr]) -> Types:
        return reduce(frozenset.union, map(self.type_of, values), NOTHING)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        types = self.type_of(value)
        for part in ast.walk(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and types:
                self._variables[part.id] = self._variables.get(part.id, NOTHING) | types


PASSING = (
    "enumerate",
    "list",
    "map",
    "max",
    "min",
    "next",
    "reversed",
    "set",
    "sorted",
    "tuple",
    "zip",
    "iter",
    "replace",
)
"""Functions that give what they are given, or a part of it."""


def _assigned(part: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment, a loop or a context, each with its value."""
    match part:
        case ast.Assign(targets=targets, value=value):
            return [(target, value) for target in targets]
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            return [(target, value)]
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            return [(target, value)]
        case ast.comprehension(target=target, iter=value):
            return [(target, value)]
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            return [(target, value)]
        case _:
            return []


def _functions(module: Module) -> list[tuple[str, Function, str | None]]:
    """Return the module's functions and methods: name, node, and the class of a method."""
    methods = [
        (f"{owner.name}.{node.name}", node, f"{module.path}::{owner.name}")
        for owner in module.classes.values()
        for node in owner.body
        if isinstance(node, Function)
    ]
    return [*((name, node, None) for name, node in module.functions.items()), *methods]
