"""`python -m benchmarks stages`: the stages of one answer at a time, from the decision to its way to the client."""

import asyncio
import secrets
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    data_dir_option,
    echo_json,
    json_option,
    settings_from,
    staged_progress,
    table,
)

if TYPE_CHECKING:
    from benchmarks.sources.stages import StageTimes


@click.command()
@click.option("--tier", type=click.IntRange(min=1), default=1, show_default=True, help="Number of the tier.")
@click.option("--requests", type=click.IntRange(min=1), default=30, show_default=True, help="Answers to time.")
@click.option("--prompt-tokens", type=click.IntRange(2, 4096), default=128, show_default=True)
@click.option("--new-tokens", type=click.IntRange(2, 4096), default=100, show_default=True, help="Length of an answer.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write, as `sources` reads it.")
@catalog_option
@data_dir_option
@cache_dir_option
@json_option
def stages(
    tier: int, requests: int, prompt_tokens: int, new_tokens: int, out: Path | None, as_json: bool, **given: Any
) -> None:
    """Time the stages of answers that a tier of the catalogue gives one after the other, here and through a server.

    Example: python -m benchmarks stages --out docs/measurements/stages.json
    """
    from benchmarks.gateway.stages import bench_stages
    from benchmarks.gateway.wire_stages import bench_wire
    from benchmarks.report.machine import describe_machine

    started = datetime.now(UTC).isoformat(timespec="seconds")
    settings = settings_from(**given, monitor=False)
    asked = {"tier": tier, "requests": requests, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    with staged_progress("loading") as show, tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        times = asyncio.run(bench_stages(settings, **asked, progress=show))
        alone = msgspec.structs.replace(settings, data_dir=folder)
        wire = asyncio.run(bench_wire(alone, secrets.token_urlsafe(24), **asked, progress=show))
    times = msgspec.structs.replace(
        times, route_ms=wire.route_ms, stream_ms=wire.stream_ms, started=started, machine=describe_machine()
    )
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(times), indent=1) + b"\n")
    echo_json(times) if as_json else click.echo(_text(times))


def _text(times: "StageTimes") -> str:
    rows = [
        ["queue", f"{times.queue_ms:.3f}"],
        ["planning", f"{times.planning_ms:.3f}"],
        ["prompt", f"{times.prefill_ms:.3f}"],
        ["of which KV blocks", f"{times.kv_ms:.3f}"],
        ["each further token", f"{times.token_ms:.3f}"],
        ["routing", f"{times.route_ms:.3f}"],
        ["stream", f"{times.stream_ms:.3f}"],
    ]
    of = f"{times.requests} answers of {times.model} to {times.prompt_tokens} tokens, one at a time"
    return f"{of}\n\n{table(['stage', 'p50 (ms)'], rows)}"
