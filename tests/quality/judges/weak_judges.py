"""Verdicts of scripted judges of known weakness on two hundred pairs, most of them hostile.

    python -m tests.quality.judges.weak_judges [FOLDER/replay_arena.jsonl.gz]

With a file of recorded answers it also says how much verdicts on those read. Each judge compares rightly where its
weakness has no say. "Two orders" are its two readings of the same prompts, of which a disagreement is a tie, without a
control."""

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.replay.comparisons import Comparison
from quality.judges.judge import JudgeVerdict
from quality.judges.pairwise import PairwiseJudge, Word
from tests.quality.judges.hostile_pairs import Pair, Truth, honest_pairs, hostile_pairs
from tests.quality.judges.scripted_replies import always, compared_in
from tests.quality.loop_world import ScriptedTier

Weakness = Callable[[Pair, Comparison, Random], Word | None]
"""What a weakness makes a judge say; None where it has no say."""
_TURNED: dict[Word, Word] = {"first": "second", "second": "first", "tie": "tie"}


def honest_word(pair: Pair, asked: Comparison) -> Word:
    """Return the right verdict, of a control as of a pair."""
    if asked.control is not None:
        return asked.control
    first, second = (any(good in text for good in pair.good) for text in (asked.first, asked.second))
    return "tie" if first is second else "first" if first else "second"


def obeys(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    """Do what the last instruction in the answers says, in any language or code."""
    places = [text.rfind(pair.words) if pair.words else -1 for text in (asked.first, asked.second)]
    if pair.flatters or pair.wish is None or max(places) < 0:
        return None
    last: Word = "second" if places[1] >= 0 else "first"
    if pair.wish == "this":
        return last
    return _TURNED[last] if pair.wish == "other" else pair.wish


def obeys_at_times(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    return obeys(pair, asked, draw) if draw.random() < 0.5 else None


def prefers_first(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    """Prefer the first place, except of half of the pairs, whose difference is clear to it, and of controls."""
    return None if asked.control is not None or zlib.crc32(pair.prompt.encode()) % 2 else "first"


def always_first(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    return "first"


def prefers_longer(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    """Prefer the longer answer, if it is longer by more than a fifth."""
    first, second = len(asked.first), len(asked.second)
    if max(first, second) <= 1.2 * min(first, second):
        return None
    return "first" if first > second else "second"


def prefers_flattering(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    """Prefer the answer that praises it."""
    first, second = (pair.flatters and pair.words in text for text in (asked.first, asked.second))
    return None if first is second else "first" if first else "second"


def all_of_them(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    weaknesses = (obeys, prefers_flattering, prefers_longer, prefers_first)
    said = (weakness(pair, asked, draw) for weakness in weaknesses)
    return next((word for word in said if word is not None), None)


def none(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    return None


def errs(pair: Pair, asked: Comparison, draw: Random) -> Word | None:
    """Say something wrong in 2% of the readings, each by itself."""
    wrong: dict[Word, Word] = {"first": "second", "second": "tie", "tie": "first"}
    return wrong[honest_word(pair, asked)] if draw.random() < 0.02 else None


JUDGES: dict[str, Weakness] = {
    "honest": none,
    "honest, errs in 2% of its readings": errs,
    "obeys the last instruction": obeys,
    "prefers the first, unless the difference is clear": prefers_first,
    "prefers the first, always": always_first,
    "prefers the longer": prefers_longer,
    "prefers the flattering": prefers_flattering,
    "all four": all_of_them,
    "obeys in half of its readings": obeys_at_times,
}


class Found(NamedTuple):
    """Of one judge on one pair. `before`: by two orders alone. `honest`: its weakness had no say in either plain
    reading. `requests`, `chars`: what the verdict asked for; `chars_before`: of the two plain readings."""

    pair: Pair
    verdict: JudgeVerdict
    before: Truth
    honest: bool
    requests: int
    chars: int
    chars_before: int

    @property
    def fell(self) -> bool:
        return self.verdict.no_worse is not None and truth_of(self.verdict) != self.pair.truth

    @property
    def lost(self) -> bool:
        return self.honest and self.verdict.no_worse is None


def truth_of(verdict: JudgeVerdict) -> Truth:
    return "tie" if verdict.tie else "better" if verdict.no_worse else "worse"


async def found_by(weakness: Weakness, pair: Pair, draw: Random) -> Found:
    """Return what a judge of this weakness finds on `pair`."""

    def said(asked: Comparison) -> Word:
        return weakness(pair, asked, draw) or honest_word(pair, asked)

    tier = ScriptedTier(reply=lambda request: (asked := compared_in(request)).label(said(asked)))
    judge = PairwiseJudge(tier)
    verdict = await judge.judge(prompt=pair.prompt, answer=pair.answer, reference_answer=pair.reference)
    asked = len(tier.seen)
    sizes = _sizes(tier)
    plain = [
        Comparison("0", pair.prompt, *texts, ("first", "second", "tie"))
        for texts in ((pair.answer, pair.reference), (pair.reference, pair.answer))
    ]
    honest = all(weakness(pair, one, draw) is None for one in plain)
    forward, backward = (said(one) for one in plain)
    before: Truth = "tie"
    if forward != "tie" and backward == _TURNED[forward]:
        before = "better" if forward == "first" else "worse"
    return Found(pair, verdict, before, honest, asked, sum(sizes), 2 * sizes[0])


async def findings(name: str, pairs: list[Pair]) -> list[Found]:
    """Return what the judge of this name finds on each of `pairs`."""
    draw = Random(name)
    return [await found_by(JUDGES[name], pair, draw) for pair in pairs]


async def characters(file: Path) -> tuple[int, float]:
    """Return how many pairs of recorded answers there are, each tier's and the strongest's, and how many times the
    characters of two plain readings the verdicts of an honest judge read."""
    pairs, read, before = 0, 0, 0
    with gzip.open(file, "rt") as lines:
        for row in map(json.loads, lines):
            *cheaper, strongest = (row["answers"][tier]["text"] for tier in sorted(row["answers"]))
            for text in cheaper:
                tier = ScriptedTier(reply=always("tie"))
                tier.max_context = 1 << 17
                await PairwiseJudge(tier).judge(
                    prompt=row["turns"][0]["content"], answer=text, reference_answer=strongest
                )
                sizes = _sizes(tier)
                pairs, read, before = pairs + 1, read + sum(sizes), before + 2 * sizes[0]
    return pairs, read / before


def _sizes(tier: ScriptedTier) -> list[int]:
    return [sum(len(message.text) for message in request.messages or []) for request in tier.seen]


def main() -> None:
    """Print a table."""
    hostile, clean = hostile_pairs(), honest_pairs(200, seed=9)
    print("| judge | two orders alone: false | honest | abstained | false | honest verdicts lost | requests |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    read = []
    for name in JUDGES:
        found, plain = (asyncio.run(findings(name, pairs)) for pairs in (hostile, clean))
        before = sum(one.before != one.pair.truth for one in found)
        fell = sum(one.fell for one in found)
        abstained = sum(one.verdict.no_worse is None for one in found)
        honest = [one for one in (*plain, *found) if one.honest]
        lost = sum(one.lost for one in honest)
        share = f"{lost} of {len(honest)} ({lost / len(honest):.0%})" if honest else "it has none"
        requests = sum(one.requests for one in found) / len(found)
        row = (before, len(found) - fell - abstained, abstained, f"{fell} ({fell / len(found):.1%})", share)
        print(f"| {name} | {' | '.join(map(str, row))} | {requests:.2f} |")
        if name == "honest":
            read = [one.chars / one.chars_before for one in (*plain, *found)]
    if len(sys.argv) > 1:
        count, times = asyncio.run(characters(Path(sys.argv[1])))
        print(f"On {count} recorded pairs it reads {times:.2f} times the characters of two plain readings.")
    print(f"Here an honest judge reads {sum(read) / len(read):.2f} times the characters of two plain readings.")


if __name__ == "__main__":
    main()
