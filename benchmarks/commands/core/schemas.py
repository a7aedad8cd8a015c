"""`python -m benchmarks schemas FOLDER`: which JSON schemas compile, and whether their answers are valid."""

from collections import Counter
from pathlib import Path

import click

from gateway.operations.cli.options import json_option


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--answers", default=3, show_default=True, help="Random answers per schema.")
@click.option("--tokens", default=300, show_default=True, help="Tokens of an answer at most.")
@click.option("--seed", default=0, show_default=True)
@click.option("--every", default=1, show_default=True, help="Take every n-th schema.")
@json_option
def schemas(folder: Path, answers: int, tokens: int, seed: int, every: int, as_json: bool) -> None:
    """Compile each schema of FOLDER (`*.json` files, or `*.jsonl` rows with `json_schema`) and draw random answers.

    Counts: compiled, refused by reason; answers finished valid, finished invalid, failed on the way, unfinished after
    their tokens. JSONSchemaBench has such a folder.
    """
    import msgspec

    from benchmarks.core.schemas import SchemaCompiler, schemas_in, try_schema

    compiler, rows = SchemaCompiler.of_laptop(), []
    for number, (name, schema) in enumerate(schemas_in(folder)):
        if number % every:
            continue
        row = try_schema(compiler, name, schema, answers=answers, tokens=tokens, seed=seed)
        rows.append(row)
        for answer in () if as_json else row.answers:
            if answer.outcome in ("invalid", "failed"):
                click.echo(f"{name}: {answer.outcome}: {answer.detail}: {answer.text[-100:]!r}")
    compiler.close()
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    refused = Counter(row.reason for row in rows if row.refused)
    outcomes = Counter(answer.outcome for row in rows for answer in row.answers)
    for reason, count in refused.most_common():
        click.echo(f"{count} refused: {reason}")
    click.echo(f"schemas: {len(rows)}, compiled {len(rows) - refused.total()}, refused {refused.total()}")
    click.echo(
        f"answers: {outcomes['valid']} finished valid, {outcomes['invalid']} finished invalid, "
        f"{outcomes['failed']} failed in the answer, {outcomes['unfinished']} unfinished"
    )
