"""`python -m benchmarks idle`: what open, idle conversations cost a gateway and its cache of keys and values."""

import asyncio
import secrets
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import echo_json, json_option, settings_from, table

if TYPE_CHECKING:
    from benchmarks.gateway.idle_connections import Idle


@click.command()
@click.option("--connections", type=click.IntRange(min=1), default=8_000, show_default=True)
@click.option(
    "--every", type=click.IntRange(min=1), default=2_000, show_default=True, help="Connections between looks."
)
@click.option("--seconds", type=click.FloatRange(min=0), default=2.0, show_default=True, help="Of quiet at each look.")
@json_option
def idle(connections: int, every: int, seconds: float, as_json: bool) -> None:
    """Memory of one gateway process by open connections, each of which has had a chat answered and asks no more.

    Raise the limit of open files (`ulimit -n`) above twice the connections: both ends are on this machine.
    """
    found = asyncio.run(_run(connections, every, seconds))
    first, last = found[0], found[-1]
    each = (last.bytes - found[1].bytes) / max(last.connections - found[1].connections, 1)
    if as_json:
        echo_json({"idle": found, "bytes_per_connection": each, "first_bytes": first.bytes})
        return
    rows = [[f"{one.connections:,}", f"{one.bytes / 1e6:.1f}", f"{one.cpu_seconds / one.seconds:.1%}"] for one in found]
    click.echo(table(["connections", "resident MB", "of a CPU"], rows))
    click.echo(f"\n{each:,.0f} bytes per connection after the first {found[1].connections:,}")


async def _run(connections: int, every: int, seconds: float) -> "list[Idle]":
    from benchmarks.gateway.idle_connections import idle_after_a_chat
    from benchmarks.gateway.proxy import Target
    from benchmarks.gateway.upstream import proxied_catalogue, running_upstream
    from gateway.processes.server_process import running_server

    key = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(running_upstream())
            catalogue = Path(folder) / "catalogue.toml"
            catalogue.write_text(proxied_catalogue(url), encoding="utf-8")
            settings = settings_from(catalog=str(catalogue), data_dir=folder)
            server = await stack.enter_async_context(
                running_server(settings, {"AIO_API_KEYS": f"bench={key}"}, "gateway")
            )
            target = Target("aio", server.url, "auto", key)
            return [
                one async for one in idle_after_a_chat(server, target, most=connections, every=every, seconds=seconds)
            ]
