"""`aio keys` and `aio teams`: changes on the command line, which running servers of the same database follow."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.tenancy.keys.key_commands import FIRST_KEY_NOTICE
from tests.gateway.in_process_cli import aio
from tests.polling import eventually
from tests.support.app import StartApp


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIO_DATA_DIR", str(tmp_path))
    return tmp_path


def said(*arguments: str) -> Any:
    result = aio(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_key_goes_from_its_making_to_its_end(folder: Path) -> None:
    team = said("teams", "create", "lab")["team_id"]
    made = said("keys", "create", "ada", "--team", "lab", "--tier", "1", "--tier", "2", "--rpm", "60", "--no-consent")
    shown = said("keys", "show", "ada")["key"]
    assert (shown["team_id"], shown["tiers"], shown["requests_per_minute"], shown["consent"]) == (
        team,
        [1, 2],
        60,
        False,
    )
    assert "digest" not in shown
    changed = said("keys", "limit", "ada", "--tier", "none", "--rpm", "none", "--tpm", "500", "--budget-day", "2.5")
    assert changed["changed"] == {
        "tiers": [[1, 2], None],
        "requests_per_minute": [60, None],
        "tokens_per_minute": [None, 500],
        "budget_day": [None, 2.5],
    }
    (budget,) = said("keys", "show", made["key_id"])["budgets"]
    assert (budget["amount_usd"], budget["spent_usd"], budget["period"]) == (2.5, 0, "day")
    assert said("keys", "rotate", "ada", "--grace-hours", "1")["key"] != made["key"]
    assert said("keys", "revoke", "ada", "--reason", "left")["key_id"] == made["key_id"]
    listed = aio("keys", "list").output
    assert "revoked" in listed
    assert made["key"] not in listed


def test_a_team_has_budgets(folder: Path) -> None:
    said("teams", "create", "lab")
    (state,) = said("teams", "budget", "lab", "--month", "100")["budgets"]
    assert (state["subject_kind"], state["period"], state["amount_usd"]) == ("team", "month", 100)
    assert said("teams", "budget", "lab")["budgets"] == [state]
    assert [row["name"] for row in said("teams", "list")["rows"]] == ["lab"]


def budgets(name: str) -> dict[str, float]:
    return {one["period"]: one["amount_usd"] for one in said("keys", "show", name)["budgets"]}


def test_a_key_is_made_with_budgets_which_none_removes(folder: Path) -> None:
    said("keys", "create", "ada", "--budget-day", "2.5", "--budget-total", "40")
    assert budgets("ada") == {"day": 2.5, "total": 40}
    assert aio("keys", "limit", "ada", "--budget-day", "none").output == "budget_day: $2.5 -> none\n"
    assert budgets("ada") == {"total": 40}
    assert aio("keys", "limit", "ada", "--budget-day", "none").output == "nothing to change\n"
    said("teams", "create", "lab")
    said("teams", "budget", "lab", "--month", "100")
    assert said("teams", "budget", "lab", "--month", "none")["budgets"] == []


def test_a_key_whose_budget_cannot_be_is_not_made(folder: Path) -> None:
    assert aio("keys", "create", "ada", "--budget-day", "-1").exit_code == 2
    assert said("keys", "list")["rows"] == []


def test_amounts_are_dollars(folder: Path) -> None:
    aio("keys", "create", "ada", "--max-cost-per-request", "0.25")
    changed = aio("keys", "limit", "ada", "--budget-month", "1234567.89").output

    assert changed == "budget_month: none -> $1234567.89\n"
    assert "leased of $1234567.89 (" in aio("keys", "show", "ada").output
    assert "$0.25 a request" in aio("keys", "list").output


def test_times_are_dates(folder: Path) -> None:
    aio("keys", "create", "ada", "--expires-in-days", "2")
    rotated = aio("keys", "rotate", "ada").output
    shown = aio("keys", "show", "ada").output
    changed = aio("keys", "limit", "ada", "--expires-in-days", "none").output

    date = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.search(
        rf"the secret before is valid until {date}\nkey key_\w+ of ada is rotated; its new secret", rotated
    )
    for column in ("created_at", "rotated_at", "old_until", "expires_at"):
        assert re.search(rf"^{column} +{date}$", shown, re.MULTILINE), column
    assert re.fullmatch(rf"expires_at: {date} -> none\n", changed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("keys", "create", "ada", "--alias", "auto=x"), "a name except auto, tier-1"),
        (("keys", "create", "a/b"), "Expected `str` of 1 to 128 Latin letters, digits, spaces"),
        (("keys", "create", "ada", "--budget-day", "-1"), "Invalid value for '--budget-day': Expected `float` >= 0"),
        (("admin", "add-user", "a b", "--password-stdin"), "Expected `str` of 1 to 128 Latin letters, digits"),
        (("new-key", "a,b"), "'a,b' cannot stand in AIO_API_KEYS"),
        (("new-key", "a=b"), "'a=b' cannot stand in AIO_API_KEYS"),
        (("new-key", ""), "'' cannot stand in AIO_API_KEYS"),
        (("keys", "create", "ada", "--tier", "9"), "<= 8"),
        (
            ("keys", "create", "ada", "--scope", "root"),
            "Invalid enum value 'root'; allowed are admin, inference, viewer",
        ),
        (("keys", "create", "ada", "--rpm", "many"), "Expected `int | null`"),
        (("keys", "create", "ada", "--expires-in-days", "-1"), "has passed"),
        (("keys", "create", "ada", "--team", "missing"), "there is no team 'missing'"),
        (("keys", "revoke", "missing"), "there is no key 'missing'"),
        (("teams", "budget", "missing"), "there is no team 'missing'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    result = aio(*arguments)
    assert result.exit_code != 0
    assert words in result.output
    assert "Traceback" not in result.output


async def test_a_server_that_runs_follows_the_command_line(folder: Path, app: StartApp) -> None:

    aio = await app(data_dir=str(folder), keys_poll_seconds=0.05)
    key = (await asyncio.to_thread(said, "keys", "create", "ada"))["key"]

    async def answered(status: int, **headers: str) -> bool:
        return (await aio.http.get("/v1/models", headers=headers)).status_code == status

    await eventually(lambda: answered(401))
    await eventually(lambda: answered(200, authorization=f"Bearer {key}"))
    await asyncio.to_thread(said, "keys", "revoke", "ada")
    await eventually(lambda: answered(401, authorization=f"Bearer {key}"))
    assert not await answered(200, authorization=f"Bearer {key}")


def test_a_key_gets_and_loses_its_own_names_of_models(folder: Path) -> None:
    said("keys", "create", "named", "--alias", "gpt-4o=auto", "--alias", "*=tier-1", "--strict")
    shown = said("keys", "show", "named")["key"]
    assert (shown["aliases"], shown["strict"]) == ({"gpt-4o": "auto", "*": "tier-1"}, True)
    assert "gpt-4o=auto *=tier-1" in aio("keys", "show", "named").output
    said("keys", "limit", "named", "--alias", "none", "--no-strict")
    shown = said("keys", "show", "named")["key"]
    assert (shown["aliases"], shown["strict"]) == (None, False)
    assert "give NAME=MODEL" in aio("keys", "limit", "named", "--alias", "gpt-4o").output


def test_only_the_first_key_for_answers_says_that_callers_without_a_key_are_refused(folder: Path) -> None:
    said = [
        aio("keys", "create", name, *more).stderr
        for name, more in (("boss", ["--scope", "admin"]), ("ada", []), ("eve", []))
    ]

    follows = "Running servers admit it within seconds.\n"
    assert said == [follows, f"{follows}{FIRST_KEY_NOTICE}\n", follows]
