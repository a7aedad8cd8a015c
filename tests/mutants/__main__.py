"""`python -m tests.mutants PATH…`: run the tests of each file against each of its mutants, one process at a time.

A mutant lives if the tests of its group pass. Each is tested in a fork that has imported already what does not need the
module, and gets the mutated one in place of the real one: nothing on disk changes.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from tests.mutants.groups import group_of
from tests.mutants.importing import AbsentFinder, MutatedFinder
from tests.mutants.mutate import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header")


class Result(NamedTuple):
    """Of one file: the mutants that lived, of so many."""

    path: str
    total: int
    lived: list[Mutant]


def main(arguments: Sequence[str]) -> int:
    """Test the mutants of each file, or of all in a folder; 1 if one lives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="A file or a folder of a group of tests/mutants.")
    parser.add_argument("--line", type=int, help="Only the mutants of this line.")
    given = parser.parse_args(arguments)
    os.environ.setdefault("HYPOTHESIS_PROFILE", "quick")
    os.environ["PYTHONHASHSEED"] = "0"
    results = []
    for path in given.paths:
        files = [Path(path)] if path.endswith(".py") else sorted(Path(path).rglob("*.py"))
        results += [_tested(file, given.line) for file in files if file.name != "__init__.py"]
    for result in results:
        killed = result.total - len(result.lived)
        print(
            f"{result.path}: {killed} of {result.total} killed" + (f" ({killed / result.total:.1%})" if killed else "")
        )
        for mutant in result.lived:
            print(f"  line {mutant.line}: {mutant.was}  ->  {mutant.became}")
    return int(any(result.lived for result in results))


def _tested(file: Path, line: int | None) -> Result:
    source, tests = file.read_text(encoding="utf-8"), group_of(file.as_posix())
    name = ".".join(file.with_suffix("").parts)
    began = time.monotonic()
    modules = _imported_by(tests)
    limit = 10 + 5 * (time.monotonic() - began)
    _import_without(name, modules)
    mutants = [mutant for mutant in mutants_of(source) if line in (None, mutant.line)]
    lived = []
    for number, mutant in enumerate(mutants, start=1):
        code = compile(mutant.tree, str(ROOT / file), "exec")
        alive = _passes(tests, name, code, limit)
        if alive:
            lived.append(mutant)
        print(f"{number}/{len(mutants)} {'LIVES ' if alive else 'killed'} {file}:{mutant.line} {mutant.was} -> "
              f"{mutant.became}", file=sys.stderr, flush=True)  # fmt: skip
    return Result(file.as_posix(), len(mutants), lived)


def _imported_by(tests: Sequence[str]) -> list[str]:
    """Run the tests once as they are; return the modules that they import but tests. Exits if they fail."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        status = _run(tests)
        names = [
            name
            for name, module in list(sys.modules.items())
            if getattr(module, "__file__", None) and not name.startswith(("tests", "conftest", "test_", "__main"))
        ]
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(names).encode() if status == 0 else b"")
        os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit(f"the tests fail without a mutant: {' '.join(tests)}")
    return list(json.loads(said))


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


def _passes(tests: Sequence[str], name: str, code: CodeType, limit: float) -> bool:
    """Run `tests` in a fork where the module `name` is `code`; False if they fail or take more than `limit` seconds."""
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        signal.alarm(int(limit) + 1)
        sys.meta_path.insert(0, MutatedFinder(name, code))
        os._exit(_run(tests))
    _, status = os.waitpid(child, 0)
    return status == 0


def _run(tests: Sequence[str]) -> int:
    """Run pytest here, silently; 0 if all passed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    import pytest

    try:
        return int(pytest.main([*OPTIONS, *tests]))
    except BaseException:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
