"""`aio quality experiments`: list, start and stop A/B experiments of two versions or two tiers."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    Command,
    audit_reason_option,
    echo_answer,
    ledger_options,
    settings_from,
    stored_options,
    table,
    with_database,
)

if TYPE_CHECKING:
    from classifier.policy.experiment_split import Arm, SplitBy
    from quality.rollout.guardrails import Measure

UNITS = ("user", "key", "conversation", "request")


def margin_of(text: str) -> float:
    """Parse a margin, infinite for none; the `type` of an option. Raises `click.BadParameter`."""
    try:
        margin = math.inf if text == "none" else float(text)
    except ValueError:
        margin = math.nan
    if not margin >= 0:
        raise click.BadParameter(f"{text!r} is neither a number from 0 on nor none.")
    return margin


def _margin_option(measure: str, what: str) -> Callable[[Command], Command]:
    return click.option(
        f"--{measure}-margin",
        type=margin_of,
        metavar="NUMBER|none",
        help=f"End it once b's {what} exceeds a's by more than this share.  [twice what is expected]",
    )


@click.group("experiments")
def experiments() -> None:
    """A share of the traffic is split between two versions of the classifier, or two tiers, until one is known to be
    better."""


@experiments.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20)
@stored_options
def list_experiments(limit: int, as_json: bool, **options: Any) -> None:
    """Show experiments, newest first, with what has been found."""
    from quality.store.pages import EXPERIMENTS

    found = with_database(settings_from(**options), lambda engine: EXPERIMENTS.page(engine, {}, limit=limit))
    rows = []
    for row in found.rows:
        results = row["metrics"] or {}
        paired = results.get("paired", {})
        counts = "/".join(str(results.get(arm, {}).get("requests", 0)) for arm in ("a", "b"))
        gain, probes = f"{paired.get('gain', 0.0):+.4f}", str(paired.get("probes", 0))
        by = row["config"].get("by", "request")
        rows.append([row["experiment_id"], row["name"], row["status"], by, counts, probes, gain, row["reason"] or ""])
    head = ["experiment", "name", "status", "by", "requests a/b", "probes", "gain of b", "reason"]
    echo_answer(as_json, found, table(head, rows))


@experiments.command()
@click.argument("name")
@click.option("--a", "arm_a", required=True, metavar="tier:N|version:V", help="The first arm.")
@click.option("--b", "arm_b", required=True, metavar="tier:N|version:V", help="The second arm.")
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), default=0.1)
@click.option(
    "--by", type=click.Choice(UNITS), default="user", help="What is given the same arm for the whole experiment."
)
@click.option("--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.05)
@click.option("--most-probes", type=click.IntRange(1), default=1000)
@_margin_option("cost", "cost per request")
@_margin_option("ttft", "time to the first token")
@_margin_option("e2e", "time to the end of an answer")
@audit_reason_option
@ledger_options
def start(
    name: str,
    arm_a: str,
    arm_b: str,
    share: float,
    by: "SplitBy",
    level: float,
    most_probes: int,
    cost_margin: float | None,
    ttft_margin: float | None,
    e2e_margin: float | None,
    reason: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Start an experiment; servers that share the data folder follow within seconds. `auto` requests take part."""
    from classifier.registry.acceptance import accepted_artefact
    from classifier.registry.artefact import default_artefact
    from classifier.registry.registry import ArtefactRegistry
    from gateway.operations.experiment_plan import plan_experiment
    from quality.rollout.experiments import Experiments
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    catalog, registry = load_catalog(settings.catalog), ArtefactRegistry(settings.registry_path)
    registry.seed(default_artefact())
    a, b = _arm(arm_a), _arm(arm_b)
    try:
        margins: dict[Measure, float | None] = {"cost": cost_margin, "ttft": ttft_margin, "e2e": e2e_margin}
        stated = {
            measure: None if math.isinf(margin) else margin for measure, margin in margins.items() if margin is not None
        }
        plan = plan_experiment(
            settings, catalog, stated, share=share, a=a, b=b, by=by, level=level, most_probes=most_probes
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for arm in (a, b):
        if arm.version is not None:
            accepted_artefact(
                registry.folder(arm.version),
                catalog.fingerprint,
                tiers=len(catalog.tiers),
                must_be_measured=settings.classifier_must_be_measured,
            )
    started = with_database(
        settings, lambda engine: Experiments(engine, registry).start(name, plan, actor="cli", reason=reason)
    )
    echo_answer(as_json, {"experiment_id": started}, f"experiment {started}: {a} against {b}")


@experiments.command()
@click.argument("experiment_id")
@audit_reason_option
@stored_options
def stop(experiment_id: str, reason: str, as_json: bool, **options: Any) -> None:
    """End one without a verdict."""
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.experiments import Experiments

    settings = settings_from(**options)
    registry = ArtefactRegistry(settings.registry_path)
    stopped = with_database(
        settings, lambda engine: Experiments(engine, registry).stop(experiment_id, actor="cli", reason=reason)
    )
    if not stopped:
        raise click.ClickException(f"no experiment {experiment_id} is running")
    echo_answer(as_json, {"stopped": True}, f"experiment {experiment_id} has ended")


def _arm(given: str) -> "Arm":
    from classifier.policy.experiment_split import Arm

    kind, _, value = given.partition(":")
    if kind == "tier" and value.isdigit():
        return Arm(tier=int(value))
    if kind == "version" and value:
        return Arm(version=value)
    raise click.UsageError(f"{given!r} is not an arm; write tier:N or version:V")
