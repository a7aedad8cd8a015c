"""`python -m tests.attacks`: attack gateways of our own, on loopback only, and print what each class did.

    python -m tests.attacks                      all classes, 40,000 inputs and more
    python -m tests.attacks --inputs 1000        a short run
    python -m tests.attacks --class login --seed 7

The same seed sends the same inputs. The exit status is 1 if anything was found: an answer of 5xx that an input caused,
a process that ended, an event loop that stood still for more than 100 ms, a traceback in the log, an input without an
answer, more than 64 MiB of memory that stayed, or a bypass: data, changes, money or a file for a caller without the
right to it. Each class is described where it is defined, in the modules of `families`.
"""

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.attacks.families import load_classes
from tests.attacks.report import HEAD, line, markdown, row
from tests.attacks.runner import TOGETHER_ON, Verdict, run_classes, run_together, total
from tests.attacks.targets import Targets

TOGETHER_INPUTS = 1500


def main() -> None:
    """Parse the command line, attack, print the table, and exit with 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description="Attack gateways of our own.")
    parser.add_argument("--class", dest="classes", action="append", metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--on", action="append", metavar="TARGET", help="only classes of this target; repeatable")
    parser.add_argument("--without", action="append", default=[], metavar="TARGET", help="leave a target out")
    parser.add_argument("--inputs", type=int, help="about as many inputs altogether")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ignore-stalls", action="store_true", help="show them, but exit with 0: on a loaded machine")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--list", action="store_true", help="print the classes and their targets")
    given = parser.parse_args()
    classes = load_classes()
    chosen = [one for one in classes.values() if one.on not in given.without and (not given.on or one.on in given.on)]
    if given.classes:
        unknown = set(given.classes) - set(classes)
        if unknown:
            parser.error(f"no such class: {', '.join(sorted(unknown))}; see --list")
        chosen = [one for one in chosen if one.name in given.classes]
    if given.list:
        for one in chosen:
            print(f"{one.name:34} {one.on:14} {one.inputs:6}  {(one.attack.__doc__ or '').splitlines()[0]}")
        return
    scale = 1.0 if given.inputs is None else given.inputs / sum(one.inputs for one in chosen)
    began = time.monotonic()
    # The attacked gateways end with this process, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def show(verdict: Verdict) -> None:
        print(line(row(verdict)), flush=True)
        for example in verdict.examples:
            print("    " + example.replace("\n", "\n    "))

    print(line(HEAD), flush=True)
    with tempfile.TemporaryDirectory(prefix="aio-attack-") as folder, ExitStack() as stack:
        targets = Targets(Path(folder), stack)
        verdicts = run_classes(chosen, targets, given.seed, scale, show)
        if not given.classes and (not given.on or TOGETHER_ON in given.on):
            verdicts.append(run_together(classes, targets, given.seed, round(TOGETHER_INPUTS * scale)))
            show(verdicts[-1])
    print(line(row(total("all", verdicts))))
    print(f"seed {given.seed}; {time.monotonic() - began:.0f} s")
    if given.markdown:
        given.markdown.write_text(markdown(verdicts) + "\n")
    sys.exit(0 if all(verdict.is_clean(not given.ignore_stalls) for verdict in verdicts) else 1)


if __name__ == "__main__":
    main()
