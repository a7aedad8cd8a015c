"""`python -m benchmarks pays`: how far the verdict on routing can be trusted, on recorded outcomes."""

from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.classifier.pays import Found, read_ladder, verdicts
from quality.estimates.verified_sample import Share


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--ladder", required=True, help="Models in the file's outcomes, cheapest first: A,B,C.")
@click.option("--prices", required=True, help="Of an answer of each: 1,5,30.")
@click.option("--gain", "gains", type=float, multiple=True, help="Points over the best fixed tier.  [0, 1, 2, 4]")
@click.option("--worth", type=click.FloatRange(0, 1, min_open=True), default=0.01, show_default=True)
@click.option("--probes", type=click.IntRange(min=1), default=10_000, show_default=True, help="Of a run.")
@click.option("--runs", type=click.IntRange(min=1), default=400, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pays(
    file: Path, ladder: str, prices: str, gains: tuple[float, ...], worth: float, probes: int, runs: int, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """How often the verdict on routing errs on rows of FILE (JSON lines, as customers.jsonl.gz), at every probe."""
    try:
        paid = np.array([float(price) for price in prices.split(",")])
        if len(paid) != len(ladder.split(",")) or (np.diff(paid) < 0).any() or (paid <= 0).any():
            raise ValueError(f"prices {prices}: one above 0 for each of the ladder, cheapest first")
        no_worse = read_ladder(file, ladder.split(","))
        wanted = gains or (0.0, 1.0, 2.0, 4.0)
        found = verdicts(no_worse, paid, wanted, worth=worth, probes=probes, runs=runs, seed=seed)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    click.echo(f"{len(no_worse)} rows; {runs} runs of {probes} probes, looked at after every probe")
    for one in found:
        click.echo(_line(one))


def _line(one: Found) -> str:
    probes = "–" if one.probes is None else f"{one.probes:,.0f}"
    said = f"pays {_share(one.pays)}   does not pay {_share(one.pays_not)}   probes {probes}"
    return f"{one.router:<12} gain {one.gain:+6.2f}   {said}"


def _share(share: Share) -> str:
    return f"{share.count / share.total:6.1%} [{share.low:.1%}, {share.high:.1%}]"
