"""`aio demo`: the whole loop once, on a real server and model, and what the database says of it."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import catalog_option, echo_json, json_option, settings_from, staged_progress

if TYPE_CHECKING:
    from gateway.demo import Row

_SHOWN = 12


@click.command()
@click.option("--prompts", "count", type=click.IntRange(min=1), default=24, show_default=True, help="How many to send.")
@click.option("--data-dir", metavar="DIR", help="Where the run's state goes; a new temporary folder by default.")
@catalog_option
@json_option
def demo(count: int, data_dir: str | None, as_json: bool, **given: Any) -> None:
    """Serve, ask, verify, retrain: then show request, decision, answer, verification and the candidate's fate.

    Takes a few minutes on two cores. Uses real prompts where AIO_DATA (or ../shared/data) has them, else a
    generated task set.
    """
    from gateway.demo import demo_prompts, run_demo

    folder = Path(data_dir) if data_dir else Path(tempfile.mkdtemp(prefix="aio-demo-"))
    settings = settings_from(data_dir=str(folder), **given)
    prompts, origin = demo_prompts(count)
    click.echo(f"{len(prompts)} prompts: {origin}; state in {folder}", err=True)
    with staged_progress("starting") as show:
        told = asyncio.run(run_demo(settings, prompts, show))
    if as_json:
        echo_json(told)
    else:
        _print_story(told)


def _print_story(told: dict[str, list["Row"]]) -> None:
    asked = told["requests"]
    click.secho(f"\n{len(asked)} requests, decisions and verifications (the first {_SHOWN})", bold=True)
    for row in asked[:_SHOWN]:
        click.echo(f"\n{row['request_id']}  asked for {row['requested_model']}, {row['cost_usd']:.6f} USD")
        click.echo(f"  decision  {_line(row['decision'])}")
        click.echo(f"  answer    (tier {row['tier']}) {_line(row['answer'])}")
        if row["verdict"] is not None:
            click.echo(f"  verdict   {row['label'] or 'none'}, by {row['judge'] or 'nobody'}: {_line(row['verdict'])}")
    labels = Counter(str(row["label"]) for row in asked if row["verdict"] is not None)
    click.echo(f"\nverdicts: {', '.join(f'{count} x {label}' for label, count in labels.most_common())}")
    click.echo(f"training rows: {len(told['training rows'])}")
    for title in ("retraining", "classifiers", "audit"):
        click.secho(f"\n{title}", bold=True)
        for row in told[title]:
            reason = row.pop("reason")
            click.echo(f"  {'  '.join(str(value) for value in row.values() if value is not None)}\n      {reason}")


def _line(text: str | None, width: int = 110) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
