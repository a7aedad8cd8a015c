"""`aio serve`: all of AIO in one process, or one of its two roles."""

from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    cache_dir_option,
    catalog_option,
    data_dir_option,
    database_option,
    settings_from,
)

if TYPE_CHECKING:
    from gateway.settings import Settings


@click.command()
@click.option(
    "--role",
    type=click.Choice(["all", "gateway", "core"]),
    default="all",
    show_default=True,
    help="all: one process. core: the models, on a Unix socket. gateway: HTTP, no models, on that socket.",
)
@click.option("--host", help="Address to listen on.  [AIO_HOST; 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one.  [AIO_PORT; 8080]")
@catalog_option
@data_dir_option
@cache_dir_option
@database_option
@click.option("--socket", "core_socket", metavar="PATH", help="Socket between core and gateway.  [AIO_CORE_SOCKET]")
@click.option("--quality-target", type=float, help="Share of answers no worse than the strongest tier's, 0 to 1.")
@click.option("--sampling-rate", type=float, help="Most of tiers 1 and 2 that is verified, 0 to 1.  [0.05]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[info]")
def serve(role: str, **given: Any) -> None:
    """Start the gateway on http://127.0.0.1:8080 and serve until interrupted.

    Every option can also be set in the environment as AIO_NAME; API keys only there (AIO_API_KEYS).
    """
    from gateway.telemetry.logs import configure_logging

    settings = settings_from(role="all" if role == "core" else role, **given)
    configure_logging(settings.log_level)
    if role == "core":
        _serve_core(settings)
    else:
        _serve_http(settings)


def _serve_core(settings: "Settings") -> None:
    from inference_core.core_server import serve_core
    from inference_core.loading import load_core
    from tiers.catalog_file import load_catalog
    from tiers.core_spec import core_spec
    from tiers.quality_gate import require_quality

    catalog = load_catalog(settings.catalog)
    require_quality(catalog, settings.cache_path)
    path = settings.socket_path
    path.parent.mkdir(parents=True, exist_ok=True)
    click.echo(f"core of catalogue {catalog.name!r} on {path}")
    serve_core(
        lambda: load_core(core_spec(catalog), settings.cache_path, knobs_file=settings.knobs_path),
        path,
        watchdog_seconds=catalog.core.watchdog_seconds,
    )


def _serve_http(settings: "Settings") -> None:
    from gateway.server import run_server

    run_server(settings)
