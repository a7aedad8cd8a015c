"""`aio teams`: make and show teams and their budgets; `aio admin`: add, show and remove users of the dashboard."""

import sys
import time
from typing import Any

import click

from gateway.base.settings import Settings
from gateway.cli.access.keys import amount_text, budget_options, budgets_of, checked, order
from gateway.cli.options import (
    STORED,
    echo_answer,
    json_option,
    limit_option,
    reason_option,
    table,
    with_database,
    with_settings,
)


@click.group()
def admin() -> None:
    """Add, show and remove users of the dashboard."""


@admin.command("add-user")
@click.argument("name")
@click.option(
    "--role", type=click.Choice(["viewer", "operator", "admin"]), default="viewer", help="What the user may do."
)
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input instead of asking.")
@reason_option
@with_settings(*STORED)
@json_option
def add(name: str, role: str, password_stdin: bool, reason: str | None, as_json: bool, settings: Settings) -> None:
    """Let NAME sign in. A viewer reads, an operator also changes knobs and reviews, an admin also keys and users."""
    from gateway.tenancy.users.users import UserOrder, add_user

    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = click.prompt("Password (at least 12 characters)", hide_input=True, confirmation_prompt=True)
    user = checked(UserOrder, {"name": name, "password": password, "role": role})
    with_database(settings, lambda engine: add_user(engine, user, order(reason)))
    echo_answer(as_json, {"name": name, "role": role}, f"{name} may sign in at /admin as {role}")


@admin.command("list")
@with_settings(*STORED)
@json_option
def list_users(as_json: bool, settings: Settings) -> None:
    """Show who may sign in by name."""
    from gateway.tenancy.users.users import USERS

    page = with_database(settings, lambda engine: USERS.page(engine, {}, limit=1000))
    rows = [[row["name"], row["role"], time.strftime("%Y-%m-%d", time.gmtime(row["created_at"]))] for row in page.rows]
    echo_answer(as_json, page, table(["name", "role", "since"], rows))


@admin.command()
@click.argument("name")
@reason_option
@with_settings(*STORED)
@json_option
def remove(name: str, reason: str | None, as_json: bool, settings: Settings) -> None:
    """Remove NAME and end its sessions within seconds."""
    from gateway.tenancy.users.users import remove_user

    with_database(settings, lambda engine: remove_user(engine, name, order(reason)))
    echo_answer(as_json, {"name": name}, f"{name} is removed")


@click.group()
def teams() -> None:
    """Make and show teams, and set what they may spend."""


@teams.command()
@click.argument("name")
@reason_option
@with_settings(*STORED)
@json_option
def create(name: str, reason: str | None, as_json: bool, settings: Settings) -> None:
    """Make a team called NAME."""
    from gateway.tenancy.keys.key_commands import TeamOrder, create_team

    checked(TeamOrder, {"name": name})
    team_id = with_database(settings, lambda engine: create_team(engine, name, order(reason)))
    echo_answer(as_json, {"team_id": team_id}, f"team {team_id}: {name}")


@teams.command("list")
@limit_option(50)
@with_settings(*STORED)
@json_option
def list_teams(limit: int, as_json: bool, settings: Settings) -> None:
    """Show teams, newest first."""
    from gateway.tenancy.keys.key_commands import TEAMS

    page = with_database(settings, lambda engine: TEAMS.page(engine, {}, limit=limit))
    echo_answer(as_json, page, table(["id", "name"], [[row["team_id"], row["name"]] for row in page.rows]))


@teams.command()
@click.argument("team")
@budget_options()
@reason_option
@with_settings(*STORED)
@json_option
def budget(team: str, reason: str | None, as_json: bool, settings: Settings, **options: Any) -> None:
    """Set the budgets of TEAM (id or name), if given, and show what it has spent."""
    from gateway.tenancy.budgets.budget_commands import BudgetState, change_budgets, states_of
    from gateway.tenancy.keys.key_commands import BUDGETS, team_named

    bounds = budgets_of(options)

    async def change(engine: Any) -> list[BudgetState]:
        team_id = await team_named(engine, team)
        if bounds:
            await change_budgets(engine, "team", team_id, bounds, order(reason))
        page = await BUDGETS.page(engine, {"subject": team_id})
        return await states_of(engine, page.rows, time.time())

    states = with_database(settings, change)
    rows = [
        [
            state.period_key,
            amount_text(state.amount_usd),
            f"{state.spent_usd:.6f}",
            f"{state.leased_usd:.6f}",
            state.budget_id,
        ]
        for state in states
    ]
    echo_answer(as_json, {"budgets": states}, table(["period", "US dollars", "spent", "leased", "id"], rows))
