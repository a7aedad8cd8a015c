"""`python -m benchmarks cascade`: what agreement of cheap answers is worth on recorded final answers."""

import json
from pathlib import Path

import click
import msgspec

from benchmarks.cascade.figures import after_labels, without_labels
from benchmarks.cascade.recorded import COMPARATOR, read_answers
from gateway.cli.options import FILE


def _listed(_context: click.Context, parameter: click.Parameter, value: str | None) -> list[float]:
    try:
        return [float(number) for number in (value or "").split(",") if number.strip()]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers", param=parameter) from None


@click.command()
@click.argument("file", type=FILE)
@click.option("--ladder", required=True, help="Two to eight model ids of the file, parted by commas.")
@click.option("--prices", required=True, callback=_listed, help="Of an answer of each, on any scale, as 1,5,30.")
@click.option("--labels", callback=_listed, help="Numbers of verified rows by whose counts it is decided, as 100,300.")
@click.option("--source", help="Only rows of this source.")
@click.option("--domain", help="Only rows of this domain.")
@click.option("--target", type=click.FloatRange(0, 1), default=0.9, help="Quality target, tau.")
@click.option("--noise", type=click.FloatRange(0, 0.45), default=0, help="The judge's errors.")
@click.option("--seed", default=0, help="Of the order of prompts, labels and the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cascade(
    file: Path,
    ladder: str,
    prices: list[float],
    labels: list[float],
    source: str | None,
    domain: str | None,
    target: float,
    noise: float,
    seed: int,
    as_json: bool,
) -> None:
    """The product's agreement stage on the recorded final answers in FILE (JSON lines): cheap tiers answer at once, and
    the strongest one where they differ."""
    names = [name.strip() for name in ladder.split(",") if name.strip()]
    if not 2 <= len(names) <= 8 or len(names) != len(prices) or min(prices) <= 0:
        raise click.ClickException(f"{len(names)} models and prices {prices}; give two to eight, and a price for each.")
    pairs = sorted(zip(prices, names, strict=True), key=lambda pair: pair[0])
    prices, names = [price for price, _ in pairs], [name for _, name in pairs]
    try:
        rows = read_answers(file, names, source, domain)
        unlabelled = msgspec.structs.asdict(without_labels(rows, prices, target, seed))
        after = {int(n): after_labels(rows, prices, target, int(n), seed, noise) for n in labels}
    except (ValueError, KeyError, OSError) as error:
        raise click.ClickException(str(error)) from error
    labelled = {n: None if worth is None else msgspec.structs.asdict(worth) for n, worth in after.items()}
    said = {
        "rows": len({row.prompt for row in rows}),
        "sources": sorted({row.source for row in rows}),
        "ladder": names,
        "prices": prices,
        "target": target,
        "noise": noise,
        "comparator": COMPARATOR,
    }
    if as_json:
        click.echo(json.dumps(said | unlabelled | ({"labels": labelled} if labelled else {})))
        return
    click.echo(f"{said['rows']} prompts; {', '.join(names)} at {prices}; quality target {target}; {COMPARATOR}")
    for name, figures in [("no labels", unlabelled), *((f"{n} labels", figures) for n, figures in labelled.items())]:
        click.echo(f"{name:<12} {_line(figures) if figures else 'leave no rows to measure'}")


def _line(figures: dict[str, float]) -> str:
    return (
        f"cost {figures['cost']:.1%}, quality {figures['quality']:.1%}, gain {figures['gain']:+.2f} "
        f"[{figures['gain_low']:+.2f}, {figures['gain_high']:+.2f}], shuffled {figures['shuffled_gain']:+.2f}, "
        f"over domains {figures['gain_over_domains']:+.2f}, asked {figures['asked']:.0%}, "
        f"agreed {figures['agreed']:.0%}, utility {figures['utility']:+.2f}, more than without {figures['more']:+.2f} "
        f"[{figures['more_low']:+.2f}, {figures['more_high']:+.2f}]; "
        f"cost at 98% {figures['cost_at_98']:.1%}, of a lottery {figures['lottery_cost_at_98']:.1%}"
    )
