"""`aio knobs routing`: the knobs of routing and the classifier's versions in a running server, shown or changed."""

from typing import Any

import click
import msgspec

from gateway.cli.knobs import ask_server, server_options
from gateway.cli.options import echo_json, json_option, table


@click.command()
@click.argument("assignments", metavar="[NAME=VALUE…]", nargs=-1)
@click.option("--reason", metavar="TEXT", help="Why; written down with the change.")
@server_options
@json_option
def routing(assignments: tuple[str, ...], reason: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Show how routing is set and which classifier serves, or change knobs: NAME=VALUE, NAME=null for the default."""
    from gateway.cli.knobs import assignment

    if not assignments:
        shown = ask_server(url, key, "GET", "/routing")
        echo_json(shown) if as_json else click.echo(_text(shown))
        return
    answer = ask_server(url, key, "PATCH", "/routing", dict(map(assignment, assignments)) | {"reason": reason})
    if as_json:
        echo_json(answer)
        return
    for change in answer["changed"]:
        click.echo(f"{change['knob']} {_json(change['old_value'])} -> {_json(change['new_value'])}")
    if not answer["changed"]:
        click.echo("nothing to change: these are the values in force")
    if not answer["recorded"]:
        click.secho("warning: the server's database is away; the change is in force but not recorded yet", fg="yellow")


def _text(shown: dict[str, Any]) -> str:
    rows = [[name, _json(shown["knobs"][name]), schema["description"]] for name, schema in shown["schemas"].items()]
    classifier = shown["classifier"]
    trial = f", {classifier['canary']} on trial for {classifier['share']:.1%}" if classifier["canary"] else ""
    lines = [
        table(["knob", "value", "what it is"], rows),
        "",
        f"classifier {classifier['current']} ({classifier['kind']}){trial}; its own fallback: novelty "
        f"{classifier['novelty_threshold']} gets tier {classifier['safe_tier']}",
        f"conversations remembered: {shown['conversations']:,}",
    ]
    if classifier["refusal"]:
        lines.append(f"REFUSED: {classifier['refusal']}")
    return "\n".join(lines)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
