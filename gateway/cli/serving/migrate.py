"""`aio migrate`: bring the database schema up to date, as a server does at start, or take it back; `aio settings`:
every setting with its environment variable, default and meaning.
"""

import asyncio

import click

from gateway.base.configuration import SETTINGS
from gateway.base.settings import Settings
from gateway.cli.options import echo_answer, echo_json, json_option, table, with_settings


@click.command()
@click.option(
    "--to", metavar="REVISION", help="Go back to an earlier revision, dropping what later ones added.  [newest]"
)
@with_settings("database_url", "data_dir")
@json_option
def migrate(to: str | None, as_json: bool, settings: Settings) -> None:
    """Bring the database schema to the newest revision. You can repeat it, and run it while servers run.

    An earlier version of AIO refuses a schema that is newer than itself. To go back to one, stop the servers and take
    the schema back with the later version: its tables and columns are dropped with all that is in them.
    """
    from gateway.base.stores.data_folder import private_data_folder
    from quality.store.database import current_revision, database_needed, downgrade
    from quality.store.database import migrate as migrate_database

    async def run(url: str) -> tuple[str | None, str | None]:
        before = await current_revision(url)
        await (migrate_database(url) if to is None else downgrade(url, to))
        return before, await current_revision(url)

    private_data_folder(settings.data_path)
    with database_needed(settings.database):
        before, after = asyncio.run(run(settings.database))
    echo_answer(
        as_json,
        {"before": before, "after": after},
        f"schema at {after}" + (", as before" if before == after else f" (was {before or 'empty'})"),
    )


@click.command("settings")
@click.option("--markdown", is_flag=True, help="Print the table of docs/reference/settings.md.")
@json_option
def show_settings(markdown: bool, as_json: bool) -> None:
    """Show every setting: its environment variable, its default and what it does."""
    if as_json:
        echo_json([setting._asdict() for setting in SETTINGS.values()])
    elif markdown:
        click.echo(settings_table())
    else:
        click.echo(table(["variable", "default", "meaning"], [list(setting) for setting in SETTINGS.values()]))


def settings_table() -> str:
    """Return the settings as a Markdown table."""
    rows = [
        f"| `{setting.variable}` | {f'`{setting.default}`' if setting.default else ''} | {setting.description} |"
        for setting in SETTINGS.values()
    ]
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows])
