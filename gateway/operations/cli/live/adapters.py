"""`aio adapters`: train LoRA adapters; show, load and unload those of a running server."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gateway.operations.cli.group import LazyGroup
from gateway.operations.cli.live.knobs import ask_server, server_options
from gateway.operations.cli.options import echo_answer, echo_json, json_option, table

adapters = LazyGroup(
    name="adapters",
    help="Train LoRA adapters; show, load and unload those of a running server.",
    commands={
        "list": ("gateway.operations.cli.live.adapters:list_adapters", "Show the adapters of every model."),
        "load": ("gateway.operations.cli.live.adapters:load", "Load a PEFT folder as MODEL:NAME."),
        "unload": ("gateway.operations.cli.live.adapters:unload", "Unload MODEL:NAME."),
        "train": ("gateway.planning.commands.train_adapter:train", "Train an adapter on examples or recorded answers."),
    },
)


@click.command("list")
@server_options
@json_option
def list_adapters(url: str, key: str | None, as_json: bool) -> None:
    """Show every adapter: its rank, its size in a slot, and whether it occupies one."""
    shown = ask_server(url, key, "GET", "/adapters")
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
@server_options
@json_option
def load(name: str, folder: str, url: str, key: str | None, as_json: bool) -> None:
    """Load the PEFT folder FOLDER, on the server's machine, so that requests may name MODEL:NAME."""
    model, adapter = _parts(name)
    body = {"model": model, "name": adapter, "path": str(Path(folder).absolute())}
    answer = ask_server(url, key, "POST", "/adapters", body)
    echo_answer(as_json, answer, f"{name} is loaded; requests may name it as their model")


@click.command()
@click.argument("name", metavar="MODEL:NAME")
@server_options
@json_option
def unload(name: str, url: str, key: str | None, as_json: bool) -> None:
    """Accept no more requests for MODEL:NAME; it is unloaded after the last one has ended."""
    model, adapter = _parts(name)
    answer = ask_server(url, key, "DELETE", f"/adapters/{quote(model, safe='')}/{quote(adapter, safe='')}")
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
