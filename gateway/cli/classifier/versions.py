"""`aio classifier list`, `promote`, `rollback`, `canary`, `predict` and `explain`: the versions of the registry, and
what they predict.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFile, NewFile, Share
from gateway.base.settings import Settings
from gateway.cli.options import (
    FILE,
    LEDGER,
    STORED,
    audit_reason_option,
    echo_answer,
    json_option,
    table,
    with_database,
    with_settings,
)
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from classifier.prompt_predictions import Explanation
    from classifier.registry.registry import ArtefactRegistry
    from quality.comparison.decision_gain import Serving

version_option = click.option(
    "--version",
    metavar="VERSION|FOLDER",
    help="A version of the registry, or an artefact's folder.  [the serving version]",
)


def folder_of(root: Path, version: str | None) -> Path:
    """Return the folder of a version of the registry `root`, of an artefact anywhere, or (None) of the serving version.

    Raises `ArtefactError` if there is none.
    """
    from classifier.registry.artefact import default_artefact
    from classifier.registry.registry import ArtefactRegistry

    registry = ArtefactRegistry(root)
    if version is None:
        return registry.current_or(default_artefact())
    if "/" in version or Path(version, "manifest.json").is_file():
        return Path(version)
    if version == default_artefact().name and version not in registry.versions():
        return default_artefact()
    return registry.folder(version)


@click.command("list")
@with_settings("data_dir")
@json_option
def list_versions(as_json: bool, settings: Settings) -> None:
    """Show every version: which serves, which is on trial, and where each comes from."""
    from classifier.registry.version_list import listed_versions

    versions = listed_versions(settings.registry_path)
    rows = [
        [
            version.version,
            version.status,
            version.parent or "-",
            version.encoder,
            f"{version.rows:,}",
            f"{version.megabytes:.1f}",
            version.problem,
        ]
        for version in versions
    ]
    shown = table(["version", "status", "parent", "encoder", "rows", "MB", ""], rows)
    line = next((version.line for version in versions if version.status == "current"), [])
    echo_answer(as_json, versions, f"{shown}\n\nline of the current version: {' <- '.join(line)}")


@click.command()
@click.argument("version", metavar="VERSION|FOLDER")
@audit_reason_option
@with_settings(*LEDGER)
@json_option
def promote(version: str, reason: str, as_json: bool, settings: Settings) -> None:
    """Check VERSION as a server does, and let it serve. Running servers follow."""
    from quality.rollout.operator_commands import promote as order

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
@audit_reason_option
@with_settings(*STORED)
@json_option
def rollback(reason: str, as_json: bool, settings: Settings) -> None:
    """Restore the previous version; a second rollback changes nothing."""
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.operator_commands import rollback as order

    registry = ArtefactRegistry(settings.registry_path)
    current = with_database(settings, lambda engine: order(engine, registry, actor="cli", reason=reason))
    echo_answer(as_json, {"current": current, "previous": registry.previous()}, f"classifier {current} serves again")


@click.command()
@click.argument("version", metavar="VERSION|FOLDER", required=False)
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="Share of the requests that it decides."
)
@click.option("--stop", is_flag=True, help="End the trial.")
@audit_reason_option
@with_settings(*LEDGER)
@json_option
def canary(
    version: str | None, share: float | None, stop: bool, reason: str, as_json: bool, settings: Settings
) -> None:
    """Put VERSION on trial for a share of the requests, or show which version is on trial."""
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.operator_commands import start_canary, stop_canary

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


def _accepted(settings: Settings, version: str) -> "tuple[ArtefactRegistry, str, list[list[float]], Serving]":
    """Return the registry with `version` in it, checked as a server checks it; an empty one first gets the packaged
    version. Also returns the assumed strengths of the catalogue's tiers, and by what utility it serves.

    Raises `ArtefactError` with the reason of a refusal.
    """
    from classifier.registry.acceptance import accepted_artefact
    from classifier.registry.artefact import default_artefact
    from classifier.registry.registry import ArtefactRegistry
    from gateway.inference.class_prior import tier_prior
    from gateway.inference.routing_knobs import objective_of
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


class PredictOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio classifier predict`."""

    source: ExistingFile = msgspec.field(name="input")
    """JSON lines with "id" and "prompt"."""
    target: NewFile = msgspec.field(name="output")
    """File of JSON lines to write."""
    quality: Share | None = None
    """Quality target that `tier` is chosen for. [0.7, or the version's own]"""
    catalog: Annotated[str, Meta(title="NAME|FILE")] | None = None
    """Decide for the tiers of this catalogue."""
    processes: Count | None = None
    """Number of parallel processes. [one per core]"""


@click.command()
@options_of(PredictOptions)
@version_option
@with_settings("data_dir")
@json_option
def predict(options: PredictOptions, version: str | None, as_json: bool, settings: Settings) -> None:
    """Write the classes, p_ok, tier and novelty of every prompt of a file, in the file's order.

    Without --catalog it decides by complexity class, for tiers like 3B, 8B, 70B and 70B with chain of thought.
    The output is written completely or not at all.
    """
    from classifier.prompt_predictions import predict_lines, read_prompts
    from gateway.inference.class_prior import class_prior
    from inference_core.io.files import atomic_file
    from tiers.catalog.load import load_catalog

    folder = folder_of(settings.registry_path, version)
    catalog = None if options.catalog is None else load_catalog(options.catalog)
    began, written = time.perf_counter(), 0
    with atomic_file(options.target) as file:
        for count, lines in predict_lines(
            folder,
            read_prompts(options.source),
            quality_target=options.quality,
            processes=options.processes,
            catalogue_fingerprint="" if catalog is None else catalog.fingerprint,
            prior=None if catalog is None else class_prior(catalog, settings.data_path),
        ):
            file.write(lines)
            written += count
    seconds = time.perf_counter() - began
    rate = f"{written / seconds:,.0f} a second" if seconds else "at once"
    echo_answer(
        as_json,
        {"version": folder.name, "rows": written, "seconds": round(seconds, 3), "output": str(options.target)},
        f"{written:,} prompts by {folder.name} in {seconds:.2f} s ({rate}) -> {options.target}",
    )


@click.command()
@click.argument("prompt", required=False)
@click.option("--input", "source", type=FILE, help="JSON lines of prompts.")
@version_option
@with_settings("data_dir")
@json_option
def explain(prompt: str | None, source: Path | None, version: str | None, as_json: bool, settings: Settings) -> None:
    """Explain the prediction for PROMPT, or for the prompts of a file: features, class and tier."""
    from classifier.prompt_predictions import PromptRow, explained, read_prompts
    from classifier.registry.acceptance import accepted_artefact

    if (prompt is None) == (source is None):
        raise click.UsageError("give either a PROMPT or --input FILE")
    model = accepted_artefact(folder_of(settings.registry_path, version))
    rows = read_prompts(source) if source is not None else [PromptRow("prompt", prompt or "")]
    explanations = [explained(model, row) for row in rows]
    texts = (_text(explanation, named=source is not None) for explanation in explanations)
    echo_answer(as_json, explanations if source is not None else explanations[0], "\n\n".join(texts))


def _text(explanation: "Explanation", *, named: bool) -> str:
    from classifier.complexity.classes import Complexity

    tiers = [[str(k), f"{ok:.3f}"] for k, ok in enumerate(explanation.p_ok, start=1)]
    lines = [
        *([f"{explanation.id}"] if named else []),
        f"tier {explanation.tier} for a quality target of {explanation.quality_target:.3f}: {explanation.reason}",
        "",
        table(["tier", "P(good enough)"], tiers),
        "",
        "class: " + ", ".join(f"{c.name} {p:.2f}" for c, p in zip(Complexity, explanation.classes, strict=True)),
        f"classifier {explanation.version} ({explanation.kind}); unfamiliar {explanation.novelty:.2f} "
        "(1: no labels of such prompts)",
        "features: " + (", ".join(f"{name} {value:.3g}" for name, value in explanation.features.items()) or "none"),
    ]
    if explanation.looked_at < explanation.characters:
        lines.append(f"it looks at {explanation.looked_at:,} of {explanation.characters:,} characters")
    if explanation.router_instructions:
        lines.append(
            "skipped, since they ask for a tier:  " + "; ".join(repr(a) for a in explanation.router_instructions)
        )
    return "\n".join(lines)
