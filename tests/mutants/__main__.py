"""Mutation testing: `python -m tests.mutants PATH…` runs the tests of each file against its mutants, one at a time.

A mutant lives if all tests of its group that reach it pass. Each is tested in a fork, where it takes the place of the
real code: in the functions that are there already (tests/mutants/session.py), or, if its lines run when the module is
imported, in another import of the module and of what needs it. Nothing on disk changes.
"""

import argparse
import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from tests.mutants.forks import forked
from tests.mutants.groups import group_of
from tests.mutants.importing import AbsentFinder, MutatedFinder
from tests.mutants.mutate import Mutant, mutants_of
from tests.mutants.session import Reach, collected, in_place, in_quickest_order, passes

ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    """Of one file: the mutants that lived, of so many; `left_out`: those that were not tested."""

    path: str
    total: int
    lived: list[Mutant]
    left_out: int = 0


def main(arguments: Sequence[str]) -> int:
    """Test the mutants of each file, or of all in a folder; 1 if one lives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="A file or a folder of a group of tests/mutants.")
    parser.add_argument("--line", type=int, action="append", help="Only the mutants of this line; may be repeated.")
    parser.add_argument("--tests", action="append", help="Only these tests of the group; may be repeated.")
    parser.add_argument(
        "--in-place", action="store_true", help="Leave out lines that run at import, which take several times as long."
    )
    given = parser.parse_args(arguments)
    os.environ.setdefault("HYPOTHESIS_PROFILE", "mutants")
    os.environ["PYTHONHASHSEED"] = "0"
    by_tests: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in given.paths:
        files = [Path(path)] if path.endswith(".py") else sorted(Path(path).rglob("*.py"))
        for file in files:
            if file.name != "__init__.py":
                by_tests[tuple(given.tests or group_of(file.as_posix()))].append(file)
    results = [result for tests, files in by_tests.items() for result in _tested(tests, files, given)]
    for result in results:
        killed = result.total - len(result.lived)
        share = f" ({killed / result.total:.1%})" if killed else ""
        left_out = f", {result.left_out} left out" if result.left_out else ""
        print(f"{result.path}: {killed} of {result.total} killed{share}{left_out}")
        for mutant in result.lived:
            print(f"  line {mutant}")
    return int(any(result.lived for result in results))


def _tested(tests: Sequence[str], files: Sequence[Path], given: argparse.Namespace) -> list[Result]:
    mutants = {}
    for file in files:
        all_of_file = mutants_of(file.read_text(encoding="utf-8"))
        mutants[str(ROOT / file)] = [mutant for mutant in all_of_file if not given.line or mutant.line in given.line]
    answer = forked(partial(in_place, tests, mutants, _said()))
    if answer is None:
        raise SystemExit(f"the tests cannot be collected: {' '.join(tests)}")
    verdicts = answer[0]
    reach = {name: Reach(*found) for name, found in answer[1].items()}
    results = []
    for file in files:
        path = str(ROOT / file)
        again = [number for number, verdict in enumerate(verdicts[path]) if verdict == "import"]
        if again and not given.in_place:
            importing = partial(_imported_anew, tests, file, [mutants[path][number] for number in again], reach)
            for number, verdict in zip(again, forked(importing), strict=True):
                verdicts[path][number] = verdict
        lived = [mutant for mutant, verdict in zip(mutants[path], verdicts[path], strict=True) if verdict == "lives"]
        left_out = verdicts[path].count("import")
        results.append(Result(file.as_posix(), len(mutants[path]) - left_out, lived, left_out))
    return results


def _said() -> Callable[[str], None]:
    """Write lines on what is standard error now, also where it is silenced afterwards."""
    stream = os.fdopen(os.dup(2), "w", buffering=1)
    return lambda text: print(text, file=stream, flush=True)


def _imported_anew(
    tests: Sequence[str], file: Path, mutants: Sequence[Mutant], reach: Mapping[str, Reach]
) -> list[str]:
    """Return the verdict on each mutant: "killed" or "lives"."""
    said, name, path = _said(), ".".join(file.with_suffix("").parts), str(ROOT / file)
    chosen = _test_files_that_reach(path, reach)
    limit = 60 + sum(reach[node_id].longest() for node_id in chosen)
    _import_without(name, forked(partial(_modules_of, tests)))
    verdicts = []
    for number, mutant in enumerate(mutants, start=1):
        code = compile(mutant.tree, path, "exec")
        verdict = "lives" if forked(partial(_passes, name, code, chosen, reach), limit) else "killed"
        verdicts.append(verdict)
        said(f"import {number}/{len(mutants)} {verdict:6} {path}:{mutant}")
    return verdicts


def _test_files_that_reach(path: str, reach: Mapping[str, Reach]) -> list[str]:
    """The tests of the files where one reaches the file `path`; all tests if there is none."""
    files = {name.split("::")[0] for name, found in reach.items() if found.lines[path]}
    return in_quickest_order([name for name in reach if not files or name.split("::")[0] in files], reach)


def _passes(name: str, code: CodeType, chosen: Sequence[str], reach: Mapping[str, Reach]) -> bool:
    sys.meta_path.insert(0, MutatedFinder(name, code))
    return passes(chosen, reach)


def _modules_of(tests: Sequence[str]) -> list[str]:
    """The modules that are imported when `tests` are collected, but the tests'."""
    collected(tests)
    return [
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) and not name.startswith(("tests", "conftest", "test_", "__main"))
    ]


def _import_without(target: str, modules: Sequence[str]) -> None:
    """Import `modules` here, but for the `target` and what needs it, so that forks find them loaded."""
    absent = AbsentFinder(target)
    sys.meta_path.insert(0, absent)
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:
            # It needs the target, or may not be imported by name: each run imports it.
            sys.modules.pop(module, None)
    sys.meta_path.remove(absent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
