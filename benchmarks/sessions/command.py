"""`python -m benchmarks sessions`: the product's rules of sessions on recorded runs."""

from pathlib import Path

import click
import msgspec

from benchmarks.sessions.ends import end_rates, learn
from benchmarks.sessions.figures import Price, Rule, measure
from benchmarks.sessions.recorded import read_runs
from gateway.cli.options import FILE

BOUND = (
    "An upper bound: the strong model's run began with the task on untouched files, and a share {share:.0%} of users "
    "asks again after a bad end."
)


def _prices(_context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Price]:
    prices: dict[str, Price] = {}
    for part in (value or "").split(","):
        if not part.strip():
            continue
        model, _, price = part.strip().rpartition("=")
        try:
            amounts = [float(amount) for amount in price.split(":")]
        except ValueError:
            amounts = []
        if not model or len(amounts) not in (1, 2) or min(amounts) < 0 or max(amounts) <= 0:
            raise click.BadParameter(f"{part!r} is not MODEL=IN:OUT or MODEL=STEP in US dollars", param=parameter)
        prices[model] = Price(*amounts) if len(amounts) == 2 else Price(step=amounts[0])
    return prices


@click.command()
@click.argument("file", type=FILE)
@click.option("--cheap", help="Model that runs each task.")
@click.option("--strong", help="Model that is asked where the rule says so.")
@click.option("--rule", type=click.Choice(["bad-end", "trouble", "steps"]), default="bad-end")
@click.option(
    "--asks-again", type=click.FloatRange(0, 1), default=1.0, help="Share of users that ask again after a bad end."
)
@click.option("--steps", type=click.IntRange(min=1), default=20, help="Of the rule steps.")
@click.option(
    "--prices",
    callback=_prices,
    help="Where no dollars are recorded: MODEL=IN:OUT per million tokens, or MODEL=USD of a step, parted by commas.",
)
@click.option("--ends", is_flag=True, help="Instead: how often each kind of end failed, and what signs in mid-run say.")
@click.option("--seed", default=0)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sessions(
    file: Path, cheap: str | None, strong: str | None, rule: Rule, asks_again: float, steps: int,
    prices: dict[str, Price], ends: bool, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """The product's rules of sessions on the recorded runs in FILE (JSON lines)."""
    if not (ends or (cheap and strong)):
        raise click.UsageError("give --cheap and --strong, or --ends")
    try:
        if ends:
            _ends(file, seed, as_json)
            return
        models = cheap or "", strong or ""
        figures = measure(read_runs(file), *models, rule, prices=prices, asks_again=asks_again, steps=steps, seed=seed)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    bound = BOUND.format(share=asks_again) if rule == "bad-end" else BOUND.partition(", and")[0] + "."
    if as_json:
        said = {"cheap": cheap, "strong": strong, "rule": rule, "asks_again": asks_again, "bound": bound}
        click.echo(msgspec.json.encode(msgspec.structs.asdict(figures) | said))
        return
    click.echo(
        f"{figures.tasks} tasks, {figures.moved:.0%} moved: reward {figures.reward:.1%}, cost {figures.cost:.1%} of "
        f"{strong}'s; gain {figures.gain:+.2f} [{figures.gain_low:+.2f}, {figures.gain_high:+.2f}] points over a "
        f"lottery of equal cost, shuffled {figures.shuffled_gain:+.2f}. {bound}"
    )


def _ends(file: Path, seed: int, as_json: bool) -> None:
    runs = read_runs(file)
    rates, rows = end_rates(runs), learn(runs, seed)
    if as_json:
        click.echo(msgspec.json.encode({"ends": rates, "signs": rows}))
        return
    for name, rate in rates.items():
        click.echo(f"end {name:<24} {rate.runs:6} runs, {rate.failed:4.0%} failed")
    for model, row in rows.items():
        used = "used" if row.is_active else "not used"
        click.echo(
            f"{model:<28} {row.labels:6} labels, {row.bad:4.0%} bad, signs {row.gain:+.4f} nats over steps alone "
            f"(standard error {row.standard_error:.4f}): {used}"
        )
