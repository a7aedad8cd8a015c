"""Runs targets in processes of their own, several at a time, with limits, and gathers their reports."""

import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from tests.fuzz.engines import HANG_SECONDS, guide_by_coverage, has_atheris, last_input, mutate_for
from tests.fuzz.trial import Trial, replay_command
from tests.hostile.report import Report, saved
from tests.hostile.target import FuzzTarget, Limits, Target, target_at, targets_like

# Above what the inputs take: imports, instrumentation, gateways that start, the rest of a slow input.
_STARTING_SECONDS = 180
# For a number of inputs.
_LONGEST_SECONDS = 3600.0
_ENDING_SECONDS = 60.0


def run(targets: Sequence[Target], limits: Limits, folder: Path, jobs: int = 1) -> list[Report]:
    """Run `targets`, `jobs` processes at a time, with logs and failing inputs in folders below `folder`."""
    by_process: dict[str, list[Target]] = defaultdict(list)
    for target in targets:
        by_process[target.process].append(target)
    started: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            one = partial(_in_process, limits=limits, folder=folder, started=started)
            found = [report for reports in pool.map(one, by_process.values()) for report in reports]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                process.terminate()
    places = {target.path: place for place, target in enumerate(targets)}
    return sorted(found, key=lambda report: places[report.name])


def found_by(*patterns: str, scale: float, folder: Path) -> str:
    """Return what a short run finds next to other work, which makes stalls of its own; nothing if there is none."""
    reports = run(targets_like(*patterns), Limits(scale=scale), folder)
    assert all(report.inputs for report in reports)
    found = [example for report in reports if report.found(["stall"]) for example in [report.name, *report.examples]]
    return "\n".join(found)[:10_000]


def _in_process(
    targets: Sequence[Target], limits: Limits, folder: Path, started: list[subprocess.Popen[bytes]]
) -> list[Report]:
    own = folder / targets[0].process
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.hostile", "worker", str(own), msgspec.json.encode(limits).decode()]
    longest = _LONGEST_SECONDS if limits.seconds is None else limits.seconds * len(targets)
    began = time.monotonic()
    with (own / "log").open("wb") as log, tempfile.TemporaryDirectory(prefix="aio-hostile-") as temporary:
        # A database's own user looks into it.
        Path(temporary).chmod(0o711)
        process = subprocess.Popen(
            [*command, *(target.path for target in targets)], stderr=log, env=os.environ | {"TMPDIR": temporary}
        )
        started.append(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(longest + HANG_SECONDS + _STARTING_SECONDS)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
        process.kill()
        ended = process.wait()
    printed = (own / "log").read_text(errors="replace")
    by_name = {report.name: report for report in saved(own)}
    reports = [by_name.get(target.path) or Report(target.path) for target in targets]
    if ended != 0:
        last = reports[min(len(by_name), len(reports) - 1)]
        last.note("process", f"ended with {ended} after {time.monotonic() - began:.0f} s\n{printed[-1500:]}")
        if (own / "current").exists():
            (own / "crash-death").write_bytes(last_input(own))
            last.examples.append(replay_command(last.name, own / "crash-death"))
    for name in ("cov", "corp"):
        if found := re.findall(rf"{name}: (\d+)", printed):
            reports[0].remarks += f", {name} {found[-1]}"
    return reports


def work(folder: Path, limits: Limits, paths: Sequence[str]) -> None:
    """Run in this process the targets of one process, and save their reports."""
    faulthandler.enable()
    # What was started ends with this process, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not paths[0].startswith("fuzz/"):
        # Not before code is instrumented for fuzz targets.
        from tests.attacks.attacking import attack_in_turn

        attack_in_turn(paths, limits, folder)
    elif limits.is_by_time and (limits.engine == "atheris" or (limits.engine == "auto" and has_atheris())):
        guide_by_coverage(paths[0], limits.seconds or 0.0, folder, limits.seed)
    else:
        target = target_at(paths[0])
        assert isinstance(target, FuzzTarget)
        count = None if limits.is_by_time else limits.count(target)
        mutate_for(Trial(target, folder), seconds=limits.seconds, executions=count, seed=limits.seed)
