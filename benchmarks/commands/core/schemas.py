"""`python -m benchmarks schemas FOLDER`: which JSON schemas compile, and whether their answers are valid."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import json_option

if TYPE_CHECKING:
    from benchmarks.core.schemas import SchemaCompiler


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--answers", default=3, show_default=True, help="Random answers per schema.")
@click.option("--tokens", default=300, show_default=True, help="Tokens of an answer at most.")
@click.option("--seed", default=0, show_default=True)
@click.option("--every", default=1, show_default=True, help="Take every n-th schema.")
@click.option("--suite", is_flag=True, help="FOLDER is a copy of the JSON-Schema-Test-Suite.")
@json_option
def schemas(folder: Path, answers: int, tokens: int, seed: int, every: int, suite: bool, as_json: bool) -> None:
    """Compile each schema of FOLDER (`*.json` files, or `*.jsonl` rows with `json_schema`) and draw random answers.

    Counts: compiled, refused by reason; answers finished valid, finished invalid, failed on the way, unfinished after
    their tokens. JSONSchemaBench has such a folder. With --suite the suite's own instances are tried as answers.
    """
    import msgspec

    from benchmarks.core.schemas import SchemaCompiler, schemas_in, try_schema

    compiler, rows = SchemaCompiler.of_laptop(), []
    if suite:
        _try_suite(compiler, folder, as_json)
        return
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


def _try_suite(compiler: "SchemaCompiler", folder: Path, as_json: bool) -> None:
    import msgspec

    from benchmarks.core.schema_suite import bench_suite

    groups = list(bench_suite(compiler, folder))
    compiler.close()
    if as_json:
        click.echo(msgspec.json.encode(groups))
        return
    for group in groups:
        for description, text in group.invalid_accepted:
            click.echo(f"{group.name}: accepted, although invalid ({description}): {text}")
    for kind, some in (
        ("required", [group for group in groups if "/optional/" not in group.name]),
        ("optional", [group for group in groups if "/optional/" in group.name]),
    ):
        refused = sum(bool(group.refused) for group in some)
        click.echo(
            f"{kind} groups: {len(some)}, compiled {len(some) - refused}, refused {refused}; instances: "
            f"{sum(len(group.invalid_accepted) for group in some)} of {sum(group.invalid for group in some)} invalid "
            f"accepted, {sum(group.valid_accepted for group in some)} of {sum(group.valid for group in some)} valid"
        )
