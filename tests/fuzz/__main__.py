"""`python -m tests.fuzz`: run fuzz targets one after another or several at a time, and replay what they found."""

import argparse
import faulthandler
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz.engines import HANG_SECONDS, guide_by_coverage, has_atheris, last_input, mutate_for
from tests.fuzz.target import target_called, targets_like
from tests.fuzz.trial import Trial

FOLDER = Path("build/fuzz")
# Above what the inputs take: imports, instrumentation, the rest of a slow input.
_STARTING_SECONDS = 180
# For a count of inputs.
_LONGEST_COUNT = 3600.0


def main() -> int:
    """Run the chosen command; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run targets and print a table")
    run.add_argument("--target", default="*", help="part of a target's name, or a pattern of file names")
    run.add_argument("--seconds", type=float, default=300.0, help="per target")
    run.add_argument("--executions", type=int, help="per target, instead of the seconds; by mutation alone")
    run.add_argument("--jobs", type=int, default=1, help="targets at a time")
    run.add_argument("--engine", choices=("auto", "atheris", "mutation"), default="auto")
    run.add_argument("--seed", type=int, default=None, help="of the random numbers; default: another one each time")
    replay = commands.add_parser("replay", help="run one input and show how it fails")
    replay.add_argument("target")
    replay.add_argument("file", type=Path)
    commands.add_parser("list", help="print the targets")
    worker = commands.add_parser("worker")
    worker.add_argument("target")
    worker.add_argument("--seconds", type=float, required=True)
    worker.add_argument("--executions", type=int)
    worker.add_argument("--engine", required=True)
    worker.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    if given.command == "list":
        print("\n".join(target.name for target in targets_like()))
        return 0
    if given.command == "replay":
        return _replay(given.target, given.file)
    if given.command == "worker":
        _work(given.target, given.seconds, given.executions, given.engine, given.seed)
        # Threads that a target started must not keep the process.
        sys.stdout.flush()
        os._exit(0)
    return _run(given)


def _replay(name: str, file: Path) -> int:
    faulthandler.enable()
    data = file.read_bytes()
    failure = Trial(target_called(name)).failure(data)
    print(f"{data!r}\n{'passes' if failure is None else failure.detail}")
    return int(failure is not None)


def _work(name: str, seconds: float, executions: int | None, engine: str, seed: int) -> None:
    """Run one target in this process."""
    faulthandler.enable()
    folder = FOLDER / name
    if engine == "atheris":
        guide_by_coverage(name, seconds, folder, seed)
    else:
        mutate_for(Trial(target_called(name), folder), seconds=seconds, executions=executions, seed=seed)


def _run(given: argparse.Namespace) -> int:
    engine = given.engine if given.engine != "auto" else "atheris" if has_atheris() else "mutation"
    if given.executions is not None:
        engine, given.seconds = "mutation", _LONGEST_COUNT
    names = [target.name for target in targets_like(given.target)]
    if not names:
        print(f"no target's name has {given.target!r} in it; see: python -m tests.fuzz list")
        return 2
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(3), "big")
    each = f"{given.executions} inputs" if given.executions is not None else f"{given.seconds:g} s"
    print(f"{len(names)} targets, {each} each, {given.jobs} at a time, engine {engine}, seed {seed}")
    with ThreadPoolExecutor(given.jobs) as jobs:
        rows = list(jobs.map(lambda name: _one(name, given, engine, seed), names))
    print(_table(rows))
    found = sum(row["crashes"] for row in rows)
    print(f"{len(rows)} targets, {sum(row['executions'] for row in rows)} executions, {found} findings")
    return int(found > 0)


def _one(name: str, given: argparse.Namespace, engine: str, seed: int) -> dict[str, Any]:
    """Run a target in a process of its own, which a native crash may end."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tmp").mkdir(parents=True)
    command = [sys.executable, "-m", "tests.fuzz", "worker", name]
    command += ["--seconds", f"{given.seconds:g}", "--engine", engine, "--seed", str(seed)]
    if given.executions is not None:
        command += ["--executions", str(given.executions)]
    started = time.monotonic()
    with (folder / "log").open("w+b") as log:
        own = os.environ | {"TMPDIR": str((folder / "tmp").resolve())}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=own)
        try:
            ended = process.wait(given.seconds + HANG_SECONDS + _STARTING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            ended = process.wait()
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    row = _figures(folder) | {"target": name}
    printed = (folder / "log").read_text(errors="replace")
    row["coverage"] = (re.findall(r"cov: (\d+)", printed) or ["-"])[-1]
    row["corpus"] = (re.findall(r"corp: (\d+)", printed) or [row.get("corpus", "-")])[-1]
    row["crashes"] = len(row["findings"])
    if ended != 0:
        row["crashes"] += 1
        shown = f"the process ended with {ended} after {time.monotonic() - started:.0f} s"
        if (folder / "current").exists():
            (folder / "crash-death").write_bytes(last_input(folder))
            shown += f"; replay: {sys.executable} -m tests.fuzz replay {name} {folder / 'crash-death'}"
        print(f"{name}: {shown}\n{printed[-1500:]}")
    for line in re.findall(r"^.*\n  replay: .*$", printed, re.MULTILINE):
        print(line)
    print(f"{name}: {row['executions']} executions, {row['crashes']} findings", flush=True)
    return row


def _figures(folder: Path) -> dict[str, Any]:
    try:
        figures: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    except (OSError, ValueError):
        return {
            "executions": 0,
            "seconds": 1.0,
            "slowest_seconds": 0.0,
            "slowest_bytes": 0,
            "outcomes": {},
            "findings": {},
        }
    return figures


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| target | executions | per second | coverage | corpus | outcomes | slowest | crashes |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        slowest = f"{1000 * row['slowest_seconds']:.0f} ms ({row['slowest_bytes']} bytes)"
        per_second = round(row["executions"] / max(row["seconds"], 0.001))
        cells = (row["target"], row["executions"], per_second, row["coverage"], row["corpus"], len(row["outcomes"]))
        lines.append("| " + " | ".join(map(str, (*cells, slowest, row["crashes"]))) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
