"""`aio retrain`: train a candidate from recorded outcomes, put it on trial only if it is better; or roll back."""

from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.cluster import joined
from gateway.operations.cli.options import (
    catalog_option,
    data_dir_option,
    database_option,
    echo_json,
    json_option,
    settings_from,
    staged_progress,
)
from gateway.operations.cli.stored_order import with_database

if TYPE_CHECKING:
    from gateway.base.settings import Settings
    from quality.retraining.retrain import RetrainResult
    from quality.retraining.subprocess import OnProgress, Train


@click.command()
@click.option("--rollback", is_flag=True, help="Restore the previous classifier instead of training.")
@click.option("--reason", default="asked for on the command line", help="For the audit trail of a rollback.")
@catalog_option
@data_dir_option
@database_option
@click.option(
    "--cluster", "address", metavar="ADDRESS", help="Train on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT."
)
@json_option
def retrain(rollback: bool, reason: str, address: str | None, as_json: bool, **options: Any) -> None:
    """Train from stored outcomes and the artefact's base data, compare with the incumbent, put on trial or refuse."""
    settings = settings_from(**options)
    if rollback:
        version = _rollback(settings, reason)
        echo_json({"current": version}) if as_json else click.echo(f"classifier {version} serves again")
        return
    with staged_progress("retraining") as show:
        result = _retrain(settings, show, address)
    if as_json:
        echo_json(result)
        return
    click.echo(f"{result.outcome}: {result.reason}")
    click.echo(f"incumbent {result.incumbent}, candidate {result.candidate or 'none'}, run {result.run_id}")
    for tier in (result.judgement or {}).get("calibration", []):
        slope = "not determined" if tier.get("slope") is None else "{:.2f} [{:.2f}, {:.2f}]".format(*tier["slope"])
        click.echo(f"tier {tier['tier']}: calibration slope {slope} (wanted: 0.9 to 1.1) on {tier['rows']} rows")


def _retrain(settings: "Settings", show: "OnProgress", address: str | None) -> "RetrainResult":
    from gateway.operations.quality_loop.quality_loop import run_retraining
    from quality.retraining.subprocess import run_training_process
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    train: Train = run_training_process
    if address is not None:
        joined(address)
        from gateway.runtime.cluster.training import train_on_cluster as train
    return with_database(settings, lambda engine: run_retraining(settings, catalog, engine, "cli", show, train))


def _rollback(settings: "Settings", reason: str) -> str:
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.operator_commands import rollback

    registry = ArtefactRegistry(settings.registry_path)
    return with_database(settings, lambda engine: rollback(engine, registry, actor="cli", reason=reason))
