"""`python -m tests.classifier.complexity.figures [--json FILE] [--before FILE]`: what the shipped classifier does with
the held-out sets, as tables in Markdown: the figures next to simple controls, the tiers in use, and the raters'
agreement."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tests.classifier.complexity.decided_tiers import Figure, by_length, gateway_tiers_of, shares_of
from tests.classifier.complexity.held_out import SETS, Rating, Row, read, second_ratings
from tests.classifier.complexity.measures import every_figure


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far two raters' classes agree: Cohen's kappa, weighted by the distance, and shares of rows. `ranges_meet`:
    the accepted ranges overlap or adjoin."""

    set: str
    n: int
    kappa: float
    same: float
    within_one: float
    ranges_meet: float


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """`tiers`: the share of each tier among the rows of a set, and `length`, by the length alone."""

    figures: list[Figure]
    tiers: dict[str, list[float]]
    length: dict[str, list[float]]
    agreement: list[Agreement]


def findings() -> Findings:
    """Measure the shipped classifier on every set."""
    rows = {name: read(name) for name in SETS}
    used = {name: gateway_tiers_of([row.messages for row in own]) for name, own in rows.items()}
    lengths = {name: by_length(name, own, [row.messages[-1]["content"] for row in own]) for name, own in rows.items()}
    return Findings(
        figures=every_figure(),
        tiers={name: shares_of(tiers) for name, tiers in used.items()},
        length={name: shares_of(tiers) for name, tiers in lengths.items()},
        agreement=agreements(),
    )


def agreements() -> list[Agreement]:
    """Compare the raters, by set and on all rows."""
    second, every, found = second_ratings(), [], []
    for name in SETS:
        pairs = [(row, second[name, row.id]) for row in read(name) if (name, row.id) in second]
        found += [agreement(name, pairs)] if pairs else []
        every += pairs
    return [*found, agreement("all", every)] if every else []


def agreement(name: str, pairs: Sequence[tuple[Row, Rating]]) -> Agreement:
    """Compare two raters' classes of the same rows; a set of one class has no kappa."""
    mine, other = np.array([(row.class_, rating.class_) for row, rating in pairs]).T
    distance = np.abs(mine - other)
    by_chance = np.abs(mine[:, None] - other[None, :]).mean()
    return Agreement(
        set=name,
        n=len(pairs),
        kappa=float(1 - distance.mean() / by_chance) if by_chance else float("nan"),
        same=float(np.mean(distance == 0)),
        within_one=float(np.mean(distance <= 1)),
        ranges_meet=float(np.mean([rating.lo <= row.hi + 1 and row.lo <= rating.hi + 1 for row, rating in pairs])),
    )


def page(found: Findings, before: Findings | None) -> str:
    """Return the tables."""
    earlier = {} if before is None else {one.measure: one for one in before.figures}
    head = ["measure", "rows", *(["before"] if before else []), "figure", "length alone", "one tier", "other controls"]
    rows = []
    for one in found.figures:
        others = ", ".join(f"{named} {share:.2f}" for named, share in one.others.items()) or "–"
        was = [_with_interval(earlier[one.measure])] if before else []
        rows.append(
            [one.measure, str(one.n), *was, _with_interval(one), _or_dash(one.length), _or_dash(one.one_tier), others]
        )
    used = [
        [name, *([_shares(before.tiers[name])] if before else []), _shares(shares), _shares(found.length[name])]
        for name, shares in found.tiers.items()
    ]
    raters = [
        [one.set, str(one.n), f"{one.kappa:.2f}", f"{one.same:.2f}", f"{one.within_one:.2f}", f"{one.ranges_meet:.2f}"]
        for one in found.agreement
    ]
    return "\n\n".join(
        (
            _table(head, rows),
            _table(["set", *(["tiers 1 to 4 before"] if before else []), "tiers 1 to 4", "by length"], used),
            _table(["set", "rows", "weighted kappa", "same class", "at most one apart", "ranges meet"], raters),
        )
    )


def _with_interval(one: Figure) -> str:
    low, high = one.interval
    return f"{one.share:.2f} [{low:.2f}, {high:.2f}]"


def _or_dash(share: float | None) -> str:
    return "–" if share is None else f"{share:.2f}"


def _shares(tiers: Sequence[float]) -> str:
    return " / ".join(f"{share:.0%}"[:-1] for share in tiers) + "%"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.classifier.complexity.figures", description="Measure the classifier on held-out sets."
    )
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--before", type=Path, help="show what another version found, by a file of --json")
    given = parser.parse_args()
    before = None if given.before is None else msgspec.json.decode(given.before.read_bytes(), type=Findings)
    found = findings()
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    print(page(found, before))


if __name__ == "__main__":
    main()
