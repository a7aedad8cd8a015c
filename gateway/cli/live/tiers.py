"""`aio adapters`, `aio refusals`, `aio reload` and `aio alerts`: the LoRA adapters of a running server, the parameters
that servers of its tiers refuse, its catalogue, read again, and where its alerts go.
"""

import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gateway.cli.group import LazyGroup
from gateway.cli.live.server import Server
from gateway.cli.options import echo_answer, echo_json, json_option, table
from gateway.cli.typed_options import options_of

adapters = LazyGroup(
    name="adapters",
    help="Train LoRA adapters; show, load and unload those of a running server.",
    package="gateway.cli.live",
    commands={
        "list": (".tiers:list_adapters", "Show the adapters of every model."),
        "load": (".tiers:load", "Load a PEFT folder as MODEL:NAME."),
        "unload": (".tiers:unload", "Unload MODEL:NAME."),
        "train": ("..planning.train_adapter:train", "Train an adapter on examples or recorded answers."),
    },
)


@click.command("list")
@options_of(Server, "server")
@json_option
def list_adapters(server: Server, as_json: bool) -> None:
    """Show every adapter: its rank, its size in a slot, and whether it occupies one."""
    shown = server.ask("GET", "/adapters")
    if as_json:
        echo_json(shown)
        return
    for model, state in shown["models"].items():
        click.echo(
            f"{model}: {state['slots']} slots, filled {state['installs']} times, {state['evictions']} times by eviction"
        )
        if state["adapters"]:
            rows = [_row(info) for info in state["adapters"]]
            click.echo(table(["name", "rank", "MiB", "state", "running", "path"], rows))


@click.command()
@click.argument("name", metavar="MODEL:NAME")
@click.argument("folder")
@options_of(Server, "server")
@json_option
def load(name: str, folder: str, server: Server, as_json: bool) -> None:
    """Load the PEFT folder FOLDER, on the server's machine, so that requests may name MODEL:NAME."""
    model, adapter = _parts(name)
    body = {"model": model, "name": adapter, "path": str(Path(folder).absolute())}
    answer = server.ask("POST", "/adapters", body)
    echo_answer(as_json, answer, f"{name} is loaded; requests may name it as their model")


@click.command()
@click.argument("name", metavar="MODEL:NAME")
@options_of(Server, "server")
@json_option
def unload(name: str, server: Server, as_json: bool) -> None:
    """Accept no more requests for MODEL:NAME, and unload it after the last one has ended."""
    model, adapter = _parts(name)
    answer = server.ask("DELETE", f"/adapters/{quote(model, safe='')}/{quote(adapter, safe='')}")
    leaving = any(info["name"] == adapter for info in answer["adapters"])
    echo_answer(as_json, answer, f"{name} is unloaded after its last request" if leaving else f"{name} is unloaded")


def _parts(name: str) -> tuple[str, str]:
    model, colon, adapter = name.rpartition(":")
    if not colon or not model or not adapter:
        raise click.UsageError(f"{name!r} is not MODEL:NAME")
    return model, adapter


def _row(info: dict[str, Any]) -> list[str]:
    state = "leaving" if info["leaving"] else "in a slot" if info["resident"] else "in host memory"
    return [
        info["name"],
        str(info["rank"]),
        f"{info['bytes'] / 2**20:.1f}",
        state,
        str(info["running"]),
        info["path"],
    ]


@click.command()
@click.option("--forget", is_flag=True, help="Forget the refusals, so that the parameters are sent again.")
@click.option("--tier", metavar="NAME", help="With --forget: forget those of this tier only.")
@options_of(Server, "server")
@json_option
def refusals(forget: bool, tier: str | None, server: Server, as_json: bool) -> None:
    """Show which parameters AIO leaves out because a server refused them, or forget the refusals."""
    if forget:
        path = "/refusals" if tier is None else f"/refusals?tier={quote(tier, safe='')}"
        answer = server.ask("DELETE", path)
        echo_answer(as_json, answer, f"forgotten: {answer['forgotten']}")
        return
    shown = server.ask("GET", "/refusals")
    rows = [
        [
            refusal["tier"],
            refusal["model"],
            refusal["api"],
            ", ".join(refusal["parameters"]),
            f"{refusal['tenants']} alone" if refusal["tenants"] else "all",
            _time(refusal["until"]),
        ]
        for refusal in shown["refusals"]
    ]
    listing = table(["tier", "model", "API", "left out", "tenants", "until"], rows)
    echo_answer(as_json, shown, listing if rows else "No server was found to refuse a parameter.")


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


LOADING_SECONDS = 3600.0
"""The answer comes when changed models of the server's own core are loaded."""


@click.command()
@click.option("--reason", default="aio reload", help="Why the change is made. The audit trail keeps it.")
@options_of(Server, "server")
@json_option
def reload(reason: str, server: Server, as_json: bool) -> None:
    """Read the catalogue again and switch to it and its models. No request fails meanwhile.

    Changed models of the CPU core are loaded next to those that serve; running answers end with their version. A
    catalogue that cannot be served, for want of memory perhaps, changes nothing. With --gateway-workers send SIGUSR2 to
    the server instead where models change.
    """
    answer = server.ask("POST", "/reload", {"reason": reason}, timeout=LOADING_SECONDS)
    tiers = ", ".join(map(str, answer["tiers"]))
    changed = f"changed tiers: {tiers}" if tiers else "no tier changed, and everything else in it holds now"
    lines = [f"{answer['catalogue']} is read again; {changed}"]
    lines += [f"changed embeddings: {', '.join(answer['embeddings'])}"] if answer["embeddings"] else []
    lines += [f"another version of the core serves: {', '.join(answer['loaded'])}"] if answer["loaded"] else []
    echo_answer(as_json, answer, "\n".join(lines))


@click.command()
@click.option("--test", is_flag=True, help="Send a test message to every channel.")
@options_of(Server, "server")
@json_option
def alerts(test: bool, server: Server, as_json: bool) -> None:
    """Show where a running server sends its alerts, and what it sent. Ends with status 1 if a channel refuses a
    test."""
    answer = server.ask("POST" if test else "GET", "/alerts/test" if test else "/alerts")
    if as_json:
        echo_json(answer)
    elif test:
        rows = [[row["channel"], row["where"], row["problem"] or "accepted"] for row in answer["channels"]]
        click.echo(table(["channel", "to", "test"], rows))
    else:
        click.echo("\n".join(f"{row['channel']}: {row['where']}" for row in answer["channels"]) or "no channel is set")
        rows = [[_time(row["sent_at"]), row["channel"], row["state"], row["summary"]] for row in answer["sent"]]
        click.echo(table(["sent", "to", "state", "about"], rows))
    if test and any(row["problem"] for row in answer["channels"]):
        raise SystemExit(1)
