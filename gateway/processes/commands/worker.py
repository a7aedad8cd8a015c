"""`aio worker`: a process that only answers lines of batches; run as many as the load needs."""

from typing import Any

import click

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    core_socket_option,
    data_dir_option,
    database_option,
    log_level_option,
    settings_from,
)


@click.command()
@click.option(
    "--role",
    type=click.Choice(["gateway", "all"]),
    default="gateway",
    show_default=True,
    help="gateway: uses the cores' sockets, or remote tiers only. all: runs its own models.",
)
@click.option(
    "--concurrency", "batch_concurrency", type=int, help="Lines answered at once.  [AIO_BATCH_CONCURRENCY; 4]"
)
@click.option("--host", help="Address of probes and metrics.  [AIO_HOST; 127.0.0.1]")
@click.option("--port", type=int, default=0, show_default=True, help="Port of probes and metrics; 0 takes a free one.")
@catalog_option
@data_dir_option
@cache_dir_option
@database_option
@core_socket_option
@log_level_option
def worker(**options: Any) -> None:
    """Answer lines of batches until interrupted; running lines then have AIO_DRAIN_SECONDS.

    Run it alongside `aio serve` with AIO_BATCH_CONCURRENCY=0, on the same database and, if used, the same Redis.
    """
    from gateway.base.stores.data_folder import private_data_folder
    from gateway.http import worker_app
    from gateway.processes.announcement import worker_text
    from gateway.processes.server import run_server
    from gateway.telemetry.startup import set_up_telemetry

    # The gateways evaluate the alerts. A worker takes no requests that a key could guard: batches of callers without a
    # key are answered as long as no key is required.
    settings = settings_from(**options, alert_webhook="", insecure=True)
    if not settings.batch_concurrency:
        raise click.UsageError("a worker with --concurrency 0 (or AIO_BATCH_CONCURRENCY=0) would answer nothing")
    set_up_telemetry(settings, "worker")
    private_data_folder(settings.data_path)
    run_server(settings, http=worker_app, ready=worker_text, administers=False)
