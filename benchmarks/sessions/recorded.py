"""Recorded runs of agents as numbers (files of the form of `agents/`), and the signs that the product's rules read."""

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from classifier.policy.sessions import EndSigns, LoopCounters

# Places in a step's vector.
CATEGORY, SEVERITY, EXIT_CODE = 0, 1, 2
REPEATED, NEAR, PASSED, FAILED, BAD_CALL = 6, 7, 9, 10, 11
SERIOUS = 2
"""From this severity on a step counts as an error."""
# Ends of a harness in which the agent stopped by itself. "": the harness says nothing.
CLEAN_EXITS = frozenset({"submitted", "unset", "completed", "finished", "done", "success", "stop", "end_turn"})

Step = Sequence[str | float | None]


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `model` on `task`. `tin`, `tout`: tokens read and written; `usd`: its price; None: unknown. `turns`: of
    runs without `steps`."""

    set: str
    task: str
    model: str
    reward: float | None = None
    run: str | int | None = None
    exit: str | None = None
    tin: float | None = None
    tout: float | None = None
    usd: float | None = None
    part: str | None = None
    turns: float | None = None
    seconds: float | None = None
    steps: list[Step] = []

    @property
    def length(self) -> float:
        """Steps of the run, or its turns where no steps are recorded."""
        return float(len(self.steps) or self.turns or 0)


def read_runs(file: Path) -> list[RecordedRun]:
    """Return the runs of FILE (JSON lines, gzipped or not) that have a reward.

    Raises ValueError for a line that is no run, with its number.
    """
    runs = list(_lines(file))
    if not runs:
        raise ValueError(f"{file}: no run with a reward")
    return runs


def _lines(file: Path) -> Iterator[RecordedRun]:
    decode = msgspec.json.Decoder(RecordedRun).decode
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                run = decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{file}, line {number}: {error}") from error
            if run.reward is not None:
                yield run


def end_signs(run: RecordedRun) -> EndSigns:
    """Return what the end of `run` shows without its reward: how it stopped, its last check, and its last exit code,
    for which a serious error in the last result stands where no code is known.

    Its length is none of them: in some harnesses success ends a run, so that length would give the label away.
    """
    clean = None if not run.exit else run.exit in CLEAN_EXITS
    check = next((step for step in reversed(run.steps) if step[PASSED] or step[FAILED]), None)
    last_exit = next((code for step in reversed(run.steps) if (code := _number(step[EXIT_CODE])) >= 0), None)
    exit_passed = None if last_exit is None else last_exit == 0
    if last_exit is None and run.steps and _number(run.steps[-1][SEVERITY]) >= SERIOUS:
        exit_passed = False
    return EndSigns(
        clean=clean,
        check_passed=None if check is None else not _number(check[FAILED]),
        exit_passed=exit_passed,
    )


def counters_of(steps: Sequence[Step]) -> LoopCounters:
    """Return the counters of a loop after `steps`."""
    bad_calls = 0
    for step in steps:
        bad_calls = bad_calls + 1 if _number(step[BAD_CALL]) else 0
    codes = [code for step in steps if (code := _number(step[EXIT_CODE])) >= 0]
    return LoopCounters(
        steps=len(steps),
        errors=sum(_number(step[SEVERITY]) >= SERIOUS or _number(step[EXIT_CODE]) > 0 for step in steps),
        repeats=sum(_number(step[REPEATED]) > 0 for step in steps),
        bad_calls=bad_calls,
        exits=len(codes),
        failed_exits=sum(code > 0 for code in codes),
    )


def _number(value: str | float | None) -> float:
    return -1.0 if value is None or isinstance(value, str) else float(value)
