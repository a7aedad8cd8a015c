"""`aio outcomes`: import existing labels, so that routing is right before any verification; list and delete imports."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import NotNegative, Share
from gateway.base.settings import Settings
from gateway.cli.options import (
    FILE,
    LEDGER,
    STORED,
    echo_answer,
    json_option,
    reason_option,
    table,
    with_database,
    with_settings,
)
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from quality.learning.outcome_import import Imported


@click.group()
def outcomes() -> None:
    """Known outcomes of the catalogue's tiers."""


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio outcomes import`."""

    key_id: Annotated[str, Meta(title="ID")] | None = msgspec.field(name="key", default=None)
    """Id of the key whose prompts these are. [no key]"""
    margin: NotNegative = 0.0
    """Difference of scores that still counts as equally good."""
    weight: Share = 1.0
    """Weight of such a label."""


@outcomes.command("import")
@click.argument("file", type=FILE)
@options_of(ImportOptions)
@with_settings(*LEDGER)
@json_option
def import_(file: Path, options: ImportOptions, as_json: bool, settings: Settings) -> None:
    """Store the outcomes of FILE as labels. A running server reads them within seconds; training uses them too.

    FILE has a line for each prompt: {"prompt": "…", "scores": {"1": 0.4, "4": 0.9}}, or "messages" in place of
    "prompt". Scores are of any scale, higher is better; the strongest tier's is needed. The same prompt again replaces
    its labels.
    """
    from classifier.registry.artefact import default_artefact, load_artefact
    from classifier.registry.registry import ArtefactRegistry
    from quality.learning.outcome_import import import_outcomes, read_outcomes
    from tiers.catalog.load import load_catalog

    catalog, key_id = load_catalog(settings.catalog), options.key_id
    file_outcomes = read_outcomes(file, len(catalog.tiers))
    registry = ArtefactRegistry(settings.registry_path)
    registry.seed(default_artefact())
    model = load_artefact(registry.current(), catalog.fingerprint)

    async def store(engine: "AsyncEngine") -> "Imported":
        return await import_outcomes(
            engine, model, file_outcomes, tiers=catalog.tier_fingerprints, key_id=key_id, margin=options.margin,
            weight=options.weight, now=time.time(), file=file.name,
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
@with_settings(*STORED)
@json_option
def list_(as_json: bool, settings: Settings) -> None:
    """Show the imports, newest first, with what each said of the tiers."""
    from quality.learning.outcome_import import list_imports

    imports = with_database(settings, list_imports)
    rows = [
        [
            stored.import_id,
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(stored.created_at)),
            stored.file,
            stored.key_id or "",
            str(stored.labels),
            stored.understood.in_words(),
        ]
        for stored in imports
    ]
    echo_answer(as_json, imports, table(["import", "made (UTC)", "file", "key", "labels", "understood"], rows))


@outcomes.command("delete")
@click.argument("import_id", metavar="IMPORT")
@reason_option
@with_settings("data_dir", "database_url")
def delete_(import_id: str, reason: str | None, settings: Settings) -> None:
    """Delete an import with its labels. A running server follows within seconds; no later training reads them."""
    from quality.learning.outcome_import import delete_import

    async def undo(engine: "AsyncEngine") -> int | None:
        return await delete_import(engine, import_id, actor="cli", reason=reason, now=time.time())

    gone = with_database(settings, undo)
    if gone is None:
        raise click.ClickException(f"there is no import {import_id!r}; aio outcomes list shows them")
    click.echo(f"{import_id} and its {gone} labels are deleted")
