"""`aio serve`: all of AIO, or one of its two roles; `aio worker`: a process that only answers lines of batches and
queued chats, as many as the load needs.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec
from msgspec import Meta

from gateway.cli.options import (
    by_commas,
    setting_option,
    setting_options,
    settings_from,
)
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from gateway.base.settings import Settings
    from inference_core.transport.client import CoreClient
    from inference_core.transport.core_thread import CoreFactory, SteppingCore
    from tiers.catalog.catalog import Catalog


_HIDDEN = Meta(extra={"hidden": True})


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio serve` that are no settings. Those from `supervised` on are for processes that AIO starts."""

    role: Literal["all", "gateway", "core"] = "all"
    """all: HTTP and cores. core: the models of one core, on a Unix socket. gateway: HTTP without models, on the cores'
    sockets."""
    group: Annotated[str, Meta(title="NAME", extra={"envvar": "AIO_GROUP"})] | None = None
    """With --role core: the core to run, cpu or a GPU group of the catalogue. [the only one]"""
    supervised: Annotated[bool, _HIDDEN] = False
    """End when standard input is closed."""
    replaces: Annotated[bool, _HIDDEN] = False
    """Take the core's socket over once the core has loaded."""
    channel: Annotated[int, _HIDDEN] | None = None
    """With --role core: the descriptor of its only connection."""
    worker: Annotated[str, _HIDDEN] | None = None
    """Which of several gateway processes this is, as JSON."""


@click.command()
@options_of(ServeOptions, "own")
@setting_options("gateway_workers")
@setting_option("host", multiple=True, callback=by_commas)
@setting_options("port", "insecure", "catalog", "data_dir", "cache_dir", "database_url", "core_socket", "cluster")
@setting_options("quality_target", "sampling_rate", "log_level")
def serve(own: ServeOptions, **options: Any) -> None:
    """Start the gateway on http://127.0.0.1:8080 and serve until interrupted.

    You can also set every option in the environment, as AIO_NAME. API keys can only be set there (AIO_API_KEYS).
    """
    from gateway.base.configuration import SERVED_CATALOG, load_settings
    from gateway.base.stores.data_folder import claim_for_one_server, private_data_folder

    role, group, worker = own.role, own.group, own.worker
    settings = load_settings(role="all" if role == "core" else role, **options)
    if role == "gateway" or (role == "all" and settings.core_process):
        # Early, because libraries start threads on import. A core's threads compute, and keep their own heaps.
        from gateway.base.footprint import share_one_heap

        share_one_heap()
    if role != "core" and worker is None:
        from gateway.processes.start_checks import refuse_open_access

        refuse_open_access(settings)
    if settings.cluster:
        settings = _with_cores_elsewhere(settings, role, deploys=worker is None)
    if settings.chat_queue == "put" and role != "core":
        settings = msgspec.structs.replace(settings, role="gateway")
    _set_up_telemetry(settings, f"core {group or ''}".strip() if role == "core" else role)
    if group is not None and role != "core":
        raise click.UsageError(f"--group {group} goes with --role core; --role {role} serves all cores")
    private_data_folder(settings.data_path)
    if role != "core" and worker is None:
        claim_for_one_server(settings)
        # Without room for it the server starts. The catalogue that is a name has a link to nothing.
        with suppress(OSError):
            (link := settings.data_path / SERVED_CATALOG).unlink(missing_ok=True)
            link.symlink_to(Path(settings.catalog).absolute())
    if own.supervised:
        from gateway.runtime.peers import end_with_supervisor

        end_with_supervisor()
    if role == "core" and own.channel is not None:
        _serve_core_to_parent(settings, group, own.channel)
    elif role == "core":
        _serve_core(settings, group, replaces=own.replaces, supervised=own.supervised)
    elif worker is None and settings.gateway_workers > 1:
        _serve_supervised(settings)
    else:
        _serve_http(settings, worker)


def _with_cores_elsewhere(settings: "Settings", role: str, *, deploys: bool) -> "Settings":
    """Start the catalogue's cores on the cluster unless they run there; this process is then a gateway."""
    import msgspec

    if role == "core":
        raise click.UsageError("--role core serves a core here; with --cluster Ray starts the cores")
    if settings.chat_queue == "put":
        raise click.UsageError("AIO_CHAT_QUEUE=put leaves every chat to workers, so --cluster would start unused cores")
    if deploys:
        from gateway.cli.cluster import require_ray
        from tiers.catalog.load import load_catalog

        require_ray()
        from gateway.runtime.cluster.fleet import Scale, deploy
        from gateway.runtime.cluster.join import join

        join(settings.cluster)
        deploy(load_catalog(settings.catalog), settings, Scale())
    return msgspec.structs.replace(settings, role="gateway")


def _serve_core(settings: "Settings", group: str | None, *, replaces: bool, supervised: bool) -> None:
    import asyncio

    from gateway.processes.announcement import tell_service_manager
    from gateway.runtime.core_factory import chosen_core, core_title, fetch_core_models, socket_of, watchdog_seconds_of
    from gateway.runtime.cores.next_core import require_machine
    from gateway.runtime.cores.passed_adapters import inheriting
    from inference_core.transport.listener import ReplacingListener, UnixListener
    from inference_core.transport.server import serve_core
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    core = chosen_core(catalog, group)
    path = socket_of(settings, core)
    fetch_core_models(catalog, [core])
    asyncio.run(require_machine(catalog, settings, [core]))
    path.parent.mkdir(parents=True, exist_ok=True)
    title = core_title(catalog, core)
    click.echo(f"{title.removeprefix('the ')} of catalogue {catalog.name!r} on {path}")
    # One that takes another's place does so with all its models.
    load = _own_process_factory(catalog, settings, core, early=not replaces)
    serve_core(
        inheriting(load, path) if replaces else load,
        ReplacingListener(path) if replaces else UnixListener(path),
        watchdog_seconds=watchdog_seconds_of(catalog, core),
        title=title,
        # A supervisor speaks for its processes.
        tell_manager=(lambda line: None) if supervised else tell_service_manager,
    )


def _serve_core_to_parent(settings: "Settings", group: str | None, channel: int) -> None:
    """Serve a core to the process that started this one, which checks that it can be served here. What ends the
    core early goes to that process."""
    from gateway.runtime.core_factory import chosen_core, core_title, watchdog_seconds_of
    from inference_core.errors import CoreGoneError
    from inference_core.transport.listener import InheritedListener
    from inference_core.transport.server import serve_core
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    core = chosen_core(catalog, group)
    try:
        serve_core(
            _own_process_factory(catalog, settings, core, early=True),
            InheritedListener(channel),
            watchdog_seconds=watchdog_seconds_of(catalog, core),
            title=core_title(catalog, core),
        )
    except CoreGoneError:
        click.get_current_context().exit(1)


def _own_process_factory(catalog: "Catalog", settings: "Settings", core: str, *, early: bool) -> "CoreFactory":
    """Return the `core_factory` of a core that has this process to itself: the CPU's needs little of torch."""
    from gateway.runtime.core_factory import core_factory
    from tiers.catalog.catalog import CPU_CORE

    load = core_factory(catalog, settings, core, early=early)
    if core != CPU_CORE:
        return load

    def load_on_the_cpu() -> "SteppingCore":
        from gateway.base.footprint import import_eager_torch

        import_eager_torch()
        return load()

    return load_on_the_cpu


def _serve_supervised(settings: "Settings") -> None:
    from gateway.processes.supervisor import run_supervised
    from gateway.tenancy.keys.key_secrets import keys_of

    # Refused here, not by every one of the processes.
    keys_of(settings)
    if settings.role == "all":
        from gateway.processes.start_checks import measure_or_say_how
        from tiers.catalog.load import load_catalog

        _require_core_sockets(settings)
        measure_or_say_how(load_catalog(settings.catalog), settings)
    click.get_current_context().exit(run_supervised(settings))


def _require_core_sockets(settings: "Settings") -> None:
    from gateway.runtime.core_factory import socket_of
    from tiers.catalog.load import load_catalog

    for core in load_catalog(settings.catalog).core_names:
        socket_of(settings, core)


def _serve_http(settings: "Settings", worker: str | None) -> None:
    import gc

    import msgspec

    # Until the server has started: imports make hundreds of thousands of objects, and next to no garbage.
    gc.disable()
    try:
        if worker is None:
            from gateway.processes.start_checks import require_port

            # Before anything is loaded, and before a first admin key is made.
            require_port(settings.host, settings.port)
            if settings.role == "gateway" and not settings.cluster:
                _require_core_sockets(settings)
        cores = _loading_cores(settings) if settings.role == "all" else None
        # Imported now: the cores load meanwhile.
        from gateway.processes.server import run_server
        from gateway.runtime.peers import WorkerIdentity

        run_server(settings, None if worker is None else msgspec.json.decode(worker, type=WorkerIdentity), cores=cores)
    finally:
        gc.enable()


def _loading_cores(settings: "Settings") -> "dict[str, CoreClient]":
    """Return a client of every core of the catalogue; those with a process of their own load from now on. The core of
    the CPU loads while it is checked that all can be served here, those of cards once it is."""
    import asyncio

    from gateway.processes.start_checks import measure_or_say_how
    from gateway.runtime.core_factory import fetch_core_models, require_local_models
    from gateway.runtime.cores.core_clients import core_clients
    from inference_core.transport.unix_socket import ChildCoreClient
    from tiers.catalog.catalog import CPU_CORE
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    require_local_models(catalog)
    fetch_core_models(catalog, catalog.core_names)
    cores = core_clients(catalog, settings)
    children = {name: core for name, core in cores.items() if isinstance(core, ChildCoreClient)}
    if CPU_CORE in children:
        children[CPU_CORE].launch_ahead()
    asyncio.run(_require_machine_or_close(catalog, settings, cores))
    measure_or_say_how(catalog, settings)
    for name, core in children.items():
        if name != CPU_CORE:
            core.launch_ahead()
    return cores


async def _require_machine_or_close(catalog: "Catalog", settings: "Settings", cores: "dict[str, CoreClient]") -> None:
    """Check that `cores` can be served here; if not, or if it is interrupted, they are closed before it raises."""
    # Imported once cores load, since it imports what reads model files.
    from gateway.runtime.cores.next_core import require_machine

    try:
        await require_machine(catalog, settings, cores)
    except BaseException:
        for core in cores.values():
            await core.close()
        raise


@click.command()
@click.option(
    "--role",
    type=click.Choice(["gateway", "all"]),
    default="gateway",
    help="gateway: uses the cores' sockets, or remote tiers only. all: runs its own models.",
)
@click.option(
    "--concurrency", "batch_concurrency", type=int, help="Lines answered at once.  [AIO_BATCH_CONCURRENCY; 4]"
)
@click.option(
    "--host", multiple=True, callback=by_commas, help="Addresses of probes and metrics.  [AIO_HOST; 127.0.0.1]"
)
@click.option("--port", type=int, default=0, help="Port of probes and metrics. With 0, AIO chooses a free one.")
@setting_options("catalog", "data_dir", "cache_dir", "database_url", "core_socket", "log_level")
def worker(**options: Any) -> None:
    """Answer lines of batches and queued chats until you interrupt it. What runs then has AIO_DRAIN_SECONDS to end.

    Run it alongside `aio serve` with AIO_BATCH_CONCURRENCY=0, on the same database and, if used, the same Redis. With
    AIO_CHAT_QUEUE=put in the gateway and here, it answers the gateway's chats.
    """
    from gateway.base.stores.data_folder import private_data_folder
    from gateway.http import worker_app
    from gateway.processes.announcement import worker_text
    from gateway.processes.server import run_server

    # The gateways evaluate the alerts. A worker takes no requests that a key could guard: batches of callers without a
    # key are answered as long as no key is required.
    settings = settings_from(**options, alert_urls="", insecure=True)
    if settings.chat_queue != "off":
        settings = msgspec.structs.replace(settings, chat_queue="take")
    elif not settings.batch_concurrency:
        raise click.UsageError("a worker with --concurrency 0 (or AIO_BATCH_CONCURRENCY=0) would answer nothing")
    _set_up_telemetry(settings, "worker")
    private_data_folder(settings.data_path)
    ready = partial(worker_text, chats=settings.chat_queue != "off")
    run_server(settings, http=worker_app, ready=ready, administers=False)


def _set_up_telemetry(settings: "Settings", role: str) -> None:
    """Set up log and error reports of the process with this `role`."""
    from gateway.base.logs import configure_logging
    from gateway.telemetry.error_reports import report_errors

    configure_logging(settings.log_level, settings.log_format)
    report_errors(role)
