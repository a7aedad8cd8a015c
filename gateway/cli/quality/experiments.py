"""`aio quality experiments`: list, start and stop A/B experiments of two versions or two tiers."""

import math
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from classifier.policy.experiment_split import SplitBy
from gateway.base.field_types import Count
from gateway.base.settings import Settings
from gateway.cli.options import (
    LEDGER,
    STORED,
    audit_reason_option,
    echo_answer,
    json_option,
    limit_option,
    table,
    with_database,
    with_settings,
)
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from classifier.policy.experiment_split import Arm
    from quality.rollout.guardrails import Measure


def margin_of(text: str) -> float:
    """Parse a margin, infinite for none; the `type` of an option. Raises `click.BadParameter`."""
    try:
        margin = math.inf if text == "none" else float(text)
    except ValueError:
        margin = math.nan
    if not margin >= 0:
        raise click.BadParameter(f"{text!r} is neither a number from 0 on nor none.")
    return margin


@click.group("experiments")
def experiments() -> None:
    """A share of the traffic is split between two versions of the classifier, or two tiers, until one is known to be
    better."""


@experiments.command("list")
@limit_option(20)
@with_settings(*STORED)
@json_option
def list_experiments(limit: int, as_json: bool, settings: Settings) -> None:
    """Show experiments, newest first, with what has been found."""
    from quality.store.pages import EXPERIMENTS

    page = with_database(settings, lambda engine: EXPERIMENTS.page(engine, {}, limit=limit))
    rows = []
    for row in page.rows:
        results = row["metrics"] or {}
        paired = results.get("paired", {})
        counts = "/".join(str(results.get(arm, {}).get("requests", 0)) for arm in ("a", "b"))
        gain, probes = f"{paired.get('gain', 0.0):+.4f}", str(paired.get("probes", 0))
        by = row["config"].get("by", "request")
        rows.append([row["experiment_id"], row["name"], row["status"], by, counts, probes, gain, row["reason"] or ""])
    head = ["experiment", "name", "status", "by", "requests a/b", "probes", "gain of b", "reason"]
    echo_answer(as_json, page, table(head, rows))


Margin = Annotated[float, Meta(title="NUMBER|none", extra={"type": margin_of})]


class ExperimentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio quality experiments start`."""

    arm_a: Annotated[str, Meta(title="tier:N|version:V")] = msgspec.field(name="a")
    """The first arm."""
    arm_b: Annotated[str, Meta(title="tier:N|version:V")] = msgspec.field(name="b")
    """The second arm."""
    share: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Share of the requests that takes part."""
    by: SplitBy = "user"
    """What gets the same arm for the whole experiment."""
    level: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """Greatest probability of a wrong verdict."""
    most_probes: Count = 1000
    """Maximum number of requests that both arms answer for the comparison."""
    cost_margin: Margin | None = None
    """End the experiment once b's cost per request exceeds a's by more than this share. [twice what is expected]"""
    ttft_margin: Margin | None = None
    """End it once b's time to the first token exceeds a's by more than this share. [twice what is expected]"""
    e2e_margin: Margin | None = None
    """End it once b's time to the end of an answer exceeds a's by more than this share. [twice what is expected]"""


@experiments.command()
@click.argument("name")
@options_of(ExperimentOptions)
@audit_reason_option
@with_settings(*LEDGER)
@json_option
def start(name: str, options: ExperimentOptions, reason: str, as_json: bool, settings: Settings) -> None:
    """Start an experiment with the `auto` requests. Servers that share the data folder follow within seconds."""
    from classifier.registry.acceptance import accepted_artefact
    from classifier.registry.artefact import default_artefact
    from classifier.registry.registry import ArtefactRegistry
    from gateway.operations.experiment_plan import plan_experiment
    from quality.rollout.experiments import Experiments
    from tiers.catalog.load import load_catalog

    catalog, registry = load_catalog(settings.catalog), ArtefactRegistry(settings.registry_path)
    registry.seed(default_artefact())
    a, b = _arm(options.arm_a), _arm(options.arm_b)
    try:
        margins: dict[Measure, float | None] = {
            "cost": options.cost_margin,
            "ttft": options.ttft_margin,
            "e2e": options.e2e_margin,
        }
        stated = {
            measure: None if math.isinf(margin) else margin for measure, margin in margins.items() if margin is not None
        }
        plan = plan_experiment(
            settings,
            catalog,
            stated,
            share=options.share,
            a=a,
            b=b,
            by=options.by,
            level=options.level,
            most_probes=options.most_probes,
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
@with_settings(*STORED)
@json_option
def stop(experiment_id: str, reason: str, as_json: bool, settings: Settings) -> None:
    """End an experiment without a verdict."""
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.experiments import Experiments

    registry = ArtefactRegistry(settings.registry_path)
    stopped = with_database(
        settings, lambda engine: Experiments(engine, registry).stop(experiment_id, actor="cli", reason=reason)
    )
    if not stopped:
        raise click.ClickException(f"no experiment {experiment_id} is running")
    echo_answer(as_json, {"stopped": True}, f"experiment {experiment_id} has ended")


def _arm(text: str) -> "Arm":
    from classifier.policy.experiment_split import Arm

    kind, _, value = text.partition(":")
    if kind == "tier" and value.isdigit():
        return Arm(tier=int(value))
    if kind == "version" and value:
        return Arm(version=value)
    raise click.UsageError(f"{text!r} is not an arm; write tier:N or version:V")
