"""The sources' checklist of best practice (SPEC CK-01 to CK-09), and the state of every requirement.

An item rests on rows of docs/results/requirements.md and passes when all of them do. `evidence_runs` runs the tests
that rows name; `checklist` only reads what was recorded, so a page can show it quickly.
"""

from importlib.resources import files
from pathlib import Path
from typing import Literal

import click
import msgspec

from benchmarks.requirements.evidence_runs import (
    EvidenceRun,
    EvidenceRunError,
    read_record,
    reported_runs,
    write_record,
)
from benchmarks.requirements.evidence_runs import run_tests as runs_of
from benchmarks.requirements.requirements import PAGE, Requirement, read_requirements
from gateway.cli.options import FOLDER, echo_json, json_option, table

Status = Literal["pass", "fail", "partly", "not done", "not measured"]


class ChecklistItem(msgspec.Struct, frozen=True, kw_only=True):
    """`row`: the requirement that it is of; `rests_on`: requirements; `measurements`: files of docs/measurements;
    `gap`: what no evidence covers."""

    row: str
    area: str
    item: str
    rests_on: tuple[str, ...] = ()
    measurements: tuple[str, ...] = ()
    gap: str = ""

    @property
    def key(self) -> str:
        """Name of the item, distinct within the list."""
        return f"{self.row} {self.item}"


class CheckedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item, its status and a summary of its evidence."""

    item: ChecklistItem
    status: Status
    evidence: str


class _Checklist(msgspec.Struct):
    items: tuple[ChecklistItem, ...]


ITEMS = msgspec.toml.decode((files("benchmarks.requirements") / "checklist.toml").read_bytes(), type=_Checklist).items


def checklist(measurements: Path, page: Path = PAGE) -> list[CheckedItem]:
    """Return every item by the requirements of `page` and the record in the folder `measurements`. Runs nothing."""
    states = {state.item.row: state for state in requirement_states(measurements, page)}
    return [_checked(item, states, measurements) for item in ITEMS]


def requirement_states(measurements: Path, page: Path = PAGE) -> list[CheckedItem]:
    """Return every requirement of `page` but the checklist's own rows, with its state, in the same form."""
    runs = read_record(measurements)
    return [_state(row, runs) for row in read_requirements(page) if not row.key.startswith("CK-")]


def named_tests(only: str | None, page: Path = PAGE) -> list[str]:
    """Return the tests of the requirements whose keys begin with `only`, and of those that such items rest on; of all
    requirements for None."""
    wanted = {key for item in ITEMS if only and item.row.startswith(only) for key in item.rests_on}
    rows = [row for row in read_requirements(page) if only is None or row.key.startswith(only) or row.key in wanted]
    return list(dict.fromkeys(test for row in rows for test in row.tests))


def _state(row: Requirement, runs: dict[str, EvidenceRun]) -> CheckedItem:
    evidence = [f"{test}: {runs[test].summary if test in runs else 'not run'}" for test in row.tests]
    evidence += [f"`{command}`" for command in row.commands] + ([row.missing] if row.missing else [])
    item = ChecklistItem(row=row.key, area=row.chapter, item=row.text)
    return CheckedItem(item=item, status=_status(row, runs), evidence="; ".join(evidence))


def _status(row: Requirement, runs: dict[str, EvidenceRun]) -> Status:
    if any(test in runs and runs[test].failed for test in row.tests):
        return "fail"
    if row.missing.startswith("not done"):
        return "not done"
    if not row.tests or not all(test in runs and runs[test].good for test in row.tests):
        return "not measured"
    return "partly" if row.missing else "pass"


def _checked(item: ChecklistItem, states: dict[str, CheckedItem], measurements: Path) -> CheckedItem:
    status_by_key = {key: states[key].status if key in states else "not measured" for key in item.rests_on}
    lacking = [name for name in item.measurements if not (measurements / name).is_file()]
    evidence = [f"{key} {status}" for key, status in status_by_key.items()]
    evidence += [f"{name}{' (missing)' if name in lacking else ''}" for name in item.measurements]
    if item.gap:
        evidence.append(item.gap)
    status: Status = "pass"
    if "fail" in status_by_key.values():
        status = "fail"
    elif lacking or "not measured" in status_by_key.values():
        status = "not measured"
    elif item.gap or set(status_by_key.values()) != {"pass"}:
        status = "partly"
    return CheckedItem(item=item, status=status, evidence="; ".join(evidence))


@click.command()
@click.option(
    "--measurements",
    type=FOLDER,
    default=Path("docs/measurements"),
    help="Folder of measurements and of the record of test runs.",
)
@click.option(
    "--run", "run_tests", is_flag=True, help="Run the tests that requirements name, and record their results."
)
@click.option(
    "--reports",
    type=FOLDER,
    help="Record the results that JUnit reports in this folder have, as .ci/run leaves them, instead of running.",
)
@click.option("--only", metavar="ROW", help="Requirements whose ID begins so, such as CK-03, GW or GW-05.")
@json_option
def checklist_command(
    measurements: Path, run_tests: bool, reports: Path | None, only: str | None, as_json: bool
) -> None:
    """Print the best practices with their evidence; with `--only` also requirements. Exits with 1 if one fails.

    `--run` and `--reports` need a checkout without changes.
    """
    try:
        if reports is not None:
            write_record(measurements, reported_runs(Path.cwd(), reports, named_tests(only)))
        if run_tests:
            for test, run in runs_of(Path.cwd(), named_tests(only)):
                click.echo(f"{test}: {run.summary}", err=True)
                write_record(measurements, {test: run})
    except EvidenceRunError as error:
        raise click.ClickException(str(error)) from error
    checked = checklist(measurements)
    if only is not None:
        checked = [state for state in [*checked, *requirement_states(measurements)] if state.item.row.startswith(only)]
    if as_json:
        echo_json(checked)
    else:
        rows = [[each.item.row, each.item.area, each.item.item, each.status, each.evidence] for each in checked]
        click.echo(table(["row", "area", "item", "status", "evidence"], rows))
    if any(each.status == "fail" for each in checked):
        raise SystemExit(1)
