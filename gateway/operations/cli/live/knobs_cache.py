"""`aio knobs cache`: show or change the knobs of the response cache of a running server."""

from typing import Any

import click

from gateway.operations.cli.live.knob_change import change_part, knob_table
from gateway.operations.cli.live.knobs import ask_server, server_options
from gateway.operations.cli.options import echo_json, json_option


@click.command()
@click.argument("assignments", metavar="[NAME=VALUE…]", nargs=-1)
@click.option("--reason", metavar="TEXT", help="Reason, recorded with the change.")
@server_options
@json_option
def cache(assignments: tuple[str, ...], reason: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Show the response cache's knobs and contents, or change knobs: NAME=VALUE, NAME=null for the default."""
    if assignments:
        change_part("/knobs/cache", assignments, reason, url, key, as_json)
        return
    shown = ask_server(url, key, "GET", "/knobs/cache")
    echo_json(shown) if as_json else click.echo(_text(shown))


def _text(shown: dict[str, Any]) -> str:
    if shown["store"] == "redis":
        kept = "answers are kept in Redis"
    else:
        kept = f"kept in the process that answered: {shown['entries']:,} answers, {shown['bytes']:,} bytes"
    return f"{knob_table(shown)}\n\n{kept}"
