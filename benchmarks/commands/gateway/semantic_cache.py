"""`python -m benchmarks semantic-cache`: right and wrong answers of a cache of near prompts, and what it costs."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.operations.cli.classifier.versions import version_option
from gateway.operations.cli.options import data_dir_option, echo_json, json_option, settings_from, table

if TYPE_CHECKING:
    from benchmarks.gateway.lookup_cost import LookupCost
    from benchmarks.gateway.semantic_study import SemanticStudy
    from quality.estimates.upgrade_rate import Share

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--pairs", type=_FILE, required=True, help='JSON lines with "id", "a" and "b": prompts that are alike.')
@click.option("--different", metavar="ID", multiple=True, help="A pair that wants two answers; may be repeated.")
@click.option("--prompts", type=_FILE, help='JSON lines with "id" and "prompt", none of which stands for another.')
@click.option("--threshold", type=click.FloatRange(0, 1), help="Of the edits of prompts, if not the cache's own.")
@version_option
@data_dir_option
@json_option
def semantic_cache(
    pairs: Path,
    different: tuple[str, ...],
    prompts: Path | None,
    threshold: float | None,
    version: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Count right and false hits by threshold of the classifier's cosine, with the guard and without; 95% intervals.

    Of --prompts also: hits of their edited forms, and the time of a lookup.
    """
    from benchmarks.gateway.lookup_cost import lookup_cost
    from benchmarks.gateway.semantic_study import read_pairs, semantic_study
    from classifier.prediction.prompt_file import read_prompts
    from classifier.registry.artefact import load_artefact
    from gateway.inference.catalogue.class_prior import class_prior
    from gateway.inference.routing.active_classifier import ActiveClassifier
    from gateway.inference.routing.router import RoutingService
    from gateway.operations.cli.classifier.versions import folder_of
    from tiers.catalog.load import load_catalog

    try:
        found = read_pairs(pairs)
    except msgspec.MsgspecError as error:
        raise click.BadParameter(str(error), param_hint="--pairs") from error
    if unknown := set(different) - {pair.id for pair in found}:
        raise click.BadParameter(f"no pair of unequal prompts is {sorted(unknown)[0]!r}", param_hint="--different")
    others = [] if prompts is None else [line.prompt for line in read_prompts(prompts)]
    settings = settings_from(**given)
    model = load_artefact(folder_of(settings.registry_path, version))
    study = semantic_study(model, found, different, others, threshold=threshold)
    cost = None
    if others:
        catalog = load_catalog(settings.catalog)
        classifier = ActiveClassifier(
            settings.registry_path, catalog.fingerprint, prior=class_prior(catalog, settings.data_path)
        )
        classifier.load()
        cost = asyncio.run(lookup_cost(RoutingService(catalog, {}, classifier, None), others))
    if as_json:
        echo_json({"study": study, "lookup": cost})
    else:
        click.echo(_shown(study, cost))


def _shown(study: "SemanticStudy", cost: "LookupCost | None") -> str:
    head = ["cosine", "same", "same, guarded", "different", "different, guarded", "others", "others, guarded"]
    rows = []
    for row in study.thresholds:
        shares = [row.same, row.same_guarded, row.different, row.different_guarded, row.others, row.others_guarded]
        rows.append([f"{row.threshold:g}", *map(_cell, shares)])
    shown = f"hits by {study.classifier}\n{table(head, rows)}"
    if study.edits:
        edits = [
            [one.edit, "yes" if one.harmless else "no", _cell(one.near), _cell(one.guarded)] for one in study.edits
        ]
        head = ["edit", "harmless", f"cosine {study.threshold:g}", "guarded"]
        shown += f"\n\nhits of edited prompts\n{table(head, edits)}"
    if cost is not None:
        shown += f"\n\na lookup among {cost.entries:,}: p50 {cost.p50_us:g} us, p99 {cost.p99_us:g} us"
    return shown


def _cell(share: "Share") -> str:
    if not share.total:
        return "-"
    return f"{share.count}/{share.total} ({share.low:.1%}-{share.high:.1%})"
