"""`aio classifier complexity`: train the complexity model on labelled prompts, or measure one on them."""

from pathlib import Path

import click

from gateway.operations.cli.options import echo_answer, echo_json, json_option, table


@click.command()
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--train", "target", type=click.Path(dir_okay=False, path_type=Path), help="Train on ROWS and write the model here."
)
@click.option(
    "--model",
    "model_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Model to measure.  [the packaged one]",
)
@click.option("--seed", default=0, show_default=True)
@json_option
def complexity(rows: Path, target: Path | None, model_file: Path | None, seed: int, as_json: bool) -> None:
    """Measure the complexity model on ROWS, or train one on them and measure it by cross-validation.

    A line of ROWS is {"prompt": text, "classes": [1 to 4 of each rater], "range": [least, most accepted tier]};
    the range may be left out. Or it is {"turns": [{"role": ..., "content": ...}, ...], "lo": tier, "hi": tier}: then
    the tiers for the last turn are measured, read in its conversation and alone.
    """
    from classifier.complexity.model import load_complexity, shipped_complexity
    from classifier.features.routing_input import routing_input_of_text
    from classifier.registry.artefact import default_artefact, load_artefact
    from classifier.training.fitting.complexity import fit_complexity, out_of_fold, predicted
    from classifier.training.metrics.complexity_report import measured, read_labelled
    from classifier.training.metrics.conversation_report import (
        holds_conversations,
        measured_conversations,
        read_conversations,
    )

    if holds_conversations(rows):
        if target is not None:
            raise click.UsageError("--train takes prompts with classes, not conversations.")
        model = shipped_complexity() if model_file is None else load_complexity(model_file)
        conversations = measured_conversations(read_conversations(rows), model, load_artefact(default_artefact()))
        if as_json:
            echo_json(conversations)
        else:
            head = ["measure", "in context", "last turn alone", "length", "one tier for all"]
            click.echo(table(head, conversations.lines()))
        return
    labelled = read_labelled(rows)
    outcome_model = load_artefact(default_artefact())
    if target is not None:
        fit_complexity(labelled, outcome_model, seed=seed).save(target)
        found = out_of_fold(labelled, outcome_model, seed=seed)
    else:
        model = shipped_complexity() if model_file is None else load_complexity(model_file)
        found = predicted(model, [routing_input_of_text(row.prompt) for row in labelled], outcome_model)
    report = measured(labelled, found)
    echo_answer(as_json, report, table(["measure", "model", "length alone"], [list(line) for line in report.lines()]))
