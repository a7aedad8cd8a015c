"""`aio cluster`: start a cluster for trials, deploy the catalogue's cores, show their replicas, stop them; and
`aio certificates`, which makes the certificates of cores on several machines.
"""

from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.cli.cluster import address_option, joined, require_ray
from gateway.cli.live.knobs import assignment
from gateway.cli.options import (
    NEW_FOLDER,
    cache_dir_option,
    catalog_option,
    data_dir_option,
    echo_answer,
    json_option,
    settings_from,
    table,
)


@click.command()
@click.option("--nodes", type=click.IntRange(min=1), default=2, help="Nodes in addition to the head.")
@click.option("--cpus", type=click.IntRange(min=1), default=1, help="CPUs that each node offers.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="GPUs that each node offers.")
def up(nodes: int, cpus: int, gpus: int) -> None:
    """Start a head without work and N nodes, and run them until interrupted.

    These are real Ray nodes in separate processes; for several machines, see docs/reference/ray.md.
    """
    require_ray()
    from gateway.runtime.cluster.join import LocalCluster

    with LocalCluster(nodes, cpus=cpus, gpus=gpus) as local:
        click.echo(f"a head and {nodes} nodes of {cpus} CPU(s) at {local.address}; serve on them:\n")
        click.echo(f"  aio serve --cluster {local.address}\n")
        local.wait_for_interrupt()


@click.command()
@address_option
@catalog_option
@data_dir_option
@cache_dir_option
@click.option("--replicas", type=click.IntRange(min=1), default=1, help="Minimum replicas of every core.")
@click.option("--most", type=click.IntRange(min=1), help="Maximum replicas of every core.  [--replicas]")
@click.option(
    "--prefill",
    type=click.IntRange(min=0),
    default=0,
    help="Minimum of additional replicas that only compute long prompts.",
)
@click.option("--most-prefill", type=click.IntRange(min=1), help="Maximum of these.  [--prefill]")
@click.option(
    "--prefill-knob",
    "prefill_knobs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A live knob of the prefill replicas only.",
)
@click.option("--cpus", type=click.FloatRange(min=0), default=1.0, help="CPUs per rank of a core.")
@click.option(
    "--up-seconds", type=click.FloatRange(min=0), default=10.0, help="Seconds of high load before replicas start."
)
@click.option(
    "--down-seconds", type=click.FloatRange(min=0), default=300.0, help="Seconds of low load before a replica stops."
)
def deploy(
    address: str,
    replicas: int,
    most: int | None,
    prefill: int,
    most_prefill: int | None,
    prefill_knobs: tuple[str, ...],
    cpus: float,
    up_seconds: float,
    down_seconds: float,
    **options: Any,
) -> None:
    """Start the catalogue's cores and wait until they serve; running ones are rescaled.

    With --prefill, prompts of at least the live knob handover_min_tokens go to a second pool of each core first, and
    their keys and values from there to the first; each pool is scaled alone. Folders are the nodes' own: --data-dir
    for knobs that were kept, --cache-dir for repacked weights.
    """
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    catalog = load_catalog(settings.catalog)
    for few, many, name in ((replicas, most, "replicas"), (prefill, most_prefill, "prefill")):
        if many is not None and many < few:
            least, bound = f"--{name} {few}", f"--most{'' if name == 'replicas' else '-' + name} {many}"
            raise click.UsageError(f"{bound} is fewer than {least}")
    own = _own_knobs(prefill_knobs, prefill)
    with joined(address) as fleet:
        scale = fleet.Scale(
            fewest=replicas, most=most or replicas, cpus=cpus, up_seconds=up_seconds, down_seconds=down_seconds
        )
        second = msgspec.structs.replace(scale, fewest=prefill, most=most_prefill or prefill, knobs=own)
        fleet.deploy(catalog, settings, scale, prefill=second if prefill else None, redeploy=True)
    for core in catalog.core_names:
        click.echo(f"{fleet.service_of(catalog, core)} serves")
        if prefill:
            click.echo(f"{fleet.service_of(catalog, core, 'prefill')} serves")


def _own_knobs(given: tuple[str, ...], prefill: int) -> dict[str, Any]:
    """Raises a click error for a knob that cannot be set, or without prefill replicas to set it on."""
    from inference_core.engine.live_knobs import changed_knobs
    from inference_core.errors import InvalidRequestError
    from inference_core.protocol import Knobs

    knobs = dict(map(assignment, given))
    if knobs and not prefill:
        raise click.UsageError("--prefill-knob needs --prefill")
    try:
        changed_knobs(Knobs(), knobs, Knobs())
    except InvalidRequestError as error:
        raise click.UsageError(f"--prefill-knob: {error}") from None
    return knobs


@click.command()
@address_option
@catalog_option
def down(address: str, **options: Any) -> None:
    """Stop the catalogue's cores; running answers may end first."""
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings_from(**options).catalog)
    with joined(address) as fleet:
        removed = fleet.remove(catalog)
    for name in removed:
        click.echo(f"{name} is down")


@click.command()
@address_option
@catalog_option
@json_option
def status(address: str, as_json: bool, **options: Any) -> None:
    """Show every core's state in Ray Serve, and its replicas with node and address."""
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings_from(**options).catalog)
    with joined(address) as fleet:
        states = fleet.serve_applications()
        cores = {core: (states.get(fleet.service_of(catalog, core), "not deployed"), fleet.announced(catalog, core))
                 for core in catalog.core_names}  # fmt: skip
    rows = [
        [core, state, *((one.name, one.role, one.node, str(one.address)) if one else ("-",) * 4)]
        for core, (state, replicas) in cores.items()
        for one in (replicas or [None])
    ]
    echo_answer(
        as_json,
        {
            core: {
                "state": state,
                "replicas": [
                    {
                        "name": one.name,
                        "node": one.node,
                        "pid": one.pid,
                        "address": str(one.address),
                        "leaving": one.leaving,
                        "role": one.role,
                    }
                    for one in replicas
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
    """Make the certificates with which cores and gateways on several machines know each other, in FOLDER.

    Called a second time, it renews the certificate with the same authority; running processes take it for new
    connections. Needs the program `openssl`.
    """
    from inference_core.transport.certificates import AUTHORITY_KEY, make_certificates
    from inference_core.transport.tls import AUTHORITY, CERTIFICATE, KEY

    make_certificates(folder, days)
    click.echo(f"Copy {AUTHORITY}, {CERTIFICATE} and {KEY} from {folder} to every machine, and set there\n")
    click.echo("  AIO_CORE_TLS=FOLDER\n")
    click.echo(f"{AUTHORITY_KEY} stays here: it renews them.")
