"""`aio reload`: a running server reads its catalogue again."""

import click

from gateway.operations.cli.live.knobs import ask_server, server_options
from gateway.operations.cli.options import echo_json, json_option

LOADING_SECONDS = 3600.0
"""The answer comes when changed models of the server's own core are loaded."""


@click.command()
@click.option("--reason", metavar="TEXT", default="aio reload", show_default=True, help="Recorded with the change.")
@server_options
@json_option
def reload(reason: str, url: str, key: str | None, as_json: bool) -> None:
    """Read the catalogue again and switch to it, models included, without a request that fails.

    Changed models of the CPU core are loaded next to those that serve; running answers end with their version. A
    catalogue that cannot be served, for want of memory perhaps, changes nothing. With --gateway-workers send SIGUSR2 to
    the server instead where models change.
    """
    answer = ask_server(url, key, "POST", "/reload", {"reason": reason}, timeout=LOADING_SECONDS)
    if as_json:
        echo_json(answer)
        return
    tiers = ", ".join(map(str, answer["tiers"])) or "none"
    click.echo(f"{answer['catalogue']} is read again; changed tiers: {tiers}")
    if answer["embeddings"]:
        click.echo(f"changed embeddings: {', '.join(answer['embeddings'])}")
    if answer["loaded"]:
        click.echo(f"another version of the core serves: {', '.join(answer['loaded'])}")
