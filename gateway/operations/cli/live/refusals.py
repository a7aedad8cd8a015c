"""`aio refusals`: the parameters that servers of tiers were found to refuse."""

import datetime
from urllib.parse import quote

import click

from gateway.operations.cli.live.knobs import ask_server, server_options
from gateway.operations.cli.options import echo_json, json_option, table


@click.command()
@click.option("--forget", is_flag=True, help="Send them again from now on.")
@click.option("--tier", metavar="NAME", help="With --forget: of this tier alone.")
@server_options
@json_option
def refusals(forget: bool, tier: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Show which parameters are left out of requests because a server refused them, or forget it."""
    if forget:
        path = "/refusals" if tier is None else f"/refusals?tier={quote(tier, safe='')}"
        answer = ask_server(url, key, "DELETE", path)
        click.echo(f"forgotten: {answer['forgotten']}") if not as_json else echo_json(answer)
        return
    shown = ask_server(url, key, "GET", "/refusals")
    if as_json:
        echo_json(shown)
    elif not shown["refusals"]:
        click.echo("No server was found to refuse a parameter.")
    else:
        rows = [
            [one["tier"], one["model"], one["api"], ", ".join(one["parameters"]), _time(one["until"])]
            for one in shown["refusals"]
        ]
        click.echo(table(["tier", "model", "API", "left out", "until"], rows))


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
