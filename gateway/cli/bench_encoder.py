"""`aio bench encoder`: what a checkpoint costs as the classifier's encoder on this machine."""

from pathlib import Path

import click

from gateway.cli.options import echo_json, json_option, table


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--tokens", multiple=True, type=click.IntRange(min=1), default=(64, 128), show_default=True)
@click.option("--repeats", default=100, show_default=True)
@click.option("--threads", default=1, show_default=True)
@json_option
def encoder(checkpoint: Path, tokens: tuple[int, ...], repeats: int, threads: int, as_json: bool) -> None:
    """Time CHECKPOINT (a Hugging Face folder) on prompts of so many tokens, one at a time and in batches."""
    from classifier.training.encoder_speed import encoder_speed

    found = encoder_speed(checkpoint, tokens=tokens, repeats=repeats, threads=threads)
    if as_json:
        echo_json(found)
        return
    click.echo(
        f"{found.architecture}, {found.parameters / 1e6:.1f} M parameters, {found.hidden} wide, "
        f"{found.threads} threads, {'packed' if found.packs else 'batches of equal length'}"
    )
    rates = dict(found.per_second)
    rows = [
        [str(n), f"{median:.2f}", f"{p99:.2f}", f"{cpu:.2f}", f"{rates[n]:.0f}"]
        for n, median, p99, cpu in found.milliseconds
    ]
    click.echo(table(["tokens", "ms, median", "ms, p99", "CPU ms", "prompts a CPU second in batches"], rows))
