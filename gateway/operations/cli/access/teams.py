"""`aio teams`: teams, whose keys share budgets, caches and prefixes."""

import time
from typing import Any

import click

from gateway.operations.cli.access.keys import budget_options, budgets_of, checked, order, reason_option, stored_options
from gateway.operations.cli.options import echo_answer, echo_json, settings_from, table
from gateway.operations.cli.stored_order import with_database


@click.group()
def teams() -> None:
    """Make and show teams, and set what they may spend."""


@teams.command()
@click.argument("name")
@reason_option
@stored_options
def create(name: str, reason: str | None, as_json: bool, **options: Any) -> None:
    """Make a team called NAME."""
    from gateway.operations.usecases.keys import TeamOrder
    from gateway.tenancy.keys.key_commands import create_team

    checked(TeamOrder, {"name": name})
    team_id = with_database(settings_from(**options), lambda engine: create_team(engine, name, order(reason)))
    echo_answer(as_json, {"team_id": team_id}, f"team {team_id}: {name}")


@teams.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@stored_options
def list_teams(limit: int, as_json: bool, **options: Any) -> None:
    """Show teams, newest first."""
    from gateway.tenancy.keys.key_commands import TEAMS

    page = with_database(settings_from(**options), lambda engine: TEAMS.page(engine, {}, limit=limit))
    echo_answer(as_json, page, table(["id", "name"], [[row["team_id"], row["name"]] for row in page.rows]))


@teams.command()
@click.argument("team")
@budget_options()
@reason_option
@stored_options
def budget(team: str, reason: str | None, as_json: bool, **options: Any) -> None:
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

    states = with_database(settings_from(**options), change)
    if as_json:
        echo_json({"budgets": states})
        return
    rows = [
        [one.period_key, f"{one.amount_usd:g}", f"{one.spent_usd:.6f}", f"{one.leased_usd:.6f}", one.budget_id]
        for one in states
    ]
    click.echo(table(["period", "US dollars", "spent", "leased", "id"], rows))
