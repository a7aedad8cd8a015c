"""Run a target on inputs: measure each one, keep what failed once per cause, and say what was seen."""

import gc
import hashlib
import json
import resource
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.target import HERE, Target

ROOT = HERE.parents[1]
# Causes of failures that a run keeps; a parser with more of them is to be mended first.
MOST_FINDINGS = 20
_MINIMISING_SECONDS = 3.0


@dataclass
class Finding:
    """An input that failed. `cause` is equal for inputs that fail in the same way at the same place."""

    cause: str
    detail: str
    data: bytes


@dataclass
class Observed:
    """What a run has seen so far."""

    executions: int = 0
    slowest_seconds: float = 0.0
    slowest: bytes = b""
    growth_megabytes: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)


class Trial:
    """Runs `target` on one input after another. `folder`: where findings and figures are written; None: nowhere."""

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        self.target, self.folder = target, folder
        self.seen = Observed()
        self._started = self._saved = time.monotonic()
        # The first calls import and compile what later ones use.
        for seed in target.seeds:
            self.failure(seed, bounded=False)
        # Objects that are there now are not looked at again by the trials of other targets.
        gc.collect()
        gc.freeze()

    def __call__(self, data: bytes) -> str | None:
        """Run one input; return its outcome, None if it failed. Findings are kept, not raised."""
        seen = self.seen
        seen.executions += 1
        peak, started = _peak_megabytes(), time.process_time()
        failure, outcome = self._run(data)
        taken, growth = time.process_time() - started, _peak_megabytes() - peak
        if taken > seen.slowest_seconds:
            seen.slowest_seconds, seen.slowest = taken, data
        seen.growth_megabytes = max(seen.growth_megabytes, growth)
        if failure is None and taken > self.target.seconds:
            failure = self._too_slow(data)
        if failure is None and growth > self.target.megabytes:
            failure = Finding("memory", f"the process grew by {growth:.0f} MB", data)
        if failure is None:
            seen.outcomes[outcome] += 1
        elif failure.cause not in seen.findings and len(seen.findings) < MOST_FINDINGS:
            seen.findings[failure.cause] = failure = self._minimised(failure)
            self._write(failure)
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

    def save(self, **more: object) -> None:
        """Write the figures."""
        self._saved = time.monotonic()
        if self.folder is not None:
            seen = self.seen
            figures = {
                "executions": seen.executions,
                "seconds": time.monotonic() - self._started,
                "slowest_seconds": seen.slowest_seconds,
                "slowest_bytes": len(seen.slowest),
                "growth_megabytes": seen.growth_megabytes,
                "outcomes": dict(seen.outcomes.most_common(30)),
                "findings": {cause: finding.detail for cause, finding in seen.findings.items()},
            }
            (self.folder / "figures.json").write_text(json.dumps(figures | more))
            (self.folder / "slowest").write_bytes(seen.slowest)

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

    def _write(self, finding: Finding) -> None:
        if self.folder is not None:
            name = hashlib.sha256(finding.cause.encode()).hexdigest()[:12]
            (self.folder / f"crash-{name}").write_bytes(finding.data)
            (self.folder / f"crash-{name}.txt").write_text(f"{finding.cause}\n{finding.detail}\n{finding.data!r}\n")
            print(f"{self.target.name}: {finding.cause}\n  replay: {replay_command(self.target, self.folder, name)}")
            self.save()


def replay_command(target: Target, folder: Path, name: str) -> str:
    """Return the command that runs a kept input again."""
    return f"{sys.executable} -m tests.fuzz replay {target.name} {folder / f'crash-{name}'}"


def _cause_of(error: BaseException) -> str:
    """Return the type of an error and where our code raised it, or called what raised it."""
    places = traceback.extract_tb(error.__traceback__)
    ours = [place for place in places if str(ROOT) in place.filename and "site-packages" not in place.filename]
    parser = [place for place in ours if "/tests/" not in place.filename] or ours
    place = f"{Path(parser[-1].filename).relative_to(ROOT)}:{parser[-1].lineno}" if parser else "?"
    return f"{type(error).__name__} at {place}"


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
