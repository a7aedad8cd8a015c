"""The texts under the fields of structs, which say what each means."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise


@cache
def texts_under_fields(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings under the fields of a module's classes, which Python keeps in the source alone."""
    return {
        node.name: {
            field.target.id: " ".join(inspect.cleandoc(text.value.value).split())
            for field, text in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for node in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(node, ast.ClassDef)
    }
