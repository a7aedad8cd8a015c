"""`aio knobs`: show and change a running server's live knobs: of its cores, its cache and its routing, singly or as the
profile of a goal.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from gateway.cli.group import LazyGroup
from gateway.cli.live.server import Server
from gateway.cli.options import echo_answer, echo_json, json_option, limit_option, reason_option, table
from gateway.cli.typed_options import options_of

knobs = LazyGroup(
    name="knobs",
    help="Show and change the live knobs of a running server.",
    package="gateway.cli.live",
    commands={
        "show": (".knobs:show", "Show the current knobs."),
        "set": (".knobs:set_knobs", "Change knobs: NAME=VALUE, or NAME=null for the start value."),
        "profile": (".knobs:profile", "Apply a set of knobs: throughput, latency, cost, tail."),
        "history": (".knobs:history", "Show who changed what, when and why."),
        "cache": (".knobs:cache", "Show or change the knobs of the response cache."),
        "routing": (".knobs:routing", "Show or change the knobs of routing."),
    },
)


class ChangeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio knobs set`."""

    model: Annotated[str, Meta(title="NAME")] | None = None
    """Change only this model's knobs."""
    core: Annotated[str, Meta(title="NAME")] | None = None
    """Change only the knobs of this core's models: cpu or a GPU group."""
    keep: bool = False
    """Keep the change across restarts of the core."""
    reason: str | None = None
    """Why the change is made. The audit trail keeps it."""


@click.command()
@options_of(Server, "server")
@json_option
def show(server: Server, as_json: bool) -> None:
    """Show every knob with its value for each model, what is allowed, and what it does."""
    shown = server.ask("GET", "/knobs/core")
    models = list(shown["models"])
    several = len(set(shown["cores"].values())) > 1
    heads = [f"{model} ({shown['cores'][model]})" if several else model for model in models]
    rows = [
        [name, *(json_text(shown["models"][model][name]) for model in models), _allowed(schema), schema["description"]]
        for name, schema in shown["knobs"].items()
    ]
    tuned = [
        f"\n\n{_tuned(model, tuning)}"
        for model, tuning in shown["tuning"].items()
        if shown["models"][model]["auto_tune"]
    ]
    echo_answer(as_json, shown, table(["knob", *heads, "allowed", "what it is"], rows) + "".join(tuned))


@click.command("set")
@click.argument("assignments", metavar="NAME=VALUE…", nargs=-1, required=True)
@options_of(ChangeOptions)
@options_of(Server, "server")
@json_option
def set_knobs(assignments: tuple[str, ...], options: ChangeOptions, server: Server, as_json: bool) -> None:
    """Change the named knobs together, from the server's next step on. A value is JSON or a bare word.

    NAME=null puts a knob back to the value that its model was started with.
    """
    body = dict(map(assignment, assignments)) | msgspec.structs.asdict(options)
    answer = server.ask("PATCH", "/knobs/core", body)
    echo_changes(answer, as_json, lambda change, text: f"{change['model']}: {text}{kept_of(change)}")


def echo_changes(answer: Any, as_json: bool, line: Callable[[Any, str], str]) -> None:
    """Print the answer to a change of knobs; `line` makes one of a change and its text, "KNOB OLD -> NEW"."""
    if as_json:
        echo_json(answer)
        return
    for change in answer["changed"]:
        old, new = json_text(change["old_value"]), json_text(change["new_value"])
        click.echo(line(change, f"{change['knob']} {old} -> {new}"))
    if not answer["changed"]:
        click.echo("nothing to change: these are the current values")
    if not answer["recorded"]:
        click.secho("warning: the server's database is down; the change is applied but not recorded yet", fg="yellow")


def kept_of(change: Any) -> str:
    """Return what a line says of a change that outlives its process."""
    return ", kept" if change["kept"] else ""


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@click.command()
@limit_option(20)
@click.option("--knob", metavar="NAME", help="Show the changes of this knob only.")
@options_of(Server, "server")
@json_option
def history(limit: int, knob: str | None, server: Server, as_json: bool) -> None:
    """Show the last changes of knobs, including refused ones."""
    answer = server.ask("GET", "/knobs/changes", query={"limit": limit} | ({"knob": knob} if knob else {}))
    rows = [
        [
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change["created_at"])),
            change["actor"],
            change["model"] or "all",
            change["knob"],
            json_text(change["old_value"]),
            json_text(change["new_value"]),
            f"REFUSED: {change['refused']}" if change["refused"] else change["reason"] or "",
        ]
        for change in answer["changes"]
    ]
    echo_answer(as_json, answer, table(["when", "who", "model", "knob", "from", "to", "why"], rows))


def _tuned(model: str, tuning: dict[str, Any]) -> str:
    limits = ", ".join(f"{name} {tuning[name]}" for name in ("max_num_batched_tokens", "prefill_chunk", "max_num_seqs"))
    why = f"; last changed because {tuning['reason']}" if tuning["reason"] else ""
    return f"{model} is tuned: {limits} after {tuning['decisions']} changes{why}"


def assignment(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, with VALUE as JSON or a bare word."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _allowed(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " ".join(schema["enum"])
    if "minimum" in schema:
        return f"{schema['minimum']:,} to {schema['maximum']:,}"
    return "list" if schema["type"] == "array" else "true false"


def knob_table(shown: dict[str, Any]) -> str:
    """Return a table of a part's knobs with their values and descriptions."""
    rows = [[name, json_text(shown["knobs"][name]), schema["description"]] for name, schema in shown["schemas"].items()]
    return table(["knob", "value", "what it is"], rows)


def _part_command(part: str, says: str, text: Callable[[dict[str, Any]], str]) -> click.Command:
    """Return the command that shows the knobs of a part of the gateway, or changes them."""

    @click.command(part, help=says)
    @click.argument("assignments", metavar="[NAME=VALUE…]", nargs=-1)
    @reason_option
    @options_of(Server, "server")
    @json_option
    def command(assignments: tuple[str, ...], reason: str | None, server: Server, as_json: bool) -> None:
        path = f"/knobs/{part}"
        if assignments:
            answer = server.ask("PATCH", path, dict(map(assignment, assignments)) | {"reason": reason})
            echo_changes(answer, as_json, lambda change, said: said)
            return
        shown = server.ask("GET", path)
        echo_answer(as_json, shown, text(shown))

    return command


def _cache_text(shown: dict[str, Any]) -> str:
    if shown["store"] == "redis":
        kept = "answers are kept in Redis"
    else:
        kept = f"kept in the process that answered: {shown['entries']:,} answers, {shown['bytes']:,} bytes"
    return f"{knob_table(shown)}\n\n{kept}"


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--keep", is_flag=True, help="Keep the change across restarts of the cores.")
@reason_option
@options_of(Server, "server")
@json_option
def profile(name: str | None, keep: bool, reason: str | None, server: Server, as_json: bool) -> None:
    """Apply a profile while AIO serves: throughput, latency, cost or tail. `catalogue` restores the catalogue's knobs.

    Without NAME show what each profile sets.
    """
    if name is None:
        shown = server.ask("GET", "/knobs/profiles")
        echo_answer(as_json, shown, _profile_text(shown["profiles"]))
        return
    order = {"profile": name, "keep": keep, "reason": reason}
    answer = server.ask("POST", "/knobs/profiles", order)
    echo_changes(answer, as_json, lambda each, text: f"{each['model'] or each['part']}: {text}{kept_of(each)}")


def _profile_text(profiles: list[dict[str, Any]]) -> str:
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


def _routing_text(shown: dict[str, Any]) -> str:
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


cache = _part_command(
    "cache",
    "Show the response cache's knobs and contents, or change knobs: NAME=VALUE, NAME=null for the default.",
    _cache_text,
)
routing = _part_command(
    "routing",
    "Show routing's knobs and the serving classifier, or change knobs: NAME=VALUE, NAME=null for the default.",
    _routing_text,
)
