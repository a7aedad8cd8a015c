"""`python -m benchmarks handover`: sending a prompt's keys and values to another core, or computing them there."""

import asyncio
import os
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    echo_json,
    json_option,
    settings_from,
    staged_progress,
    table,
)
from gateway.planning.commands.bench import ManyNumbers, numbers_of

if TYPE_CHECKING:
    from benchmarks.core.kv_transfer import HandoverTimings
    from benchmarks.report.measured import Spread


@click.command(cls=ManyNumbers)
@click.option(
    "--prompt-tokens",
    callback=numbers_of(int),
    metavar="N...",
    default="256 1024 4096",
    show_default=True,
    help="Lengths of prompts.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Per length, after one more.")
@click.option("--model", help="Of the CPU's core.  [its first]")
@catalog_option
@cache_dir_option
@json_option
def handover(prompt_tokens: tuple[int, ...], rounds: int, model: str | None, as_json: bool, **given: Any) -> None:
    """Two cores of one model in this process, connected by TCP: blocks are computed by one and copied to the other.

    Nothing else runs on either. Break-even: the bandwidth at which sending the blocks takes as long as computing them.
    """
    import msgspec

    from benchmarks.core.kv_transfer import bench_handover
    from inference_core.loading.load_core import load_core
    from tiers.catalog.load import load_catalog

    settings = settings_from(**given)
    core = load_catalog(settings.catalog).core
    name = model or (core.models[0].name if core.models else "")
    spec = msgspec.structs.replace(core, models=[one for one in core.models if one.name == name])
    if not spec.models:
        named = ", ".join(one.name for one in core.models) or "none"
        raise click.UsageError(f"--model {name}: the CPU's core of the catalogue has {named}")
    load = os.getloadavg()[0]
    with staged_progress("two cores") as progress:
        figures = asyncio.run(
            bench_handover(
                lambda: load_core(spec, settings.cache_path), name, prompt_tokens, rounds=rounds, progress=progress
            )
        )
    if as_json:
        echo_json({"model": name, "load_average": load, "lengths": figures})
        return
    click.echo(f"{name}: {figures[0].bytes_per_token:,.0f} bytes per token; load average before: {load:.1f}")
    click.echo(table(_COLUMNS, [_row(one) for one in figures]))


_COLUMNS = ["tokens", "MB", "prefill ms", "copy ms", "export ms", "take ms", "rest ms", "in place ms", "break-even"]


def _row(one: "HandoverTimings") -> list[str]:
    times = (one.prefill, one.copy, one.export, one.take, one.rest, one.in_place)
    return [
        str(one.prompt_tokens),
        f"{one.num_bytes / 1e6:.1f}",
        *(_ms(each) for each in times),
        f"{one.break_even_bytes_per_second * 8 / 1e6:,.0f} Mbit/s",
    ]


def _ms(seconds: "Spread") -> str:
    return f"{seconds.median * 1e3:,.0f} ({seconds.low * 1e3:,.0f}-{seconds.high * 1e3:,.0f})"
