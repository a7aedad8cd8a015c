"""`aio bench encoder`: what a slow encoder of the classifier costs on this machine."""

from pathlib import Path

import click

from gateway.cli.encoder_choice import encoder_choice
from gateway.cli.options import catalog_option, echo_json, json_option, settings_from, table


@click.command()
@click.argument("encoder", metavar="PATH|hidden[:MODEL[:LAYER]]")
@click.option("--tokens", multiple=True, type=click.IntRange(min=1), default=(64, 128), show_default=True)
@click.option("--repeats", default=100, show_default=True)
@click.option("--threads", default=1, show_default=True)
@catalog_option
@json_option
def encoder(
    encoder: str, tokens: tuple[int, ...], repeats: int, threads: int, catalog: str | None, as_json: bool
) -> None:
    """Time a Hugging Face checkpoint, or the hidden states of a model, on prompts of so many tokens.

    A checkpoint is run one prompt at a time and in batches; a hidden state is compared with the prefill of its prompt.
    """
    chosen = encoder_choice(encoder, settings_from(catalog=catalog))
    if isinstance(chosen, Path):
        _checkpoint(chosen, tokens, repeats, threads, as_json)
        return
    from classifier.training.hidden_train import COMPUTE
    from classifier.training.state_speed import state_costs

    costs = state_costs(chosen.model, chosen.layer, COMPUTE, tokens=tokens, repeats=repeats, threads=threads)
    if as_json:
        echo_json(costs)
        return
    click.echo(f"layer {chosen.layer} of {chosen.model}, {COMPUTE}, {threads} threads")
    rows = [
        [
            str(one.tokens),
            f"{one.milliseconds:.1f}",
            f"{one.p99_milliseconds:.1f}",
            f"{one.cpu_ms:.1f}",
            f"{one.prefill_cpu_ms:.1f}",
            f"{one.wasted:.0%}",
            f"{one.worth_keeping_from:.0%}",
        ]
        for one in costs
    ]
    head = ["tokens", "ms, median", "ms, p99", "CPU ms", "CPU ms of a prefill", "wasted", "keep from"]
    click.echo(table(head, rows))


def _checkpoint(folder: Path, tokens: tuple[int, ...], repeats: int, threads: int, as_json: bool) -> None:
    from classifier.training.encoder_speed import encoder_speed

    found = encoder_speed(folder, tokens=tokens, repeats=repeats, threads=threads)
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
