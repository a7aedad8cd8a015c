"""`python -m benchmarks proxy`: what the gateway adds to an upstream that answers at once, and other gateways."""

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.operations.cli.options import json_option, settings_from


@click.command()
@click.option("--concurrency", type=click.IntRange(min=1), multiple=True, default=(1, 8), show_default=True)
@click.option("--rate", type=click.FloatRange(min=0), default=200.0, show_default=True, help="Poisson arrivals per s.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Of every round.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--upstream", help="Upstream to proxy to, up to /v1; a peer has to use the same.  [launches one]")
@click.option("--peer", metavar="URL", help="A gateway that runs already, to take turns with.")
@click.option("--peer-model", default="mock", show_default=True)
@click.option(
    "--peers",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the peers' scripts: LiteLLM, Switchyard and Portkey take turns, and nginx, if it is installed.",
)
@click.option("--cache", is_flag=True, help="Also what the response cache costs where it misses, and saves.")
@click.option("--messages", is_flag=True, help="Also what /v1/messages costs, in turns with /v1/chat/completions.")
@click.option("--history", type=click.IntRange(min=0), default=0, help="Also what so many words of earlier turns cost.")
@json_option
def proxy(
    upstream: str | None,
    peer: str | None,
    peer_model: str,
    peers: Path | None,
    cache: bool,
    messages: bool,
    history: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Requests per second and latency through one gateway process: keys, routing, limits and the ledger on.

    Example: python -m benchmarks proxy --upstream http://127.0.0.1:9001/v1 --peer http://127.0.0.1:4000
    """
    asyncio.run(_run(upstream, peer, peer_model, peers, cache, messages, history, as_json, **given))


async def _run(
    upstream: str | None,
    peer: str | None,
    peer_model: str,
    peers: Path | None,
    cache: bool,
    messages: bool,
    history: int,
    as_json: bool,
    **given: Any,
) -> None:
    from contextlib import AsyncExitStack

    from benchmarks.gateway.proxy import MESSAGES, Target, TargetError, bench_proxy, require_answer
    from benchmarks.gateway.proxy_peers import running_peers
    from benchmarks.gateway.upstream import proxied_catalogue, running_upstream
    from gateway.processes.server_process import running_server

    key = secrets.token_urlsafe(24)
    # A gateway without its upstream is never ready, so check first that the upstream answers.
    for option, given_url, model in (("--upstream", upstream, "mock"), ("--peer", peer, peer_model)):
        if given_url is not None:
            try:
                await require_answer(Target(option, given_url.removesuffix("/v1"), model))
            except TargetError as error:
                raise click.ClickException(f"{option} {given_url}: {error}") from error
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        async with AsyncExitStack() as stack:
            url = upstream if upstream is not None else await stack.enter_async_context(running_upstream())
            catalogue = Path(folder) / "catalogue.toml"
            catalogue.write_text(proxied_catalogue(url), encoding="utf-8")
            settings = settings_from(catalog=str(catalogue), data_dir=folder)
            environment = {"AIO_API_KEYS": f"bench={key}"}
            server = await stack.enter_async_context(running_server(settings, environment, "gateway"))
            targets = [Target("direct", url.removesuffix("/v1"), "mock"), Target("aio", server.url, "auto", key)]
            if cache:
                targets.append(Target("aio, miss", server.url, "auto", key, cache="use"))
                targets.append(Target("aio, hit", server.url, "auto", key, cache="use", repeats=True))
            if messages:
                targets.append(Target("aio, messages", server.url, "auto", key, path=MESSAGES))
            if history:
                targets.append(Target("direct, history", targets[0].url, "mock", history=history))
                targets.append(Target("aio, history", server.url, "auto", key, history=history))
            if peer is not None:
                targets.append(Target("peer", peer, peer_model))
            if peers is not None:
                targets += await stack.enter_async_context(running_peers(peers, url, Path(folder)))
            async for row in bench_proxy(targets, **given):
                values = msgspec.structs.asdict(row)
                click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{k}={v}" for k, v in values.items()))
