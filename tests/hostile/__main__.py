"""`python -m tests.hostile`: run hostile inputs against every parser and gateway of our own, on loopback only.

    python -m tests.hostile list attacks/                     the classes of attacks by gateway, with what each does
    python -m tests.hostile run attacks/ --scale 0.02         a short run of all of them
    python -m tests.hostile run "*/sign-in" --seed 7          one
    python -m tests.hostile run fuzz/tiers --seconds 60       fuzz targets of tiers
    python -m tests.hostile replay NAME FILE                  a failing input, as its finding says

The exit status is 1 if anything was found. Of a fuzz target: an error that its parser does not document, too much time
or memory. Of attacks: an answer of 5xx that an input caused, a process that ended, an event loop that stood still for
more than 100 ms, a traceback in the log, an input without an answer, more than 64 MiB of memory that stayed, or a
bypass: data, changes, money or a file for a caller without the right to it.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.fuzz.trial import Trial
from tests.hostile.report import HEAD, line, markdown, total
from tests.hostile.running import run, work
from tests.hostile.target import AttackClass, FuzzTarget, Limits, Target, target_at, targets_like


def main(arguments: Sequence[str]) -> int:
    """Run the chosen command; 1 if anything was found."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("list", "run"):
        command = commands.add_parser(name)
        command.add_argument("names", nargs="*", help="parts of targets' names, or patterns of file names")
        command.add_argument("--without", action="append", default=[], help="leave these out; repeatable")
    command.add_argument("--scale", type=float, default=1.0, help="of each target's own number of inputs")
    command.add_argument("--inputs", type=int, help="per target, instead of the scale")
    command.add_argument("--seconds", type=float, help="per target; without --inputs, the only limit of fuzz targets")
    command.add_argument("--seed", type=int, help="of the random numbers; default: another one each time")
    command.add_argument("--jobs", type=int, default=1, help="processes at a time: a fuzz target, a gateway's classes")
    command.add_argument("--engine", choices=("auto", "atheris", "mutation"), default="auto", help="of fuzz targets")
    command.add_argument("--ignore", action="append", default=[], metavar="KIND", help="of findings, such as stall")
    command.add_argument("--markdown", type=Path, help="write the table to this file")
    replay = commands.add_parser("replay")
    replay.add_argument("name")
    replay.add_argument("file", type=Path)
    worker = commands.add_parser("worker", help="for run")
    worker.add_argument("folder", type=Path)
    worker.add_argument("limits")
    worker.add_argument("names", nargs="+")
    given = parser.parse_args(arguments)
    if given.command == "replay":
        return _replay(target_at(given.name), given.file.read_bytes())
    if given.command == "worker":
        work(given.folder, msgspec.json.decode(given.limits, type=Limits), given.names)
        # Threads that a target started must not keep the process.
        sys.stdout.flush()
        os._exit(0)
    targets = targets_like(*given.names, without=given.without)
    if not targets:
        parser.error(f"no target's name has one of {given.names}; see: python -m tests.hostile list")
    if given.command == "run":
        return _run(targets, given)
    for target in targets:
        said = (target.attack if isinstance(target, AttackClass) else target.run).__doc__ or ""
        print(f"{target.path:60} {target.inputs:6}  {said.partition(chr(10))[0]}".rstrip())
    return 0


def _replay(target: Target, data: bytes) -> int:
    assert isinstance(target, FuzzTarget), "attacks run again by their seed"
    failure = Trial(target).failure(data)
    print(f"{data!r}\n{'passes' if failure is None else failure.detail}")
    return int(failure is not None)


def _run(targets: Sequence[Target], given: argparse.Namespace) -> int:
    # Processes that were started end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(3), "big")
    began = time.monotonic()
    limits = Limits(given.scale, given.inputs, given.seconds, seed, given.engine)
    reports = run(targets, limits, Path("build/hostile"), given.jobs)
    print(line(HEAD))
    for report in reports:
        print(line(report.row))
        for example in report.examples:
            print("    " + example.replace("\n", "\n    "))
    whole = total("all", reports)
    print(f"{line(whole.row)}\n{len(reports)} targets, seed {seed}, {time.monotonic() - began:.0f} s")
    if given.markdown:
        given.markdown.write_text(markdown(reports))
    return int(whole.found(given.ignore) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
