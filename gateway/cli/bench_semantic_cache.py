"""`aio bench semantic-cache`: what a cache that answers from near prompts would get right and wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.cli.classifier_versions import version_option
from gateway.cli.options import data_dir_option, echo_json, json_option, settings_from, table

if TYPE_CHECKING:
    from gateway.cache.semantic_study import SemanticStudy
    from quality.estimates import Share

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--pairs", type=_FILE, required=True, help='JSON lines with "id", "a" and "b": prompts that are alike.')
@click.option("--different", metavar="ID", multiple=True, help="A pair that wants two answers; may be repeated.")
@click.option("--prompts", type=_FILE, help='JSON lines with "id" and "prompt", none of which stands for another.')
@version_option
@data_dir_option
@json_option
def semantic_cache(
    pairs: Path, different: tuple[str, ...], prompts: Path | None, version: str | None, as_json: bool, **given: Any
) -> None:
    """Count right and false hits by threshold of the classifier's cosine, with guards and without; 95% intervals."""
    from classifier.artefact import load_artefact
    from classifier.prompt_file import read_prompts
    from gateway.cache.semantic_study import read_pairs, semantic_study
    from gateway.cli.classifier_versions import folder_of

    try:
        found = read_pairs(pairs)
    except msgspec.MsgspecError as error:
        raise click.BadParameter(str(error), param_hint="--pairs") from error
    if unknown := set(different) - {pair.id for pair in found}:
        raise click.BadParameter(f"no pair of unequal prompts is {sorted(unknown)[0]!r}", param_hint="--different")
    others = [] if prompts is None else [line.prompt for line in read_prompts(prompts)]
    model = load_artefact(folder_of(settings_from(**given).registry_path, version))
    study = semantic_study(model, found, different, others)
    if as_json:
        echo_json(study)
    else:
        click.echo(_shown(study))


def _shown(study: "SemanticStudy") -> str:
    head = ["cosine", "same", "same, guarded", "different", "different, guarded", "others", "others, guarded"]
    rows = []
    for row in study.thresholds:
        shares = [row.same, row.same_guarded, row.different, row.different_guarded, row.others, row.others_guarded]
        rows.append([f"{row.threshold:g}", *map(_cell, shares)])
    refusals = [[row.guard, _cell(row.same), _cell(row.different)] for row in study.guards]
    guards = table(["guard alone refuses", "same", "different"], refusals)
    return f"hits by {study.classifier}\n{table(head, rows)}\n\n{guards}"


def _cell(share: "Share") -> str:
    if not share.total:
        return "-"
    return f"{share.count}/{share.total} ({share.low:.1%}-{share.high:.1%})"
