"""`python -m tests.requirements [ROW…]`: takes the claim of each row away and runs the tests that the row names.

They have to fail. Survivors are printed, and the verdicts recorded with their commit in docs/measurements.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from benchmarks.requirements.evidence_runs import git
from benchmarks.requirements.requirements import Requirement
from tests.requirements.row_mutants import (
    ROOT,
    RecordedVerdict,
    RowMutant,
    add_to_record,
    digest_of,
    read_mutants,
    read_record,
    requirements_by_key,
)
from tests.requirements.scratch_copy import ScratchCopy, scratch_copy
from tests.requirements.verdict_table import fill_page


def main(arguments: Sequence[str]) -> int:
    """Test the mutants; 1 if one lives, or its tests do not run, or they fail without it. Skipped tests are shown."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="IDs, or their beginnings (GW); all without any.")
    parser.add_argument(
        "--changed", action="store_true", help="Only mutants whose files differ from those of their recorded verdict."
    )
    parser.add_argument(
        "--missing", action="store_true", help="Only mutants that no verdict is recorded of; with --changed, both."
    )
    parser.add_argument(
        "--passing", action="store_true", help="The named tests are known to pass: do not run them without a mutant."
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Begin no mutant after so long.")
    parser.add_argument(
        "--keep", action="store_true", help="Record the verdicts in docs/measurements and docs/results/mutants.md."
    )
    options = parser.parse_args(arguments)

    rows, recorded = requirements_by_key(), read_record()
    chosen = [mutant for mutant in read_mutants().mutants if _is_chosen(mutant.row, options.rows)]
    if states := {name for name in ("changed", "missing") if getattr(options, name)}:
        chosen = [mutant for mutant in chosen if _state_of(mutant, rows[mutant.row], recorded) in states]
    verdicts: dict[str, RecordedVerdict] = {}
    for key, verdict in _tested(chosen, rows, recorded, passing=options.passing, seconds=options.seconds):
        verdicts[key] = verdict
        print(f"{verdict.verdict:8} {key}: {verdict.by}", file=sys.stderr, flush=True)
        if options.keep:
            add_to_record({key: verdict})
    if options.keep:
        fill_page()
    bad = {key: verdict for key, verdict in verdicts.items() if verdict.verdict != "killed"}
    print(
        f"{len(verdicts) - len(bad)} of {len(verdicts)} killed, {len(chosen) - len(verdicts)} left out for lack of time"
    )
    for key, verdict in bad.items():
        print(f"  {verdict.verdict}: {key} {verdict.by}")
    return int(any(verdict.verdict != "skipped" for verdict in bad.values()))


def _is_chosen(row: str, beginnings: Sequence[str]) -> bool:
    return not beginnings or row.startswith(tuple(beginnings))


def _state_of(
    mutant: RowMutant, row: Requirement, recorded: Mapping[str, RecordedVerdict]
) -> Literal["missing", "changed", "current"]:
    """Return what is known of a mutant. One that was not killed is tested again as if it had changed."""
    verdict = recorded.get(mutant.key)
    if verdict is None:
        return "missing"
    is_current = verdict.verdict == "killed" and verdict.digest == digest_of(mutant, row)
    return "current" if is_current else "changed"


def _tested(
    mutants: Sequence[RowMutant],
    rows: Mapping[str, Requirement],
    recorded: Mapping[str, RecordedVerdict],
    *,
    passing: bool,
    seconds: float,
) -> Iterator[tuple[str, RecordedVerdict]]:
    """Yield each mutant's key and verdict, without those for which the time was too short."""
    commit = git(ROOT, "rev-parse", "--short=12", "HEAD") or "unknown"
    until = time.monotonic() + seconds
    sound: dict[str, bool] = {}
    with scratch_copy() as copy:
        for mutant in mutants:
            if time.monotonic() > until:
                break
            row = rows[mutant.row]
            if not passing and mutant.row not in sound:
                sound[mutant.row] = copy.run(row.tests)[0] == "lives"
            if sound.get(mutant.row, True):
                yield mutant.key, _verdict(copy, mutant, row, recorded, commit)
            else:
                error = _record_of(mutant, row, commit, "error", "its tests do not pass without the mutant")
                yield mutant.key, error


def _verdict(
    copy: ScratchCopy, mutant: RowMutant, row: Requirement, recorded: Mapping[str, RecordedVerdict], commit: str
) -> RecordedVerdict:
    """Run the test that noticed the mutant last time first."""
    last = recorded[mutant.key].by.partition("[")[0] if mutant.key in recorded else ""
    tests = sorted(row.tests, key=lambda test: test.partition("::")[2] != last)
    with copy.edited(mutant.edits):
        verdict, by = copy.run(tests)
    return _record_of(mutant, row, commit, verdict, by)


def _record_of(mutant: RowMutant, row: Requirement, commit: str, verdict: str, by: str) -> RecordedVerdict:
    day = datetime.now(UTC).date().isoformat()
    return RecordedVerdict(verdict, by, digest_of(mutant, row), commit, day)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
