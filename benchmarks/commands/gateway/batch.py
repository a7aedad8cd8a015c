"""`python -m benchmarks batch`: what the queue of batches costs, with a tier that costs nothing."""

import asyncio
import tempfile

import click
import msgspec

from gateway.operations.cli.options import database_option, json_option, settings_from


@click.command()
@click.option("--lines", type=click.IntRange(min=1, max=50_000), default=1000, show_default=True, help="Of a batch.")
@click.option("--concurrency", type=click.IntRange(min=1), multiple=True, default=(4, 64), show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--redis-url", metavar="URL", help="Redis for the queue.  [the database]")
@database_option
@json_option
def batch(
    lines: int,
    concurrency: tuple[int, ...],
    rounds: int,
    redis_url: str | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """Lines per second from a batch's making to its end: input read, lines taken, answered at once, output written."""
    asyncio.run(_run(lines, concurrency, rounds, redis_url or "", database_url or "", as_json))


async def _run(
    lines: int, concurrency: tuple[int, ...], rounds: int, redis_url: str, database_url: str, as_json: bool
) -> None:
    from benchmarks.gateway.batch import bench_batch

    for places in concurrency:
        with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
            settings = settings_from(
                data_dir=folder, batch_concurrency=places, redis_url=redis_url, database_url=database_url
            )
            async for row in bench_batch(settings, lines, rounds):
                values = msgspec.structs.asdict(row)
                click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{k}={v}" for k, v in values.items()))
