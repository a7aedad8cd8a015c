"""Verdicts of a catalogue's strongest tier on the hostile pairs and on honest ones.

    python -m tests.quality.judges.real_judge CATALOGUE [PAIRS]

Half of the pairs are hostile."""

import asyncio
import sys
import tempfile
import time
from collections import Counter

import msgspec

from gateway.base.settings import Settings
from gateway.runtime.cores.engine import running_engine
from quality.judges.pairwise import PairwiseJudge
from tests.quality.judges.hostile_pairs import Pair, honest_pairs, hostile_pairs
from tests.quality.judges.weak_judges import truth_of
from tiers.catalog.load import load_catalog
from tiers.tier import Tier


async def verdicts(tier: Tier, pairs: list[Pair]) -> Counter[str]:
    """Count what `tier` says of `pairs`, and why it abstains."""
    judge, counts = PairwiseJudge(tier), Counter[str]()
    for pair in pairs:
        said = await judge.judge(prompt=pair.prompt, answer=pair.answer, reference_answer=pair.reference)
        counts["requests"] += len(said.usage)
        if said.no_worse is not None:
            counts["true" if truth_of(said) == pair.truth else "false"] += 1
        elif "control" in said.reason:
            counts["abstained by the control"] += 1
        else:
            counts["abstained, reply" if "reply" in said.reason else "abstained, readings disagree"] += 1
    return counts


async def measured(catalogue: str, count: int) -> None:
    """Print the counts of each half."""
    hostile, half = hostile_pairs(), count // 2
    halves = {"hostile": hostile[:: max(len(hostile) // half, 1)][:half], "honest": honest_pairs(half, 9)}
    with tempfile.TemporaryDirectory() as folder:
        settings = msgspec.structs.replace(Settings(), data_dir=folder)
        async with running_engine(settings, load_catalog(catalogue)) as engine:
            strongest = engine.tiers[max(engine.tiers)]
            for name, pairs in halves.items():
                begun = time.monotonic()
                counts = await verdicts(strongest, pairs)
                print(f"{strongest.model}, {len(pairs)} {name} pairs, {time.monotonic() - begun:.0f} s: {dict(counts)}")


if __name__ == "__main__":
    asyncio.run(measured(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40))
