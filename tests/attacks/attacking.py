"""Runs classes of attacks against their gateways, and judges each by answers, process, event loop, log and memory."""

import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from tests.attacks.targets import Target, Targets
from tests.hostile.report import Report, line, save, total
from tests.hostile.target import AttackClass, Limits, Outcome, target_at

STALL_SECONDS = 0.1
MOST_GROWTH = 64 * 2**20
# Of a class whose memory grows beyond the bound; a leak grows in the last one too.
MOST_ATTACKS = 4
# Seconds that a class may take beyond its inputs: a class that hangs is a failure.
SETTLING_SECONDS = 6.0
# A record of the log with a traceback, which is indented below it.
_UNEXPECTED = re.compile(r"^\d{4}-.*(?:\n {4}.*)+|^Traceback(?:\n.*)+", re.M)


def attack_in_turn(paths: Sequence[str], limits: Limits, folder: Path) -> None:
    """Run classes one after another; show and save their reports."""
    reports: list[Report] = []
    with tempfile.TemporaryDirectory(prefix="aio-attack-") as data, ExitStack() as stack:
        targets = Targets(Path(data), stack)
        for chosen in map(target_at, paths):
            assert isinstance(chosen, AttackClass)
            reports.append(run_class(chosen, targets, limits))
            save(reports, folder)
            print(line(reports[-1].row), flush=True)


def run_class(chosen: AttackClass, targets: Targets, limits: Limits) -> Report:
    """Attack, and judge. Where the memory grew beyond its bound, attack up to `MOST_ATTACKS` times altogether, and
    judge the growth of the last one: what attacks make a process load or fill is no leak. A pool of blocks has an end,
    which a class that fills a part of it reaches after several."""
    reports = [_attacked(chosen, targets, limits, limits.seed)]
    while reports[-1].grown_bytes > MOST_GROWTH and len(reports) < MOST_ATTACKS:
        reports.append(_attacked(chosen, targets, limits, limits.seed + len(reports)))
    report = total(chosen.path, reports)
    report.grown_bytes = reports[-1].grown_bytes
    if report.grown_bytes > MOST_GROWTH:
        report.note("memory", f"{report.grown_bytes / 2**20:.0f} MiB stayed")
    if report.findings:
        again = f"'{chosen.path}' --inputs {limits.count(chosen)} --seed {limits.seed}"
        report.examples.append(f"again: python -m tests.hostile run {again}")
    return report


def _attacked(chosen: AttackClass, targets: Targets, limits: Limits, seed: int) -> Report:
    target = targets.get(chosen.on)
    # What was noted before is not judged.
    target.new_lags(), target.new_log()
    report = Report(chosen.path)
    administration = None if chosen.privileged else target.administration()
    before, began = target.resident_bytes(), time.monotonic()
    try:
        for outcome in chosen.attack(target, Random(f"{seed} {chosen.name}"), limits.count(chosen)):
            _judge(report, outcome)
            if limits.seconds is not None and time.monotonic() > began + limits.seconds:
                break
    except (AssertionError, OSError) as error:
        # A class checks what it needs to go on; where the gateway is dead it has no connection.
        report.note("class ended", f"{type(error).__name__}: {error}")
    if not target.lives():
        report.note("death", f"status {target.aio.process.poll()}: {target.new_log()[-2000:]}")
        targets.replace(chosen.on)
        return report
    if administration is not None and administration != (now := target.administration()):
        changed = {path: str(now[path])[:300] for path in administration if administration[path] != now[path]}
        report.note("bypass", f"the administration changed: {changed}")
    _judge_process(report, target, before)
    return report


def _judge(report: Report, outcome: Outcome) -> None:
    report.inputs += 1
    if outcome.is_server_error:
        report.note("5xx", f"{outcome.status} {outcome.code} {outcome.label}")
    if outcome.status == -1:
        report.note("unanswered", outcome.label)
    if outcome.bypass:
        report.note("bypass", f"{outcome.bypass}: {outcome.label}")


def _judge_process(report: Report, target: Target, before: int) -> None:
    """Judge the event loop, the log, and the memory once it has settled."""
    ended = time.monotonic() + SETTLING_SECONDS
    # Free pages of the heap are given back a second or more after the last request.
    while (grown := target.resident_bytes() - before) > MOST_GROWTH / 8 and time.monotonic() < ended:
        time.sleep(0.5)
    report.grown_bytes = max(grown, 0)
    judge_lags(report, target.new_lags())
    for found in _UNEXPECTED.finditer(target.new_log()):
        report.note("logged", found[0][-2000:])


def judge_lags(report: Report, lags: Iterable[dict[str, Any]]) -> None:
    """Note those beyond the bound that the machine did not cause."""
    for lag in lags:
        own = lag["lag"] - lag["machine"]
        report.slowest = max(report.slowest, own)
        if own > STALL_SECONDS:
            machine = f"and {lag['machine'] * 1e3:.0f} ms of the machine"
            report.note("stall", f"{own * 1e3:.0f} ms ({machine})\n{lag['doing']}")
