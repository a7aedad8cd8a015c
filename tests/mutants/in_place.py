"""Gives the functions that a process has imported already the code of a mutant."""

import gc
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType


class LoadedFunctions:
    """The functions of `files` (absolute paths) in this process, by file and code."""

    def __init__(self, files: Collection[str]) -> None:
        # Frozen objects are not listed.
        gc.unfreeze()
        self._by_code: dict[str, dict[CodeType, list[FunctionType]]] = {file: defaultdict(list) for file in files}
        for function in gc.get_objects():
            if (
                type(function) is FunctionType
                and (codes := self._by_code.get(function.__code__.co_filename)) is not None
            ):
                codes[function.__code__].append(function)
        gc.freeze()

    def replace(self, original: CodeType, mutated: CodeType) -> bool:
        """Give each function whose code differs in the `mutated` module its new code; False if none got any."""
        codes = self._by_code[mutated.co_filename]
        changed = [
            (function, new) for old, new in _pairs(original, mutated) if old != new for function in codes.get(old, ())
        ]
        try:
            for function, new in changed:
                function.__code__ = new
        except ValueError:
            # It closes over other names.
            return False
        return bool(changed)


def _pairs(original: CodeType, mutated: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code of the same function in both, but lambdas and such of which one of the two has more."""
    before, after = _by_place(original), _by_place(mutated)
    for place in before.keys() & after.keys():
        if len(before[place]) == len(after[place]):
            yield from zip(before[place], after[place], strict=True)


def _by_place(code: CodeType) -> dict[tuple[str, int], list[CodeType]]:
    """`code` and all that is in it, by name and first line."""
    found, left = defaultdict(list), [code]
    while left:
        code = left.pop(0)
        found[code.co_qualname, code.co_firstlineno].append(code)
        left += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found
