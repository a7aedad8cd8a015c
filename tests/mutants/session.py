"""A pytest session that collects the tests of a group once, and forks for each test and for each mutant.

Each test first runs alone, to see which lines it reaches and how long it takes. Then each mutant is put into the
functions of a fork, which runs the tests that reach its statement, the quickest first, until one fails.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

from tests.mutants.forks import forked
from tests.mutants.in_place import LoadedFunctions
from tests.mutants.mutate import Mutant
from tests.mutants.reached import Lines, lines_reached

OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no")
SERVERS = "tests/mutants/servers.py"
# Of one test alone, with its fixtures and with the tracing of lines.
LONGEST_TEST_S = 180.0
QUICK_TEST_S = 0.1


class Reach(NamedTuple):
    """Of one test that passes alone: `seconds` with its fixtures; the `lines` it reaches, by file (absolute path)."""

    seconds: float
    lines: Mapping[str, Sequence[int]]

    def longest(self) -> float:
        """How long the test may take with a mutant."""
        return 5 + 8 * self.seconds


def in_place(tests: Sequence[str], mutants: Mapping[str, Sequence[Mutant]], said: Callable[[str], None]) -> Any:
    """Test the `mutants` of each file; return the verdicts by file, and the `Reach` of each test by its node id.

    A verdict is "killed", "lives", or "import": the mutant's lines run when the module is imported, or no function that
    is there could be given its code, so it is to be tested with another import. Not in the caller's process.
    """
    _silence()
    session = _Session(mutants, said)
    with lines_reached(mutants) as session.at_import:
        status = pytest.main([*OPTIONS, SERVERS, *tests], plugins=[session])
    if status != 0:
        raise SystemExit(f"the tests cannot be collected: {' '.join(tests)}")
    return session.verdicts, session.reach


def collected(tests: Sequence[str]) -> None:
    """Collect tests here, silently."""
    _silence()
    pytest.main([*OPTIONS, "--collect-only", *tests])


def passes(node_ids: Sequence[str], reach: Mapping[str, Reach]) -> bool:
    """Run tests here, silently, in the order of `node_ids`; True if all passed."""
    _silence()
    files = list(dict.fromkeys(node_id.split("::")[0] for node_id in node_ids))
    return pytest.main([*OPTIONS, "-x", *files], plugins=[_Chosen(node_ids, reach)]) == 0


def in_quickest_order(node_ids: Iterable[str], reach: Mapping[str, Reach]) -> list[str]:
    """Sort tests: first the quick ones, then the others by the seconds of their files, whose fixtures they share."""
    seconds: dict[str, float] = defaultdict(float)
    node_ids = list(node_ids)
    for node_id in node_ids:
        seconds[node_id.split("::")[0]] += reach[node_id].seconds

    def order(node_id: str) -> tuple[bool, float]:
        own = reach[node_id].seconds
        return own > QUICK_TEST_S, seconds[node_id.split("::")[0]] if own > QUICK_TEST_S else own

    return sorted(node_ids, key=order)


class _Session:
    def __init__(self, mutants: Mapping[str, Sequence[Mutant]], said: Callable[[str], None]) -> None:
        self._mutants, self._said = mutants, said
        self.at_import: Lines = {}
        self.reach: dict[str, Reach] = {}
        self.verdicts: dict[str, list[str]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.settrace(None)
        servers, *tests = session.items
        servers.config.hook.pytest_runtest_protocol(item=servers, nextitem=tests[0])
        for test in tests:
            if (reach := forked(lambda test=test: self._alone(test, servers), LONGEST_TEST_S)) is None:
                self._said(f"left out, does not pass alone: {test.nodeid}")
                continue
            self.reach[test.nodeid] = Reach(*reach)
            test.add_marker(pytest.mark.timeout(self.reach[test.nodeid].longest()))
        self._said(f"{len(self.reach)} tests")
        functions = LoadedFunctions(self._mutants)
        for file, mutants in self._mutants.items():
            original = compile(Path(file).read_text(encoding="utf-8"), file, "exec")
            self.verdicts[file] = []
            for number, mutant in enumerate(mutants, start=1):
                chosen = self._reaching(tests, file, mutant)
                verdict = "import"
                if self.at_import[file].isdisjoint(mutant.lines):
                    code = compile(mutant.tree, file, "exec")
                    limit = 60 + sum(self.reach[test.nodeid].longest() for test in chosen)
                    action = partial(_verdict, functions, original, code, chosen, servers)
                    verdict = forked(action, limit) or "killed"
                self.verdicts[file].append(verdict)
                self._said(f"{number}/{len(mutants)} {verdict:6} {file}:{mutant}")
        return True

    def _alone(self, test: pytest.Item, servers: pytest.Item) -> Reach | None:
        began = time.monotonic()
        with lines_reached(self._mutants) as lines:
            passed = _all_pass([test], servers)
        seconds = time.monotonic() - began
        return Reach(seconds, {file: sorted(found) for file, found in lines.items()}) if passed else None

    def _reaching(self, tests: Sequence[pytest.Item], file: str, mutant: Mutant) -> list[pytest.Item]:
        by_name = {test.nodeid: test for test in tests}
        reaching = [name for name, reach in self.reach.items() if not mutant.lines.isdisjoint(reach.lines[file])]
        return [by_name[name] for name in in_quickest_order(reaching, self.reach)]


class _Chosen:
    """Leaves tests out, and limits the time of the others."""

    def __init__(self, node_ids: Sequence[str], reach: Mapping[str, Reach]) -> None:
        self._order, self._reach = {name: place for place, name in enumerate(node_ids)}, reach

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )
        for item in items:
            item.add_marker(pytest.mark.timeout(self._reach[item.nodeid].longest()))


def _verdict(
    functions: LoadedFunctions, original: CodeType, code: CodeType, tests: Sequence[pytest.Item], servers: pytest.Item
) -> str:
    if not functions.replace(original, code):
        return "import"
    return "lives" if _all_pass(tests, servers) else "killed"


def _all_pass(tests: Sequence[pytest.Item], servers: pytest.Item) -> bool:
    """Run tests until one fails. What belongs to the session stays: other forks need it, so pytest's `-x`, which tears
    all down after a failure, is not for this."""
    for test, following in zip(tests, [*tests[1:], servers], strict=True):
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if test.session.testsfailed:
            return False
    return True


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
