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
    LadderGateway,
    Question,
    Said,
    checked_ladder,
    questions,
    served_ladder,
)
from benchmarks.replay.checks import Check
from benchmarks.replay.demo import shares, tell_events
from benchmarks.replay.deployment import Alarm, Conditions
from benchmarks.replay.figures import Figure, Worth, gain, table
from benchmarks.replay.ladder import Ladder
from benchmarks.replay.timeline import COLD, REPAIRED, RETRAINED, WORSE, Life, Look
from benchmarks.report.markdown import markdown

Say = Callable[[str], None]

# Of so many questions in all: shares that are held out, that are traffic, and that the gateway's rules check.
QUESTIONS = 300
_HELD, _TRAFFIC = 0.28, 0.4
# Asked at a time of the tier that is worse, until the alarm.
_WAVE = 16
# Nothing is drawn later than so long after the last change.
_QUIET_SECONDS, _LAST_SECONDS = 1.0, 15.0
# One-sided 0.1%, shared among the six lotteries of which the best in hindsight is taken; in standard errors.
_Z, _HALF_WIDTH = 3.59, 1.96
_WIDTH, _HEIGHT = 64, 16
_BEFORE, _AFTER, _LOTTERY = "AIO, the first day", "AIO, after the labels", "a lottery, at AIO's cost"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A life, and what is only here: how many prompts the checks labelled, `of` how many."""

    life: Life
    labelled: int
    of: int


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
    after = told.life.last(RETRAINED)
    assert after is not None
    rows = worths(told.life)
    found = properties(told)
    tell()
    for line in picture(rows, len(after.ladder.tiers)):
        tell(line)
    tell()
    for check in found:
        tell(f"   {'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.detail}")
    tell(f"{after.spent.requests} requests until the labels; {time.monotonic() - began:.0f} s.")
    _write(page, _page(rows, lines, len(after.ladder.prompts)))
    say(f"The page: {page}")
    return all(check.passed for check in found)


class _Story:
    def __init__(self, gateway: LadderGateway, tell: Say) -> None:
        self._gateway, self._tell = gateway, tell
        self._models = [tier.name for tier in gateway.catalog.tiers]

    async def told(self, seed: int, count: int) -> Told:
        """From the first day to the tier that is worse."""
        held, traffic, rules = counts(count)
        asked = questions(seed, held, traffic, rules)
        self._tell(f"{held} questions are held out: every tier answers them, and AIO only says whom it would ask.")
        ladder = checked_ladder(self._models, asked.held, await self._by_all(asked.held, [None] * held))
        cold = await self._look(COLD, ladder)
        self._tell("")
        self._tell(f"1. The first day, by what ships with the catalogue: {shares(cold)}.")
        served = await self._gateway.answers([(one, "auto") for one in asked.traffic])
        right = sum(one.right for one in served)
        self._tell(
            f"   {traffic} questions are asked: {right} right answers for ${sum(one.usd for one in served):.4f}."
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
        after = await self._look(RETRAINED, ladder)
        tell_events(after, cold, self._tell)
        self._tell(f"   From now on: {shares(after)}.")
        looks, worse_at = [cold, after], self._gateway.asked
        self._tell("")
        self._tell(f"3. The catalogue is reloaded: tier {WORSE_TIER} has lost its adapter. Nobody tells the gateway.")
        await self._gateway.lose_adapter()
        looks.append(await self._look(WORSE, ladder))
        self._tell(f"   A new tier {WORSE_TIER} is taken for what such tiers usually are: {shares(looks[-1])}.")
        alarm = await self._noticed(asked.rules, len(after.alarms))
        noticed_at = self._gateway.asked
        await self._gateway.retraining_ended()
        looks.append(await self._look(REPAIRED, ladder))
        self._tell(
            f"   {noticed_at - worse_at} requests that name tier {WORSE_TIER} later, checked by the gateway's rules:"
        )
        tell_events(looks[-1], looks[-2], self._tell)
        self._tell(f"   From now on: {shares(looks[-1])}.")
        life = Life(
            looks=looks,
            experience=[],
            worse_tier=WORSE_TIER,
            worse_at=worse_at,
            noticed_at=None if alarm is None else noticed_at,
            noticed=alarm,
        )
        return Told(life=life, labelled=labelled, of=traffic)

    async def _by_all(self, asked: Sequence[Question], known: Sequence[Said | None]) -> list[list[Said]]:
        """Every tier's answers; `known` ones are not asked for again."""
        wanted = [
            (place, number)
            for place, one in enumerate(known)
            for number in range(1, len(self._models) + 1)
            if one is None or one.tier != number
        ]
        said = await self._gateway.answers([(asked[place], self._models[number - 1]) for place, number in wanted])
        found: list[list[Said]] = [[] if one is None else [one] for one in known]
        for (place, _), one in zip(wanted, said, strict=True):
            found[place].append(one)
        return [sorted(answers, key=lambda one: one.tier) for answers in found]

    async def _noticed(self, asked: Sequence[Question], known: int) -> Alarm | None:
        for start in range(0, len(asked), _WAVE):
            wave = asked[start : start + _WAVE]
            await self._gateway.answers([(one, self._models[WORSE_TIER - 1]) for one in wave], verified=True)
            if (alarm := await self._gateway.alarm(known, _QUIET_SECONDS)) is not None:
                return alarm
        return await self._gateway.alarm(known, _LAST_SECONDS)

    async def _look(self, phase: str, ladder: Ladder) -> Look:
        prompts, gateway = ladder.prompts, self._gateway
        return Look(
            phase=phase,
            spent=await gateway.spent(),
            version=await gateway.version(prompts[0]),
            tiers=tuple((await gateway.choices(prompts)).tolist()),
            ladder=ladder,
            retrainings=await gateway.retrainings(),
            alarms=await gateway.alarms(),
            worse_tier=WORSE_TIER if phase in (WORSE, REPAIRED) else None,
        )


def worths(life: Life) -> list[Worth]:
    """Cost and share of right answers of each fixed tier, AIO before and after the labels, and the best lottery between
    two tiers that costs what AIO does."""
    cold, after = life.first(COLD), life.last(RETRAINED)
    assert cold is not None
    assert after is not None
    ladder = after.ladder
    routings = {f"always {one.model}": fixed(ladder, number) for number, one in enumerate(ladder.tiers, start=1)}
    routings |= {_LOTTERY: mixing(ladder, after.served), _BEFORE: cold.served, _AFTER: after.served}
    return table(ladder, routings)


def properties(told: Told) -> list[Check]:
    """What must hold, each with a chance of at most 0.1% to be called false where it is true:

    - labels, and the retraining's end: no chance is in them, 0.
    - the ladder: P(the strongest tier has no more right answers of n than the cheapest) for independent answers, right
      with p = 0.45 and 0.17 (measured, with a fifth of chat): 3e-5 of n = 84; less for a better strongest tier.
    - not worse than the lottery, and than the first day: the true gain is at least 0, and its estimate below -3.59
      standard errors, which has a chance of 0.017% for each lottery and six of them to be the best in hindsight.
    - noticed: `chance_unnoticed`.

    (`tests/benchmarks/replay/test_ladder_demo.py` computes them.)
    """
    life = told.life
    cold, after = life.first(COLD), life.last(RETRAINED)
    assert cold is not None
    assert after is not None
    ladder, run = after.ladder, after.retrainings[-1] if after.retrainings else None
    right = ladder.no_worse.sum(axis=0)
    fate = "none" if run is None else f"{'promoted' if run.accepted else 'refused'}: {run.reason}"
    noticed = "no alarm names it" if life.noticed is None else f"{life.noticed.stream}: {life.noticed.reason}"
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
        Check(
            "AIO is not certainly worse than a lottery, at equal cost", not _certainly_worse(lottery), _gain(lottery)
        ),
        Check(
            "the labels made it not certainly worse, at equal cost", not _certainly_worse(first_day), _gain(first_day)
        ),
        Check(f"tier {WORSE_TIER} without its adapter was noticed", life.noticed is not None, noticed),
    ]


def _certainly_worse(gained: Figure) -> bool:
    return gained.value + _Z / _HALF_WIDTH * (gained.high - gained.value) < 0


def _gain(gained: Figure) -> str:
    return f"by {gained.value:+.1%} [{gained.low:+.1%}, {gained.high:+.1%}]"


def picture(rows: Sequence[Worth], tiers: int) -> list[str]:
    """Cost to the right, right answers upwards: fixed tiers as their numbers, the lotteries between two tiers that are
    worth their money as dots, B and A for AIO before and after the labels; then the figures of `rows`, fixed tiers
    first."""
    canvas = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT + 1)]

    def put(cost: float, quality: float, mark: str) -> None:
        canvas[_HEIGHT - round(min(quality, 1.0) * _HEIGHT)][round(min(cost, 1.0) * _WIDTH)] = mark

    points = [(one.cost.value, one.quality.value) for one in rows]
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
    named = {one.name: one for one in rows}
    for name, mark in ((_BEFORE, "B"), (_AFTER, "A")):
        put(named[name].cost.value, named[name].quality.value, mark)
    lines = ["right answers; 1 to 4: always that tier, dots: the best lottery, B: AIO on the first day, A: after"]
    for place, line in enumerate(canvas):
        share = 1 - place / _HEIGHT
        lines.append(f"{f'{share:.0%}' if place % 4 == 0 else '':>5} |{''.join(line).rstrip()}")
    lines.append(f"{'':>5} +{'-' * _WIDTH} cost")
    lines.append(f"{'':>6}0%{'of always the strongest tier':^{_WIDTH - 4}}100%")
    lines.append("")
    lines += [f"   {one.name:<26}cost {_shown(one.cost):<24} right {_shown(one.quality)}" for one in rows]
    return lines


def _shown(figure: Figure) -> str:
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def _page(rows: Sequence[Worth], lines: Sequence[str], held: int) -> str:
    cells = [[one.name, _shown(one.cost), _shown(one.quality)] for one in rows]
    head = markdown(["", "cost of the strongest tier's", "right answers"], cells)
    return (
        f"# A demonstration on this machine\n\n{held} held-out questions, 95% intervals over the questions:\n\n"
        f"{head}\n\n```text\n" + "\n".join(lines) + "\n```\n"
    )
