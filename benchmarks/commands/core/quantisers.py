"""`python -m benchmarks quantisers`: what each way of quantising loses on synthetic layers at full precision."""

import click

from gateway.operations.cli.options import echo_json, json_option, table


@click.command()
@click.option("--outputs", type=click.IntRange(min=8), default=512, show_default=True)
@click.option("--inputs", type=click.IntRange(min=32), default=512, show_default=True)
@click.option(
    "--tokens", type=click.IntRange(min=1), default=2048, show_default=True, help="To calibrate, and to test."
)
@click.option("--group-size", type=click.Choice(["32", "64", "128"]), default="64", show_default=True)
@click.option("--seed", default=0, show_default=True)
@json_option
def quantisers(outputs: int, inputs: int, tokens: int, group_size: str, seed: int, as_json: bool) -> None:
    """Relative error of the outputs of random layers, per method, and its share of plain rounding's.

    `random` has independent inputs, `outliers` correlated ones of which four are thirty times as large.
    """
    from benchmarks.core.quantisers import bench_quantisers

    if inputs % int(group_size):
        raise click.UsageError(f"--inputs {inputs} is no multiple of --group-size {group_size}")
    rows = list(bench_quantisers(outputs=outputs, inputs=inputs, tokens=tokens, group_size=int(group_size), seed=seed))
    if as_json:
        echo_json(rows)
        return
    shown = [
        [row["layer"], row["weights"], row["method"], f"{row['error']:.6f}",
         "" if row["of_plain"] is None else f"{row['of_plain']:.2f}"]
        for row in rows
    ]  # fmt: skip
    click.echo(table(["layer", "weights", "method", "relative error", "of plain rounding's"], shown))
