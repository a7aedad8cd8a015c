"""`python -m benchmarks viewers`: what live updates of the dashboard cost the requests that are served meanwhile."""

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import echo_json, json_option, settings_from, staged_progress

if TYPE_CHECKING:
    from benchmarks.gateway.viewers import ViewersCost


@click.command()
@click.option("--viewers", type=click.IntRange(min=1), default=10, show_default=True, help="Open overviews.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Requests in flight.")
@click.option("--pairs", type=click.IntRange(min=2), default=12, show_default=True, help="Of rounds, in turn.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Of every round.")
@json_option
def viewers(as_json: bool, **given: Any) -> None:
    """Requests per second and CPU time per request of one gateway process in front of an upstream that answers at once,
    with so many viewers of the overview, over the same without viewers: paired, with 95% intervals."""
    found = asyncio.run(_run(**given))
    if as_json:
        echo_json(found)
        return
    click.echo(
        f"requests per second: {found.without_req_s:g} without, {found.with_req_s:g} with {found.viewers} viewers"
    )
    for name, ratio in (("requests per second", found.throughput), ("CPU time per request", found.cpu)):
        click.echo(f"{name}, with over without: {ratio.median:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]")
    click.echo(f"CPU of the viewers alone: {found.alone_cpu:.2%} of one")


async def _run(**given: Any) -> "ViewersCost":
    from benchmarks.gateway.proxy import Target
    from benchmarks.gateway.upstream import proxied_catalogue, running_upstream
    from benchmarks.gateway.viewers import bench_viewers
    from gateway.processes.server_process import running_server

    key, admin = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder, staged_progress("starting") as progress:
        catalogue = Path(folder) / "catalogue.toml"
        environment = {"AIO_API_KEYS": f"bench={key}", "AIO_ADMIN_KEYS": f"boss={admin}"}
        async with running_upstream() as url:
            catalogue.write_text(proxied_catalogue(url), encoding="utf-8")
            settings = settings_from(catalog=str(catalogue), data_dir=folder)
            async with running_server(settings, environment, "gateway") as server:
                target = Target("aio", server.url, "auto", key)
                return await bench_viewers(target, server, secret=admin, progress=progress, **given)
