"""`aio knobs routing`: show or change the knobs of routing in a running server, with the classifier's versions."""

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
def routing(assignments: tuple[str, ...], reason: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Show routing's knobs and the serving classifier, or change knobs: NAME=VALUE, NAME=null for the default."""
    if assignments:
        change_part("/knobs/routing", assignments, reason, url, key, as_json)
        return
    shown = ask_server(url, key, "GET", "/knobs/routing")
    echo_json(shown) if as_json else click.echo(_text(shown))


def _text(shown: dict[str, Any]) -> str:
    classifier = shown["classifier"]
    trial = f", {classifier['canary']} on trial for {classifier['share']:.1%}" if classifier["canary"] else ""
    lines = [
        knob_table(shown),
        "",
        f"classifier {classifier['current']} ({classifier['kind']}){trial}",
        f"conversations remembered: {shown['conversations']:,}",
    ]
    if classifier["refusal"]:
        lines.append(f"REFUSED: {classifier['refusal']}")
    return "\n".join(lines)
