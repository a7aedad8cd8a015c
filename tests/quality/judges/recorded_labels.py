"""Labels that the judges by rule make of recorded answers of a ladder, as in observe mode, against recorded marks.

    python -m tests.quality.judges.recorded_labels FOLDER/replay_arena.jsonl.gz

Every tier's answer is once the given one, and each cheaper tier's the one that routing would have sent. The truth: its
mark is at most one point lower."""

import asyncio
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quality.judges.calibration import calibrate
from quality.judges.known_pairs import graded_pairs
from quality.judges.panel import Panel, rule_based_judges

_RESAMPLES = 2000


class Recorded(NamedTuple):
    """A pair of answers to one `prompt` (its number). `judge`: who labelled it, "" for none; `no_worse`: the label.
    `broken`: "no worse" because of a reference that does not parse. `truth`: by the marks."""

    prompt: int
    judge: str
    no_worse: bool
    broken: bool
    truth: bool

    @property
    def is_right(self) -> bool:
        return self.no_worse is self.truth


async def labels_of(rows: Sequence[dict[str, Any]]) -> list[Recorded]:
    """Let the judges by rule, all of them trusted, label every pair of answers."""
    judges, known = rule_based_judges(), graded_pairs()
    panel = Panel(judges, {judge.name: await calibrate(judge, known) for judge in judges})
    found = []
    for number, row in enumerate(rows):
        prompt, answers = row["turns"][0]["content"], row["answers"]
        for given in sorted(answers):
            for cheaper in (tier for tier in sorted(answers) if tier < given):
                texts = answers[cheaper]["text"], answers[given]["text"]
                finding = await panel.judge(prompt=prompt, answer=texts[0], reference_answer=texts[1])
                judge = "" if finding.label is None else finding.judge or ""
                no_worse = bool(finding.label)
                broken = no_worse and finding.reason.startswith("the strongest tier's")
                truth = answers[cheaper]["score"] >= answers[given]["score"] - 1
                found.append(Recorded(number, judge, no_worse, broken, truth))
    return found


def share(pairs: Sequence[Recorded], of: str) -> str:
    """The share of pairs, with its 95% interval by resampling prompts."""
    if not pairs:
        return "–"
    prompts = np.array([pair.prompt for pair in pairs])
    values = np.array([float(getattr(pair, of)) for pair in pairs])
    names, places = np.unique(prompts, return_inverse=True)
    sums, counts = np.bincount(places, values), np.bincount(places)
    drawn = np.random.default_rng(1).integers(len(names), size=(_RESAMPLES, len(names)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{values.mean():.1%} [{low:.1%}, {high:.1%}]"


def main() -> None:
    """Print a table."""
    with gzip.open(Path(sys.argv[1]), "rt") as file:
        rows = [json.loads(line) for line in file]
    pairs = asyncio.run(labels_of(rows))
    print("| judge | labels | no worse | by a broken reference | truth | right where no worse | right where worse |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in ("json", "code", "exact", "all"):
        mine = [pair for pair in pairs if pair.judge and name in (pair.judge, "all")]
        good, bad = ([pair for pair in mine if pair.no_worse is verdict] for verdict in (True, False))
        broken = sum(pair.broken for pair in mine)
        shares = [share(mine, "no_worse"), str(broken), share(mine, "truth"), share(good, "is_right")]
        print(f"| {name} | {len(mine)} | {' | '.join(shares)} | {share(bad, 'is_right')} |")
    none = [pair for pair in pairs if not pair.judge]
    print(f"| no judge | 0 of {len(none)} | – | – | {share(none, 'truth')} | – | – |")


if __name__ == "__main__":
    main()
