"""`python -m benchmarks memory`: whether a gateway takes more memory the longer it serves."""

import asyncio
import secrets
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import echo_json, json_option, settings_from, table

if TYPE_CHECKING:
    from benchmarks.gateway.memory import Resident


@click.command()
@click.option("--warm", type=click.IntRange(min=0), default=80_000, show_default=True, help="Requests before.")
@click.option("--requests", type=click.IntRange(min=1), default=200_000, show_default=True)
@click.option("--every", type=click.IntRange(min=1), default=20_000, show_default=True, help="Requests between looks.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True)
@json_option
def memory(warm: int, requests: int, every: int, concurrency: int, as_json: bool) -> None:
    """The resident set of one gateway process in front of a ready upstream, no two prompts alike.

    `--warm` fills what is bounded: the 65,536 conversations that a process remembers, and buffers.
    """
    found = asyncio.run(_run(warm + requests, every, concurrency, as_json))
    counted = [one.bytes for one in found if one.requests >= warm]
    growth = counted[-1] / counted[0] - 1
    if as_json:
        echo_json({"resident": found, "warm": warm, "growth": growth})
    else:
        rows = [[f"{one.requests:,}", f"{one.bytes / 1e6:.1f}"] for one in found]
        click.echo(table(["requests", "resident MB"], rows))
        click.echo(f"\n{growth:+.2%} from {warm:,} requests on")


async def _run(requests: int, every: int, concurrency: int, as_json: bool) -> "list[Resident]":
    from benchmarks.gateway.memory import resident_while_proxying
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
            environment = {"AIO_API_KEYS": f"bench={key}"}
            server = await stack.enter_async_context(running_server(settings, environment, "gateway"))
            target = Target("aio", server.url, "auto", key)
            found = []
            async for one in resident_while_proxying(
                server, target, requests=requests, every=every, concurrency=concurrency
            ):
                found.append(one)
                if not as_json:
                    click.echo(f"{one.requests:,}: {one.bytes / 1e6:.1f} MB", err=True)
            return found
