"""A copy of the checkout in which a mutant's edits are made, and the tests that a row names are run."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from tests.requirements.row_mutants import ROOT, Edit, Verdict

# Kernels run in Triton's interpreter, which is chosen by the environment of a process of their own.
_INTERPRETED = "tests/inference_core/triton_kernels/"
_LONGEST_RUN_S = 600.0
_ALL_PASSED, _SOME_FAILED = 0, 1


class ScratchCopy:
    """A copy of the files of a checkout and of its compiled modules, with the checkout's virtual environment, as a
    checkout of one commit of its own: tests ask for the commit of the code."""

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self._folder = folder
        listed = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        compiled = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", "*.so", ":!build", ":!.venv")
        for name in [*_names(source, *listed), *_names(source, *compiled)]:
            if (source / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, folder / name)
        if (source / ".venv").is_dir():
            (folder / ".venv").symlink_to((source / ".venv").resolve())
        author = ("-c", "user.name=copy", "-c", "user.email=copy@localhost")
        for command in (("init",), ("add", "."), (*author, "commit", "--message=copy")):
            subprocess.run(["git", *command], cwd=folder, capture_output=True, check=True)

    @contextmanager
    def edited(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Make the edits, and take them back at the end. Raises ValueError for one that does not fit."""
        originals: dict[Path, str] = {}
        try:
            for edit in edits:
                path = self._folder / edit.file
                text = path.read_text(encoding="utf-8")
                originals.setdefault(path, text)
                path.write_text(edit.applied(text), encoding="utf-8")
            yield
        finally:
            for path, text in originals.items():
                path.write_text(text, encoding="utf-8")

    def run(self, tests: Sequence[str]) -> tuple[Verdict, str]:
        """Run `tests` until one fails. Return the verdict on what the copy holds now, and the test that failed."""
        interpreted = [test for test in tests if test.startswith(_INTERPRETED)]
        groups = [[test for test in tests if test not in interpreted], interpreted]
        verdicts: list[tuple[Verdict, str]] = []
        for group in groups:
            if group:
                verdicts.append(self._run(group, {"TRITON_INTERPRET": "1"} if group is interpreted else {}))
                if verdicts[-1][0] in ("killed", "error"):
                    return verdicts[-1]
        passed = any(verdict == "lives" for verdict, _ in verdicts)
        return ("lives" if passed else "skipped"), ""

    def _run(self, tests: Sequence[str], environment: dict[str, str]) -> tuple[Verdict, str]:
        report = self._folder / "build" / "row-mutant.xml"
        report.unlink(missing_ok=True)
        # The copy's own code comes before the installed one.
        common = os.environ | {"PYTHONPATH": str(self._folder), "PYTHONHASHSEED": "0", "HYPOTHESIS_PROFILE": "mutants"}
        options = ("-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self._folder, env=common | environment, capture_output=True, timeout=_LONGEST_RUN_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "killed", "no end of the tests"
        if done.returncode not in (_ALL_PASSED, _SOME_FAILED) or not report.is_file():
            return "error", done.stdout.decode(errors="replace")[-2000:]
        ends = [({child.tag for child in case}, case.get("name", "")) for case in _cases(report)]
        failed = [name for tags, name in ends if tags & {"failure", "error"}]
        if failed:
            return "killed", failed[0]
        return ("skipped" if all("skipped" in tags for tags, _ in ends) else "lives"), ""


@contextmanager
def scratch_copy(source: Path = ROOT) -> Iterator[ScratchCopy]:
    """Copy the checkout into a temporary folder that goes at the end. Next to the copy is the data that tests read next
    to the checkout."""
    with tempfile.TemporaryDirectory(prefix="aio-row-mutants-") as folder:
        data = source.parent / "shared"
        if data.is_dir():
            (Path(folder) / "shared").symlink_to(data.resolve())
        (copy := Path(folder) / "copy").mkdir()
        yield ScratchCopy(copy, source)


def _names(source: Path, *arguments: str) -> list[str]:
    listed = subprocess.run(
        ["git", *arguments],
        cwd=source, capture_output=True, check=True,
    )  # fmt: skip
    return [name.decode() for name in listed.stdout.split(b"\0") if name]


def _cases(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).iter("testcase"))
