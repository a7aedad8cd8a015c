"""Shared by the commands for the gateway's own knobs: change a part's knobs, and show them as a table."""

from typing import Any

import click
import msgspec

from gateway.operations.cli.live.knobs import ask_server, assignment
from gateway.operations.cli.options import echo_json, table


def change_part(
    path: str, assignments: tuple[str, ...], reason: str | None, url: str, key: str | None, as_json: bool
) -> None:
    """PATCH the knobs at `path` to NAME=VALUE…, and print what changed."""
    answer = ask_server(url, key, "PATCH", path, dict(map(assignment, assignments)) | {"reason": reason})
    if as_json:
        echo_json(answer)
        return
    for change in answer["changed"]:
        click.echo(f"{change['knob']} {_json(change['old_value'])} -> {_json(change['new_value'])}")
    if not answer["changed"]:
        click.echo("nothing to change: these are the current values")
    if not answer["recorded"]:
        click.secho("warning: the server's database is down; the change is applied but not recorded yet", fg="yellow")


def knob_table(shown: dict[str, Any]) -> str:
    """Return a table of a part's knobs with their values and descriptions."""
    rows = [[name, _json(shown["knobs"][name]), schema["description"]] for name, schema in shown["schemas"].items()]
    return table(["knob", "value", "what it is"], rows)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
