"""The page of the matrix: head.md, then a table with the fields lost or changed in every cell."""

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import click

from benchmarks.gateway.fidelity.matrix import CASES, SERVERS, Cell, Target, counts_of, measured
from benchmarks.gateway.fidelity.peers import PEERS, peer_of, servers_of
from gateway.operations.cli.options import echo_json, json_option, staged_progress


def page_of(cells: Sequence[Cell]) -> str:
    """Return the page."""
    counts = counts_of(cells)
    lines = [(files("benchmarks.gateway.fidelity") / "head.md").read_text(encoding="utf-8")]
    lines += [
        f"**{name}**: {one.lost} fields in {one.cells} cells; {one.whole} are whole." for name, one in counts.items()
    ]
    lines += [
        "",
        f"| gateway | client | server | {' | '.join(CASES)} |",
        f"| --- | --- | --- |{' ---: |' * len(CASES)}",
    ]
    for name in counts:
        for api in dict.fromkeys(cell.api for cell in cells):
            for server in servers_of(name, SERVERS):
                shown = [_shown(cells, name, api, server, case) for case in CASES]
                if set(shown) != {"0 + 0"}:
                    lines.append(f"| {name} | {api} | {server} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _shown(cells: Sequence[Cell], target: str, api: str, server: str, case: str) -> str:
    where = (target, api, server, case)
    losses = {cell.stream: len(cell.lost) for cell in cells if (cell.target, cell.api, cell.server, cell.case) == where}
    return f"{losses.get(False, 0)} + {losses.get(True, 0)}"


@click.command()
@click.option(
    "--target",
    "targets",
    metavar="NAME=URL",
    multiple=True,
    help="Another gateway, in front of 127.0.0.1:PORT; its models have the names of the wires, each also with -b.",
)
@click.option(
    "--config-of",
    type=click.Choice([peer.name for peer in PEERS], case_sensitive=False),
    help="Print what that gateway reads.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    show_default=False,
    default=0,
    help="Of the recording provider; 0: a free one.",
)
@click.option("--page", type=click.Path(path_type=Path), help="Write the table to this page.")
@json_option
def fidelity(targets: Sequence[str], config_of: str | None, port: int, page: Path | None, as_json: bool) -> None:
    """Chat, Messages and Responses before the servers of all wires, whole and streamed: sessions of two steps with
    tools and thoughts, a change of the model, and faults. One line for each cell with a loss."""
    if config_of is not None:
        click.echo(_config(config_of, port))
        return
    named = [one.partition("=") for one in targets]
    if wrong := [name for name, sign, url in named if not (name and sign and url.startswith("http"))]:
        raise click.BadParameter(f"{wrong[0]!r}: expected NAME=URL", param_hint="--target")
    with staged_progress("a provider and a gateway") as show:
        cells = asyncio.run(measured([Target(name, url.rstrip("/")) for name, _, url in named], port, progress=show))
    if page is not None:
        page.write_text(page_of(cells))
    if as_json:
        echo_json(cells)
        return
    click.echo(_text(cells))
    for name, counts in counts_of(cells).items():
        click.echo(f"{name}: {counts.lost} fields lost or changed; {counts.whole} of {counts.cells} cells are whole")
    missing = [peer.name for peer in PEERS if peer.name.lower() not in {one.lower() for one, _, _ in named}]
    if missing:
        click.echo(f"not asked: {', '.join(missing)}; start one in front of --port and give it as --target NAME=URL")


def _config(name: str, port: int) -> str:
    peer = peer_of(name)
    assert peer is not None
    text = "" if peer.config is None else peer.config(f"http://127.0.0.1:{port}", peer.providers)
    return f"# {peer.start}\n{text}"


def _text(cells: "Sequence[Cell]") -> str:
    rows = (
        f"{one.target}  {one.api} to {one.server}, {one.case}, {'streamed' if one.stream else 'whole'}: "
        f"{', '.join(one.lost)}"
        for one in cells
        if one.lost
    )
    return "\n".join(rows) or "nothing is lost"
