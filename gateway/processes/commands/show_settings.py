"""`aio settings`: every setting with its environment variable, default and meaning."""

import click

from gateway.base.configuration.load import SETTINGS
from gateway.operations.cli.options import echo_json, json_option, table


@click.command("settings")
@click.option("--markdown", is_flag=True, help="Print the table of docs/settings.md.")
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
