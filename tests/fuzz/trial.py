"""Run a target on inputs: measure each one, keep what failed once per cause, and say what was seen."""

import gc
import hashlib
import resource
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.report import Report, save
from tests.hostile.target import FuzzTarget

ROOT = Path(__file__).parents[2]
# Causes of failures that a run keeps; a parser with more of them is to be mended first.
MOST_FINDINGS = 20
_MINIMISING_SECONDS = 3.0


@dataclass
class Finding:
    """An input that failed. `cause` is equal for inputs that fail in the same way at the same place."""

    cause: str
    detail: str
    data: bytes


class Trial:
    """Runs `target` on one input after another. `folder`: where findings and the report are written; None: nowhere.
    `findings`: the first of each cause."""

    def __init__(self, target: FuzzTarget, folder: Path | None = None) -> None:
        self.target, self.folder = target, folder
        self.report, self.findings = Report(target.path), dict[str, Finding]()
        self._slowest, self._outcomes = b"", set[str]()
        self._started = self._saved = time.monotonic()
        # The first calls import and compile what later ones use.
        for seed in target.seeds:
            self.failure(seed, bounded=False)
        # Objects that are there now are not looked at again by the trials of other targets.
        gc.collect()
        gc.freeze()

    def __call__(self, data: bytes) -> str | None:
        """Run one input; return its outcome, None if it failed. Findings are kept, not raised."""
        report = self.report
        report.inputs += 1
        peak, started = _peak_bytes(), time.process_time()
        failure, outcome = self._run(data)
        taken, growth = time.process_time() - started, _peak_bytes() - peak
        if taken > report.slowest:
            report.slowest, self._slowest = taken, data
        report.grown_bytes = max(report.grown_bytes, growth)
        if failure is None and taken > self.target.seconds:
            failure = self._too_slow(data)
        if failure is None and growth > self.target.megabytes << 20:
            failure = Finding("memory", f"the process grew by {growth >> 20} MiB", data)
        if failure is None:
            self._outcomes.add(outcome)
        else:
            self._keep(failure)
        if time.monotonic() > self._saved + 1:
            self.save()
        return None if failure is not None else outcome

    def failure(self, data: bytes, *, bounded: bool = True) -> Finding | None:
        """Return why `data` fails, None if it does not; without `bounded` only the target's own checks count."""
        started = time.process_time()
        failure, _ = self._run(data)
        if failure is None and bounded and time.process_time() - started > self.target.seconds:
            return self._too_slow(data)
        return failure

    def save(self) -> None:
        """Write the report."""
        self._saved = time.monotonic()
        if self.folder is not None:
            report = self.report
            a_second = report.inputs / (self._saved - self._started)
            slowest = f"{len(self._slowest)} bytes were slowest"
            report.remarks = f"{a_second:.0f} a second, {len(self._outcomes)} outcomes, {slowest}"
            save([report], self.folder)
            (self.folder / "slowest").write_bytes(self._slowest)

    def _run(self, data: bytes) -> tuple[Finding | None, str]:
        try:
            return None, self.target.run(data) or "read"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Panics of native libraries are no subclasses of Exception.
            return Finding(_cause_of(error), "".join(traceback.format_exception(error)[-12:]), data), ""

    def _too_slow(self, data: bytes) -> Finding | None:
        """Run it again: the first time it may have waited for the garbage collector or the machine."""
        started = time.process_time()
        self._run(data)
        taken = time.process_time() - started
        if taken <= self.target.seconds:
            return None
        return Finding("slow", f"{len(data)} bytes took {taken:.1f} s of CPU time", data)

    def _keep(self, finding: Finding) -> None:
        """Count it; the first of a cause is made shorter and written with the command that runs it again."""
        cause, counts = finding.cause, self.report.findings
        counts[cause] = counts.get(cause, 0) + 1
        if cause in self.findings or len(self.findings) == MOST_FINDINGS:
            return
        self.findings[cause] = finding = self._minimised(finding)
        if self.folder is not None:
            file = self.folder / f"crash-{hashlib.sha256(cause.encode()).hexdigest()[:12]}"
            file.write_bytes(finding.data)
            file.with_suffix(".txt").write_text(f"{cause}\n{finding.detail}\n{finding.data!r}\n")
            self.report.examples.append(f"{cause}\n{replay_command(self.target.path, file)}")
            print(f"{self.target.path}: {self.report.examples[-1]}", flush=True)
            self.save()

    def _minimised(self, finding: Finding) -> Finding:
        """Leave out pieces, ever smaller ones, as long as the rest fails in the same way."""
        if finding.cause in ("slow", "memory") or finding.cause.startswith("TimeoutError"):
            return finding
        best, size = finding, max(1, len(finding.data) // 2)
        until = time.monotonic() + _MINIMISING_SECONDS
        while size:
            at = 0
            while at < len(best.data) and time.monotonic() < until:
                shorter, _ = self._run(best.data[:at] + best.data[at + size :])
                if shorter is not None and shorter.cause == finding.cause:
                    best = shorter
                else:
                    at += size
            size //= 2
        return best


def replay_command(path: str, file: Path) -> str:
    """Return the command that runs a kept input again."""
    return f"again: {sys.executable} -m tests.hostile replay {path} {file}"


def _cause_of(error: BaseException) -> str:
    """Return the type of an error and where our code raised it, or called what raised it."""
    places = traceback.extract_tb(error.__traceback__)
    ours = [place for place in places if str(ROOT) in place.filename and "site-packages" not in place.filename]
    parser = [place for place in ours if "/tests/" not in place.filename] or ours
    place = f"{Path(parser[-1].filename).relative_to(ROOT)}:{parser[-1].lineno}" if parser else "?"
    return f"{type(error).__name__} at {place}"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
