"""`aio knobs profile`: apply a set of live knobs for a goal to a running server, or show the sets."""

from typing import Any

import click

from gateway.operations.cli.live.knobs import ask_server, echo_changes, json_text, kept_of, server_options
from gateway.operations.cli.options import echo_json, json_option, table


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--keep", is_flag=True, help="Keep the change across restarts of the cores.")
@click.option("--reason", metavar="TEXT", help="Reason, recorded with the changes.")
@server_options
@json_option
def profile(name: str | None, keep: bool, reason: str | None, url: str, key: str | None, as_json: bool) -> None:
    """Apply a profile while serving: throughput, latency, cost or tail; `catalogue` puts its knobs back.

    Without NAME show what each profile sets.
    """
    if name is None:
        shown = ask_server(url, key, "GET", "/knobs/profiles")
        echo_json(shown) if as_json else click.echo(_text(shown["profiles"]))
        return
    order = {"profile": name, "keep": keep, "reason": reason}
    answer = ask_server(url, key, "POST", "/knobs/profiles", order)
    echo_changes(answer, as_json, lambda each, text: f"{each['model'] or each['part']}: {text}{kept_of(each)}")


def _text(profiles: list[dict[str, Any]]) -> str:
    rows = [
        [f"{part} {knob}" if part != "core" else knob, *(_value(each[part][knob]) for each in profiles)]
        for part in ("core", "routing", "replicas")
        for knob in profiles[0][part]
    ]
    heads = [each["name"] for each in profiles]
    goals = "\n".join(f"{each['name']}: {each['why']}" for each in profiles)
    return f"{table(['knob', *heads], rows)}\n\n{goals}\n-: as the server was started"


def _value(value: Any) -> str:
    return "-" if value is None else json_text(value)
