"""`aio admin`: users of the dashboard, in the database; running servers see them at once."""

import sys
import time
from typing import Any

import click

from gateway.operations.cli.access.keys import checked, order, reason_option, stored_options
from gateway.operations.cli.options import echo_answer, echo_json, settings_from, table
from gateway.operations.cli.stored_order import with_database


@click.group()
def admin() -> None:
    """Add, show and remove users of the dashboard."""


@admin.command("add-user")
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), default="viewer", show_default=True)
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input instead of asking.")
@reason_option
@stored_options
def add(name: str, role: str, password_stdin: bool, reason: str | None, as_json: bool, **options: Any) -> None:
    """Let NAME sign in. A viewer reads, an operator changes knobs and reviews, an admin also keys and users."""
    from gateway.tenancy.users.users import UserOrder, add_user

    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = click.prompt("Password (at least 12 characters)", hide_input=True, confirmation_prompt=True)
    user = checked(UserOrder, {"name": name, "password": password, "role": role})
    with_database(settings_from(**options), lambda engine: add_user(engine, user, order(reason)))
    echo_answer(as_json, {"name": name, "role": role}, f"{name} may sign in at /admin as {role}")


@admin.command("list")
@stored_options
def list_users(as_json: bool, **options: Any) -> None:
    """Show who may sign in by name."""
    from gateway.tenancy.users.users import USERS

    page = with_database(settings_from(**options), lambda engine: USERS.page(engine, {}, limit=1000))
    if as_json:
        echo_json(page)
        return
    rows = [[row["name"], row["role"], time.strftime("%Y-%m-%d", time.gmtime(row["created_at"]))] for row in page.rows]
    click.echo(table(["name", "role", "since"], rows))


@admin.command()
@click.argument("name")
@reason_option
@stored_options
def remove(name: str, reason: str | None, as_json: bool, **options: Any) -> None:
    """Remove NAME and end its sessions within seconds."""
    from gateway.tenancy.users.users import remove_user

    with_database(settings_from(**options), lambda engine: remove_user(engine, name, order(reason)))
    echo_answer(as_json, {"name": name}, f"{name} is removed")
