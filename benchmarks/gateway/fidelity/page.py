"""The page of the matrix: a table with the fields lost or changed in every cell."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.gateway.fidelity.matrix import CASES, SERVERS, Cell, Target, counts_of, measured
from benchmarks.gateway.fidelity.peers import PEERS, peer_of, servers_of
from gateway.operations.cli.options import echo_json, json_option, staged_progress

_HEAD = """# Fields lost or changed on the way

`python -m benchmarks fidelity --page docs/results/fidelity.md`. Clients of three APIs hold sessions of two steps
through a gateway with a server that records what it gets and seals its thoughts. Where client and server speak the
same API, the whole JSON is compared; else texts, system prompt, tools, calls, results, limit, thinking, and the seals
that the server made. Answers are compared in text, thoughts, calls, end and counts of tokens. A cell counts the fields
lost or changed, whole + streamed.

- **tools**: two calls and their results. **thinking**: the same with thoughts, whose seals have to come back.
- **moved**: the second step is asked of another model, which must not get the seals.
- **lenient**: thoughts and calls with counts as texts, calls without an index, arguments in other forms, wrong ends.
- **half**: the connection drops in mid-answer, which must not look finished.
- **busy**: 429, whose `retry-after` has to arrive.
- Not compared: ids of items and answers, which are the gateway's own; `model`, `stream`, `store` and `include`.
- Not compared: ids of Gemini's calls, which this server gives none; a budget of thoughts that is named as left out.
- The key permits stored texts. Without that, reasoning comes back to clients of the API that made it alone.

## What is kept, and for how long

Clients of Messages and Responses carry sealed reasoning themselves, and clients of chats `reasoning_content`,
`reasoning_details` and `extra_content`. A process keeps a digest of each with the model that made it, the last 100,000,
and gives no other model the reasoning. What is unknown goes to a tier only if it is the catalogue's single one of its
API; of a chat, if it is the single server, or all are servers of one's own.

Turns in loops of tools are kept as their server gave them, in Redis or else in the database, where the key and the
request permit stored texts and no redaction is on: for 24 hours, 1 MiB of a turn, 64 MiB of a tenant. A process has
up to 64 MiB of them in memory, for ten minutes. Erasing a user deletes them. Of other APIs than chat, a turn whose text
or calls were changed is not replaced. Which servers take thoughts of earlier turns, and of which, is in
`tiers/remote/rules.py`. What is missed or left out is named in `x-aio-ignored-fields`.

Where reasoning is not there, it is left out. Anthropic's budget of thoughts then pauses until the loop of calls ends,
and Gemini gets Google's own value in place of a signature. OpenAI is asked to store nothing: it gets the whole
conversation, with what `previous_response_id` and `item_reference` name. An attempt's record says what was added
(`cache_control`), and how many tokens a cache had and got.

## The matrix

Other gateways are compared for the wires that they have, without retries and cooldowns; `--config-of NAME` prints what
each reads and how it is started. LiteLLM 1.106.2 drops parameters that a server lacks (`drop_params`), Portkey 1.15.2
learns its provider from headers (its streams fail on Node 20.20), Switchyard 0.3.0 has no client of Gemini's API. Rows
without a loss are left out.

"""


def page_of(cells: Sequence[Cell]) -> str:
    """Return the page."""
    counts = counts_of(cells)
    lines = [_HEAD]
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
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Of the recording provider; 0: a free one.")
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
