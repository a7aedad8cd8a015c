"""`aio classifier list | promote | rollback | canary`: the versions and which one serves."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import (
    catalog_option,
    data_dir_option,
    database_option,
    echo_answer,
    echo_json,
    json_option,
    settings_from,
    table,
)
from gateway.operations.cli.stored_order import with_database

if TYPE_CHECKING:
    from classifier.registry.registry import ArtefactRegistry
    from gateway.base.settings import Settings
    from quality.comparison.decision_gain import Serving

version_option = click.option(
    "--version",
    metavar="VERSION|FOLDER",
    help="A version of the registry, or an artefact's folder.  [the serving version]",
)
reason_option = click.option("--reason", default="asked for on the command line", help="For the audit trail.")


def folder_of(root: Path, version: str | None) -> Path:
    """Return the folder of a version of the registry `root`, of an artefact anywhere, or (None) of the serving version.

    Raises `ArtefactError` if there is none.
    """
    from classifier.registry.artefact import default_artefact
    from classifier.registry.registry import POINTER, ArtefactRegistry

    registry = ArtefactRegistry(root)
    if version is None:
        return registry.current() if (root / POINTER).is_file() else default_artefact()
    if "/" in version or Path(version, "manifest.json").is_file():
        return Path(version)
    if version == default_artefact().name and version not in registry.versions():
        return default_artefact()
    return registry.folder(version)


@click.command("list")
@data_dir_option
@json_option
def list_versions(as_json: bool, **options: Any) -> None:
    """Show every version: which serves, which is on trial, and where each comes from."""
    from classifier.registry.version_list import listed_versions

    found = listed_versions(settings_from(**options).registry_path)
    if as_json:
        echo_json(found)
        return
    rows = [
        [one.version, one.status, one.parent or "-", one.encoder, f"{one.rows:,}", f"{one.megabytes:.1f}", one.problem]
        for one in found
    ]
    click.echo(table(["version", "status", "parent", "encoder", "rows", "MB", ""], rows))
    line = next((one.line for one in found if one.status == "current"), [])
    click.echo("\nline of the current version: " + " <- ".join(line))


@click.command()
@click.argument("version", metavar="VERSION|FOLDER")
@reason_option
@catalog_option
@data_dir_option
@database_option
@json_option
def promote(version: str, reason: str, as_json: bool, **options: Any) -> None:
    """Let VERSION serve, after the checks that a server makes; running servers follow."""
    from quality.rollout.operator_commands import promote as order

    settings = settings_from(**options)
    registry, name, prior, serving = _accepted(settings, version)
    before = with_database(
        settings, lambda engine: order(engine, registry, name, actor="cli", reason=reason, prior=prior, serving=serving)
    )
    echo_answer(
        as_json,
        {"current": name, "previous": before},
        f"classifier {name} serves; `aio classifier rollback` restores {before}",
    )


@click.command()
@reason_option
@data_dir_option
@database_option
@json_option
def rollback(reason: str, as_json: bool, **options: Any) -> None:
    """Restore the previous version; a second rollback changes nothing."""
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.operator_commands import rollback as order

    settings = settings_from(**options)
    registry = ArtefactRegistry(settings.registry_path)
    current = with_database(settings, lambda engine: order(engine, registry, actor="cli", reason=reason))
    echo_answer(as_json, {"current": current, "previous": registry.previous()}, f"classifier {current} serves again")


@click.command()
@click.argument("version", metavar="VERSION|FOLDER", required=False)
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="Share of the requests that it decides."
)
@click.option("--stop", is_flag=True, help="End the trial.")
@reason_option
@catalog_option
@data_dir_option
@database_option
@json_option
def canary(version: str | None, share: float | None, stop: bool, reason: str, as_json: bool, **options: Any) -> None:
    """Put VERSION on trial for a share of the requests, or show who is on it."""
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.operator_commands import start_canary, stop_canary

    settings = settings_from(**options)
    registry = ArtefactRegistry(settings.registry_path)
    if stop:
        if version is not None or share is not None:
            raise click.UsageError("--stop ends the current trial; give nothing else")
        ended = with_database(settings, lambda engine: stop_canary(engine, registry, actor="cli", reason=reason))
        said = f"the trial of {ended} is over" if ended else "no version was on trial"
    elif version is not None:
        if share is None:
            raise click.UsageError("a trial needs --share")
        registry, name, prior, serving = _accepted(settings, version)
        with_database(
            settings,
            lambda engine: start_canary(
                engine, registry, name, share, actor="cli", reason=reason, prior=prior, serving=serving
            ),
        )
        said = f"{name} decides about {share:.1%} of the requests"
    else:
        there = registry.canary()
        said = f"{there.version} decides about {there.share:.1%} of the requests" if there else "no version is on trial"
    echo_answer(as_json, {"canary": registry.canary()}, said)


def _accepted(settings: "Settings", version: str) -> "tuple[ArtefactRegistry, str, list[list[float]], Serving]":
    """Return the registry with `version` in it, checked as a server checks it; an empty one first gets the packaged
    version. Also returns the assumed strengths of the catalogue's tiers, and by what utility it serves.

    Raises `ArtefactError` with the reason of a refusal.
    """
    from classifier.registry.acceptance import accepted_artefact
    from classifier.registry.artefact import default_artefact
    from classifier.registry.registry import ArtefactRegistry
    from gateway.inference.catalogue.class_prior import tier_prior
    from gateway.inference.routing.knobs import objective_of
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    registry = ArtefactRegistry(settings.registry_path)
    folder = folder_of(settings.registry_path, version)
    model = accepted_artefact(
        folder,
        catalog.fingerprint,
        tiers=len(catalog.tiers),
        must_be_measured=settings.classifier_must_be_measured,
    )
    registry.seed(default_artefact())
    if folder.name != model.version:
        raise click.UsageError(f"{folder} holds version {model.version}; its folder must have that name")
    registry.add(folder)
    return registry, model.version, tier_prior(catalog, settings.data_path), objective_of(settings, catalog)
