"""`aio outcomes`: import existing labels, so that routing is right before any verification; list and delete imports."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    FILE,
    data_dir_option,
    database_option,
    echo_answer,
    ledger_options,
    settings_from,
    stored_options,
    table,
    with_database,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from quality.learning.outcome_import import Imported


@click.group()
def outcomes() -> None:
    """Known outcomes of the catalogue's tiers."""


@outcomes.command("import")
@click.argument("file", type=FILE)
@click.option("--key", "key_id", metavar="ID", help="Id of the key whose prompts these are.  [no key]")
@click.option(
    "--margin", type=click.FloatRange(min=0), default=0.0, help="Score difference that still counts as equally good."
)
@click.option("--weight", type=click.FloatRange(0, 1), default=1.0, help="Weight of such a label.")
@ledger_options
def import_(file: Path, key_id: str | None, margin: float, weight: float, as_json: bool, **options: Any) -> None:
    """Store the outcomes of FILE as labels. A running server reads them within seconds; training uses them too.

    FILE has a line for each prompt: {"prompt": "…", "scores": {"1": 0.4, "4": 0.9}}, or "messages" in place of
    "prompt". Scores are of any scale, higher is better; the strongest tier's is needed. The same prompt again replaces
    its labels.
    """
    from classifier.registry.artefact import default_artefact, load_artefact
    from classifier.registry.registry import ArtefactRegistry
    from quality.learning.outcome_import import import_outcomes, read_outcomes
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    catalog = load_catalog(settings.catalog)
    found = read_outcomes(file, len(catalog.tiers))
    registry = ArtefactRegistry(settings.registry_path)
    registry.seed(default_artefact())
    model = load_artefact(registry.current(), catalog.fingerprint)

    async def store(engine: "AsyncEngine") -> "Imported":
        return await import_outcomes(
            engine, model, found, tiers=catalog.tier_fingerprints, key_id=key_id, margin=margin, weight=weight,
            now=time.time(), file=file.name,
        )  # fmt: skip

    made = with_database(settings, store)
    whose = f" for key {key_id}" if key_id else ""
    echo_answer(
        as_json,
        {"labels": made.labels, "key": key_id, "import": made.import_id, "understood": made.understood},
        f"{made.labels} labelled prompts are stored{whose}\n{made.understood.in_words()}\n"
        f"if that is wrong: aio outcomes delete {made.import_id}",
    )


@outcomes.command("list")
@stored_options
def list_(as_json: bool, **options: Any) -> None:
    """Show the imports, newest first, with what each said of the tiers."""
    from quality.learning.outcome_import import list_imports

    found = with_database(settings_from(**options), list_imports)
    rows = [
        [
            one.import_id,
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.created_at)),
            one.file,
            one.key_id or "",
            str(one.labels),
            one.understood.in_words(),
        ]
        for one in found
    ]
    echo_answer(as_json, found, table(["import", "made (UTC)", "file", "key", "labels", "understood"], rows))


@outcomes.command("delete")
@click.argument("import_id", metavar="IMPORT")
@click.option("--reason", help="Recorded in the audit trail.")
@data_dir_option
@database_option
def delete_(import_id: str, reason: str | None, **options: Any) -> None:
    """Delete an import with its labels. A running server follows within seconds; no later training reads them."""
    from quality.learning.outcome_import import delete_import

    async def undo(engine: "AsyncEngine") -> int | None:
        return await delete_import(engine, import_id, actor="cli", reason=reason, now=time.time())

    gone = with_database(settings_from(**options), undo)
    if gone is None:
        raise click.ClickException(f"there is no import {import_id!r}; aio outcomes list shows them")
    click.echo(f"{import_id} and its {gone} labels are deleted")
