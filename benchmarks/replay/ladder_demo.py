"""`make demo`: a real core answers about 300 questions through the gateway, from the first day to a tier that gets
worse; a picture of cost against right answers, and a page."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.replay.baselines import at_equal_cost, fixed, mixing
from benchmarks.replay.checked_ladder import (
    WORSE_TIER,
    CheckedLadder,
    LadderGateway,
    Question,
    Said,
    checked_ladder,
    questions,
    served_ladder,
)
from benchmarks.replay.checks import Check
from benchmarks.replay.demo import shares, tell_events
from benchmarks.replay.deployment import Conditions
from benchmarks.replay.figures import Figure, Worth, gain, table
from benchmarks.replay.timeline import COLD, REPAIRED, RETRAINED, WORSE, Look, look_at
from benchmarks.report.markdown import markdown

Say = Callable[[str], None]

# Of so many questions in all: shares that are held out, that are traffic, and that the gateway's rules check.
QUESTIONS = 300
_HELD, _TRAFFIC = 0.28, 0.4
# Asked at a time of the tier that is worse, until that is noticed; nothing stands still for so long.
_WAVE = 16
_STUCK_SECONDS = 120.0
# By so much P falls.
NOTICED = 0.25
# One-sided 0.1%, shared among the six lotteries of which the best in hindsight is taken; in standard errors.
_Z, _HALF_WIDTH = 3.59, 1.96
_WIDTH, _HEIGHT = 64, 16
_BEFORE, _AFTER, _LOTTERY = "AIO, the first day", "AIO, after the labels", "a lottery, at AIO's cost"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. `cold`, `after`: before and after the labels; `labelled`: how many prompts the checks labelled,
    `of` how many; `trust`: the mean P that an answer of tier 2 is good, after it lost its adapter and at the end;
    `answers`: how many were asked for."""

    cold: Look
    after: Look
    labelled: int
    of: int
    trust: tuple[float, float]
    answers: int


def counts(questions: int) -> tuple[int, int, int]:
    """How many of them are held out, are traffic, and are checked by the gateway's rules."""
    held, traffic = round(_HELD * questions), round(_TRAFFIC * questions)
    return held, traffic, questions - held - traffic


async def demo(say: Say, page: Path, seed: int = 0, count: int = QUESTIONS) -> bool:
    """Run it, tell the story and write the `page`; whether every stated property holds."""
    began = time.monotonic()
    lines: list[str] = []

    def tell(line: str = "") -> None:
        lines.append(line)
        say(line)

    tell("AIO answers each prompt by that of four tiers whose answer is worth most, and learns which one that is.")
    tell("Here the tiers are real: one model of 135M parameters, with an adapter, answers on this machine's CPU.")
    tell("Every question has an answer that a program checks. Quality: the share of right answers, with 95% intervals.")
    with tempfile.TemporaryDirectory(prefix="aio-demo-") as folder:
        async with served_ladder(Path(folder), Conditions()) as gateway:
            told = await _Story(gateway, tell).told(seed, count)
    rows = worths(told)
    checked = properties(told)
    tell()
    for line in picture(rows, len(told.after.ladder.tiers)):
        tell(line)
    tell()
    for check in checked:
        tell(f"   {check.line}")
    tell(f"{told.answers} answers in {time.monotonic() - began:.0f} s.")
    _write(page, _page(rows, lines, len(told.after.ladder.prompts)))
    say(f"The page: {page}")
    return all(check.passed for check in checked)


class _Story:
    def __init__(self, gateway: LadderGateway, tell: Say) -> None:
        self._gateway, self._tell = gateway, tell
        self._models = [tier.name for tier in gateway.catalog.tiers]

    async def told(self, seed: int, count: int) -> Told:
        """From the first day to the tier that is worse."""
        held, traffic, rules = counts(count)
        asked = questions(seed, held, traffic, rules)
        self._tell(
            f"{held} questions are held out: every tier answers them, and AIO only says which tier it would ask."
        )
        ladder = checked_ladder(self._models, asked.held, await self._by_all(asked.held, [None] * held))
        cold = await look_at(self._gateway, COLD, ladder, None)
        self._tell("")
        self._tell(f"1. The first day, by what ships with the catalogue: {shares(cold)}.")
        served = await self._gateway.answers([(question, "auto") for question in asked.traffic])
        right = sum(answer.right for answer in served)
        self._tell(
            f"   {traffic} questions are asked: {right} right answers for ${sum(answer.usd for answer in served):.4f}."
        )
        said = await self._by_all(asked.traffic, served)
        labelled = await self._gateway.import_outcomes(asked.traffic, said)
        self._tell("")
        self._tell(
            f"2. The checks of every tier's answers to them are imported: {labelled} labelled prompts, no judge."
        )
        run = await self._gateway.retrain("labels by checks")
        if run.accepted:
            await self._gateway.serving(str(run.version), asked.held[0].prompt)
        after = await look_at(self._gateway, RETRAINED, ladder, None)
        tell_events(after, cold, self._tell)
        self._tell(f"   From now on: {shares(after)}.")
        self._tell("")
        self._tell(f"3. The catalogue is reloaded: tier {WORSE_TIER} has lost its adapter.")
        await self._gateway.lose_adapter()
        worse, before = await self._trusted(WORSE, ladder)
        self._tell(f"   A new tier {WORSE_TIER} is taken for what such tiers usually are: {shares(worse)}.")
        asked_for, last, trust = 0, worse, before
        while asked_for < len(asked.rules) and before - trust < NOTICED:
            wave = asked.rules[asked_for : asked_for + _WAVE]
            await self._gateway.answers([(question, self._models[WORSE_TIER - 1]) for question in wave], verified=True)
            await self._gateway.settle(_STUCK_SECONDS)
            await self._gateway.retraining_ended()
            asked_for += len(wave)
            last, trust = await self._trusted(REPAIRED, ladder)
        self._tell(f"   {asked_for} requests later that name tier {WORSE_TIER}, checked by the gateway's own rules:")
        tell_events(last, worse, self._tell)
        self._tell(f"   P that its answer to a held-out question is good: {trust:.0%}, from {before:.0%}.")
        self._tell(f"   From now on: {shares(last)}.")
        return Told(
            cold=cold, after=after, labelled=labelled, of=traffic, trust=(before, trust), answers=self._gateway.asked
        )

    async def _trusted(self, phase: str, ladder: CheckedLadder) -> tuple[Look, float]:
        look = await look_at(self._gateway, phase, ladder, WORSE_TIER)
        return look, await self._gateway.trust(ladder.prompts, WORSE_TIER)

    async def _by_all(self, asked: Sequence[Question], served: Sequence[Said | None]) -> list[list[Said]]:
        """Every tier's answers; `served` ones are not asked for again."""
        wanted = [
            (index, number)
            for index, answer in enumerate(served)
            for number in range(1, len(self._models) + 1)
            if answer is None or answer.tier != number
        ]
        said = await self._gateway.answers([(asked[index], self._models[number - 1]) for index, number in wanted])
        by_question: list[list[Said]] = [[] if answer is None else [answer] for answer in served]
        for (index, _), answer in zip(wanted, said, strict=True):
            by_question[index].append(answer)
        return [sorted(answers, key=lambda answer: answer.tier) for answers in by_question]


def worths(told: Told) -> list[Worth]:
    """Cost and share of right answers of each fixed tier, AIO before and after the labels, and the best lottery between
    two tiers that costs what AIO does."""
    cold, after, ladder = told.cold, told.after, told.after.ladder
    routings = {f"always {tier.model}": fixed(ladder, number) for number, tier in enumerate(ladder.tiers, start=1)}
    routings |= {_LOTTERY: mixing(ladder, after.served), _BEFORE: cold.served, _AFTER: after.served}
    return table(ladder, routings)


def properties(told: Told) -> list[Check]:
    """What must hold, each with a chance of at most 0.1% to be called false where it is true:

    - labels, and the retraining's end: no chance is in them, 0.
    - the ladder: P(the strongest tier has no more right answers of n than the cheapest) for independent answers, right
      with p = 0.45 and 0.17 (measured, with a fifth of chat): 3e-5 of n = 84; less for a better strongest tier.
    - not worse than the lottery, and than the first day: the true gain is at least 0, and its estimate below -3.59
      standard errors, which has a chance of 0.017% for each lottery and six of them to be the best in hindsight.
    - noticed: P falls by a quarter once at least 12 answers are labelled, no fewer of them "worse" than good. P(not so)
      of 96 requests that are labelled "worse" with p = 0.35 and good with 0.1 (measured: 0.44 and 0.11; the
      others have no label): 7e-5.

    (`tests/benchmarks/replay/test_ladder_demo.py` computes them.)
    """
    cold, after = told.cold, told.after
    ladder, run = after.ladder, after.retrainings[-1] if after.retrainings else None
    right = ladder.no_worse.sum(axis=0)
    fate = "none" if run is None else f"{'promoted' if run.accepted else 'refused'}: {run.reason}"
    before, trust = told.trust
    lottery = gain(ladder, after.served, mixing(ladder, after.served))
    first_day = gain(ladder, after.served, at_equal_cost(ladder, cold.served, after.served))
    return [
        Check("every checked prompt became a label", told.labelled == told.of, f"{told.labelled} of {told.of}"),
        Check("the retraining ended, with its reason", run is not None and bool(run.reason), fate),
        Check(
            "the strongest tier is right more often than the cheapest",
            bool(right[-1] > right[0]),
            f"{right[-1]} against {right[0]} of {len(ladder.prompts)}",
        ),
        Check("AIO is not certainly worse than a lottery, at equal cost", not certainly_worse(lottery), lottery.gained),
        Check(
            "the labels made it not certainly worse, at equal cost", not certainly_worse(first_day), first_day.gained
        ),
        Check(
            f"tier {WORSE_TIER} without its adapter was noticed",
            before - trust >= NOTICED,
            f"its answers are good with P {before:.2f}, then {trust:.2f}",
        ),
    ]


def certainly_worse(gained: Figure) -> bool:
    """Whether the gain is 3.59 standard errors below zero, which its 95% interval tells."""
    # Equal routings differ by rounding.
    return gained.value + _Z / _HALF_WIDTH * (gained.high - gained.value) < -1e-9


def picture(rows: Sequence[Worth], tiers: int) -> list[str]:
    """Cost to the right, right answers upwards: fixed tiers as their numbers, the lotteries between two tiers that are
    worth their money as dots, B and A for AIO before and after the labels; then the figures of `rows`, fixed tiers
    first."""
    canvas = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT + 1)]

    def put(cost: float, quality: float, mark: str) -> None:
        canvas[_HEIGHT - round(min(quality, 1.0) * _HEIGHT)][round(min(cost, 1.0) * _WIDTH)] = mark

    points = [(row.cost.value, row.quality.value) for row in rows]
    for step in range(_WIDTH + 1):
        cost = step / _WIDTH
        reached = [
            a[1] + (b[1] - a[1]) * (cost - a[0]) / (b[0] - a[0])
            for a in points[:tiers]
            for b in points[:tiers]
            if a[0] <= cost <= b[0] and a[0] < b[0]
        ]
        if reached:
            put(cost, max(reached), "·")
    for number, point in enumerate(points[:tiers], start=1):
        put(*point, str(number))
    named = {row.name: row for row in rows}
    for name, mark in ((_BEFORE, "B"), (_AFTER, "A")):
        put(named[name].cost.value, named[name].quality.value, mark)
    lines = ["right answers; 1 to 4: always that tier, dots: the best lottery, B: AIO on the first day, A: after"]
    for index, line in enumerate(canvas):
        share = 1 - index / _HEIGHT
        lines.append(f"{f'{share:.0%}' if index % 4 == 0 else '':>5} |{''.join(line).rstrip()}")
    lines.append(f"{'':>5} +{'-' * _WIDTH} cost")
    lines.append(f"{'':>6}0%{'of always the strongest tier':^{_WIDTH - 4}}100%")
    lines.append("")
    lines += [f"   {row.name:<26}cost {row.cost.percent:<24} right {row.quality.percent}" for row in rows]
    return lines


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def _page(rows: Sequence[Worth], lines: Sequence[str], held: int) -> str:
    cells = [[row.name, row.cost.percent, row.quality.percent] for row in rows]
    head = markdown(["", "cost of the strongest tier's", "right answers"], cells)
    return (
        f"# A demonstration on this machine\n\n{held} held-out questions, 95% intervals over the questions:\n\n"
        f"{head}\n\n```text\n" + "\n".join(lines) + "\n```\n"
    )
