"""`aio worker`: a process that answers lines of batches and nothing else, as many of them as the load needs."""

from typing import Any

import click

from gateway.cli.options import cache_dir_option, catalog_option, data_dir_option, database_option, settings_from


@click.command()
@click.option(
    "--role",
    type=click.Choice(["gateway", "all"]),
    default="gateway",
    show_default=True,
    help="gateway: on the cores' sockets, or remote tiers alone. all: with models of its own.",
)
@click.option("--concurrency", "batch_concurrency", type=int, help="Lines at once.  [AIO_BATCH_CONCURRENCY; 4]")
@click.option("--host", help="Address of probes and metrics.  [AIO_HOST; 127.0.0.1]")
@click.option("--port", type=int, default=0, show_default=True, help="Port of probes and metrics; 0 takes a free one.")
@catalog_option
@data_dir_option
@cache_dir_option
@database_option
@click.option("--socket", "core_socket", metavar="PATH", help="Socket between core and gateway.  [AIO_CORE_SOCKET]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[info]")
def worker(**given: Any) -> None:
    """Answer lines of batches until interrupted; then lines under way have AIO_DRAIN_SECONDS.

    Beside `aio serve` with AIO_BATCH_CONCURRENCY=0, on the same database, and on the same Redis where there is one.
    """
    from gateway.http import worker_app
    from gateway.processes.announcement import worker_text
    from gateway.processes.server import run_server
    from gateway.telemetry.set_up import set_up_telemetry

    # The gateways look for alerts.
    settings = settings_from(**given, alert_webhook="")
    if not settings.batch_concurrency:
        raise click.UsageError("a worker with --concurrency 0 (or AIO_BATCH_CONCURRENCY=0) would answer nothing")
    set_up_telemetry(settings, "worker")
    run_server(settings, http=worker_app, ready=worker_text, administers=False)
