"""`aio cluster`: start a cluster for trials, deploy the catalogue's cores, show their replicas, stop them; and
`aio certificates`, which makes the certificates of cores on several machines.
"""

from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, NotNegative, Whole
from gateway.base.settings import Settings
from gateway.cli.cluster import address_option, joined, require_ray
from gateway.cli.live.knobs import assignment
from gateway.cli.options import NEW_FOLDER, echo_answer, json_option, table, with_settings
from gateway.cli.typed_options import options_of


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio cluster up`."""

    nodes: Count = 2
    """Nodes in addition to the head."""
    cpus: Count = 1
    """CPUs that each node offers."""
    gpus: Whole = 0
    """GPUs that each node offers."""


@click.command()
@options_of(NodeOptions)
def up(options: NodeOptions) -> None:
    """Start a head without work and N nodes, and run them until interrupted.

    These are real Ray nodes in separate processes; for several machines, see docs/reference/ray.md.
    """
    require_ray()
    from gateway.runtime.cluster.join import LocalCluster

    with LocalCluster(options.nodes, cpus=options.cpus, gpus=options.gpus) as local:
        click.echo(f"a head and {options.nodes} nodes of {options.cpus} CPU(s) at {local.address}; serve on them:\n")
        click.echo(f"  aio serve --cluster {local.address}\n")
        local.wait_for_interrupt()


class DeployOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio cluster deploy`."""

    replicas: Count = 1
    """Minimum replicas of every core."""
    most: Count | None = None
    """Maximum replicas of every core. [--replicas]"""
    prefill: Whole = 0
    """Minimum of additional replicas that only compute long prompts."""
    most_prefill: Count | None = None
    """Maximum of additional replicas that only compute long prompts. [--prefill]"""
    prefill_knobs: Annotated[tuple[str, ...], Meta(title="NAME=VALUE")] = msgspec.field(name="prefill_knob", default=())
    """A live knob of the additional replicas only. May be repeated."""
    cpus: NotNegative = 1.0
    """CPUs for each rank of a core."""
    up_seconds: NotNegative = 10.0
    """Seconds of high load before replicas start."""
    down_seconds: NotNegative = 300.0
    """Seconds of low load before a replica stops."""


@click.command()
@address_option
@with_settings("catalog", "data_dir", "cache_dir")
@options_of(DeployOptions)
def deploy(address: str, options: DeployOptions, settings: Settings) -> None:
    """Start the catalogue's cores and wait until they serve. Running cores are scaled.

    With --prefill, prompts of at least the live knob handover_min_tokens go to a second pool of each core first, and
    their keys and values from there to the first; each pool is scaled alone. Folders are the nodes' own: --data-dir
    for knobs that were kept, --cache-dir for repacked weights.
    """
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    replicas, most, prefill, most_prefill = options.replicas, options.most, options.prefill, options.most_prefill
    for few, many, name in ((replicas, most, "replicas"), (prefill, most_prefill, "prefill")):
        if many is not None and many < few:
            least, bound = f"--{name} {few}", f"--most{'' if name == 'replicas' else '-' + name} {many}"
            raise click.UsageError(f"{bound} is fewer than {least}")
    own = _own_knobs(options.prefill_knobs, prefill)
    with joined(address) as fleet:
        scale = fleet.Scale(
            fewest=replicas,
            most=most or replicas,
            cpus=options.cpus,
            up_seconds=options.up_seconds,
            down_seconds=options.down_seconds,
        )
        second = msgspec.structs.replace(scale, fewest=prefill, most=most_prefill or prefill, knobs=own)
        fleet.deploy(catalog, settings, scale, prefill=second if prefill else None, redeploy=True)
    for core in catalog.core_names:
        click.echo(f"{fleet.service_of(catalog, core)} serves")
        if prefill:
            click.echo(f"{fleet.service_of(catalog, core, 'prefill')} serves")


def _own_knobs(assignments: tuple[str, ...], prefill: int) -> dict[str, Any]:
    """Raises a click error for a knob that cannot be set, or without prefill replicas to set it on."""
    from inference_core.engine.live_knobs import changed_knobs
    from inference_core.errors import InvalidRequestError
    from inference_core.protocol import Knobs

    knobs = dict(map(assignment, assignments))
    if knobs and not prefill:
        raise click.UsageError("--prefill-knob needs --prefill")
    try:
        changed_knobs(Knobs(), knobs, Knobs())
    except InvalidRequestError as error:
        raise click.UsageError(f"--prefill-knob: {error}") from None
    return knobs


@click.command()
@address_option
@with_settings("catalog")
def down(address: str, settings: Settings) -> None:
    """Stop the catalogue's cores. Running answers may end first."""
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    with joined(address) as fleet:
        removed = fleet.remove(catalog)
    for name in removed:
        click.echo(f"{name} is down")


@click.command()
@address_option
@with_settings("catalog")
@json_option
def status(address: str, as_json: bool, settings: Settings) -> None:
    """Show every core's state in Ray Serve, and its replicas with node and address."""
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    with joined(address) as fleet:
        states = fleet.serve_applications()
        cores = {core: (states.get(fleet.service_of(catalog, core), "not deployed"), fleet.announced(catalog, core))
                 for core in catalog.core_names}  # fmt: skip
    rows = [
        [core, state, *((replica.name, replica.role, replica.node, str(replica.address)) if replica else ("-",) * 4)]
        for core, (state, replicas) in cores.items()
        for replica in (replicas or [None])
    ]
    echo_answer(
        as_json,
        {
            core: {
                "state": state,
                "replicas": [
                    {
                        "name": replica.name,
                        "node": replica.node,
                        "pid": replica.pid,
                        "address": str(replica.address),
                        "leaving": replica.leaving,
                        "role": replica.role,
                    }
                    for replica in replicas
                ],
            }
            for core, (state, replicas) in cores.items()
        },
        table(["core", "state", "replica", "role", "node", "address"], rows),
    )


@click.command()
@click.argument("folder", type=NEW_FOLDER)
@click.option("--days", type=click.IntRange(min=1), default=3650, help="How long the certificate is valid.")
def certificates(folder: Path, days: int) -> None:
    """Make certificates in FOLDER, by which cores and gateways on several machines know each other.

    Called a second time, it renews the certificate with the same authority; running processes take it for new
    connections. Needs the program `openssl`.
    """
    from inference_core.transport.certificates import AUTHORITY_KEY, make_certificates
    from inference_core.transport.tls import AUTHORITY, CERTIFICATE, KEY

    make_certificates(folder, days)
    click.echo(f"Copy {AUTHORITY}, {CERTIFICATE} and {KEY} from {folder} to every machine, and set there\n")
    click.echo("  AIO_CORE_TLS=FOLDER\n")
    click.echo(f"{AUTHORITY_KEY} stays here: it renews them.")
