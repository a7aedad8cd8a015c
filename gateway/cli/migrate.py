"""`aio migrate`: the database schema brought up to date; a server does the same at its start."""

import asyncio
from typing import Any

import click

from gateway.cli.options import data_dir_option, database_option, echo_json, json_option, settings_from


@click.command()
@database_option
@data_dir_option
@json_option
def migrate(as_json: bool, **given: Any) -> None:
    """Bring the schema to the newest revision; safe to run again and beside running servers."""
    from quality.database import current_revision
    from quality.database import migrate as migrate_database

    async def run(url: str) -> tuple[str | None, str]:
        return await current_revision(url), await migrate_database(url)

    settings = settings_from(**given)
    settings.data_path.mkdir(parents=True, exist_ok=True)
    before, after = asyncio.run(run(settings.database))
    if as_json:
        echo_json({"before": before, "after": after})
    else:
        click.echo(f"schema at {after}" + (", as before" if before == after else f" (was {before or 'empty'})"))
