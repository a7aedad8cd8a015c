"""One deployment's life: a cold start, labels, retraining, a tier that gets worse, a kind of prompts that is new."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.replay.baselines import Experience
from benchmarks.replay.deployment import Alarm, Conditions, Deployment, ReplayDeployment, Retraining, Spent, deployed
from benchmarks.replay.figures import Float, chosen
from benchmarks.replay.ladder import Ladder, Prompt
from quality.verification.sampling import SamplingSettings

COLD, LEARNING, RETRAINED, WORSE, REPAIRED, NEW_KIND = (
    "cold start", "learning", "retrained", "a tier is worse", "repaired", "a new kind",
)  # fmt: skip

# Batches that are asked after an alarm, whose labels repair routing; then a retraining is ordered.
_AFTER_ALARM = 4


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts and lengths of a run. No prompt of `held` or `new_held` is ever asked: they are routed by dry runs.

    `traffic` is asked from the start, in batches of `batch`, until there are `labels` labels, then it is retrained, as
    many times as `rounds` says. `after` is asked once a tier has become worse for a share `degrade` of the prompts,
    until that was noticed and answered or `after` ends. `new`: prompts of a kind that arrives at the end.
    `measured_on`: what the judge is measured on before the start. `curve`: look after every batch, for figures against
    requests served, and not only at the turning points.
    """

    traffic: Ladder
    held: Ladder
    after: Ladder
    measured_on: Ladder
    new: Ladder | None = None
    new_held: Ladder | None = None
    batch: int = 50
    labels: int = 150
    rounds: int = 1
    degrade: float = 0.8
    curve: bool = True


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How the gateway would route the held-out prompts of `ladder` after so many requests: tiers by prompt. What it
    wrote down until then; `worse_tier`: the one that has become worse, if one has."""

    phase: str
    spent: Spent
    version: str
    tiers: tuple[int, ...]
    ladder: Ladder
    retrainings: list[Retraining]
    alarms: list[Alarm]
    worse_tier: int | None

    @property
    def served(self) -> Float:
        """[n, tiers], one-hot."""
        return chosen(np.array(self.tiers, np.intp), len(self.ladder.tiers))


Say = Callable[[Look], None]


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. `worse_tier` became worse after `worse_at` requests, and that was noticed after `noticed_at`
    (None: never). `experience`: the labels with which the first phase ended."""

    looks: list[Look]
    experience: Experience
    worse_tier: int | None = None
    worse_at: int | None = None
    noticed_at: int | None = None
    noticed: Alarm | None = None

    def first(self, phase: str) -> Look | None:
        """The first look of a phase."""
        return next((look for look in self.looks if look.phase == phase), None)

    def last(self, phase: str) -> Look | None:
        """The last look of a phase."""
        return next((look for look in reversed(self.looks) if look.phase == phase), None)

    @property
    def retrainings(self) -> list[Retraining]:
        """All that there were."""
        return self.looks[-1].retrainings

    @property
    def alarms(self) -> list[Alarm]:
        """All that there were."""
        return self.looks[-1].alarms


async def look_at(gateway: Deployment, phase: str, held: Ladder, worse_tier: int | None) -> Look:
    """How `gateway` would route the prompts of `held` once it has learned from all labels, and what it wrote down."""
    await gateway.learned()
    return Look(
        phase=phase,
        spent=await gateway.spent(),
        version=await gateway.version(held.prompts[0]),
        tiers=tuple((await gateway.choices(held.prompts)).tolist()),
        ladder=held,
        retrainings=await gateway.retrainings(),
        alarms=await gateway.alarms(),
        worse_tier=worse_tier,
    )


async def live(plan: Plan, conditions: Conditions, say: Say = lambda look: None, until: str = NEW_KIND) -> Life:
    """Run it in a folder of its own, to the end of the phase `until` (`RETRAINED`, `REPAIRED` or `NEW_KIND`)."""
    ladders = [plan.traffic, plan.held, plan.after, plan.new, plan.new_held]
    everything = plan.traffic.of([prompt for ladder in ladders if ladder is not None for prompt in ladder.prompts])
    with tempfile.TemporaryDirectory(prefix="aio-replay-") as folder:
        async with deployed(Path(folder), everything, plan.measured_on, conditions) as deployment:
            run = _Run(deployment, plan, say)
            await run.learn()
            if until != RETRAINED:
                await run.tier_gets_worse(everything)
            if until == NEW_KIND and plan.new is not None and plan.new_held is not None:
                await run.new_kind_arrives(plan.new, plan.new_held)
            return run.life()


class _Run:
    def __init__(self, deployment: ReplayDeployment, plan: Plan, say: Say) -> None:
        self._gateway, self._plan, self._say = deployment, plan, say
        self._held = plan.held
        self._looks: list[Look] = []
        self._experience: Experience = []
        self._worse: tuple[int, int] | None = None
        self._noticed: tuple[int, Alarm] | None = None

    def life(self) -> Life:
        tier, at = self._worse or (None, None)
        noticed_at, noticed = self._noticed or (None, None)
        return Life(
            looks=self._looks,
            experience=self._experience,
            worse_tier=tier,
            worse_at=at,
            noticed_at=noticed_at,
            noticed=noticed,
        )

    async def learn(self) -> None:
        """From the cold start until the gateway has retrained `rounds` times on so many labels each."""
        plan, asked = self._plan, 0
        await self._look(COLD)
        for number in range(1, plan.rounds + 1):
            while asked < len(plan.traffic.prompts):
                await self._ask(plan.traffic.prompts[asked : asked + plan.batch])
                asked += plan.batch
                if plan.curve:
                    await self._look(LEARNING)
                if (await self._gateway.spent()).labels >= number * plan.labels:
                    break
            await self._retrain(f"{number * plan.labels} labels")
            await self._look(RETRAINED)
        self._experience = await self._gateway.experience()

    async def tier_gets_worse(self, everything: Ladder) -> None:
        """The tier that is verified most, which is seldom one of the dear ones; until the gateway has answered it."""
        plan, tiers = self._plan, self._looks[-1].tiers
        sampling = SamplingSettings()
        tier = max(range(1, len(self._held.tiers)), key=lambda number: tiers.count(number) * sampling.rate(number))
        num_alarms = len(await self._gateway.alarms())
        self._worse = tier, self._gateway.asked
        self._gateway.upstream.serve(everything.degraded(tier, plan.degrade))
        self._held = self._held.degraded(tier, plan.degrade)
        await self._look(WORSE)
        since = 0
        for start in range(0, len(plan.after.prompts), plan.batch):
            await self._ask(plan.after.prompts[start : start + plan.batch])
            if plan.curve:
                await self._look(WORSE)
            raised = [
                alarm
                for alarm in (await self._gateway.alarms())[num_alarms:]
                if alarm.stream.startswith(f"tier {tier},")
            ]
            if not raised:
                continue
            if self._noticed is None:
                self._noticed = self._gateway.asked, raised[0]
                await self._gateway.retraining_ended()
            since += 1
            if since == _AFTER_ALARM:
                break
        await self._retrain("a tier has become worse")
        await self._look(REPAIRED)

    async def new_kind_arrives(self, new: Ladder, held: Ladder) -> None:
        """Its prompts among the others, until they end; then a retraining."""
        self._held = held
        await self._look(NEW_KIND)
        for start in range(0, len(new.prompts), self._plan.batch):
            await self._ask(new.prompts[start : start + self._plan.batch])
            await self._look(NEW_KIND)
        await self._retrain("a new kind")
        await self._look(NEW_KIND)

    async def _ask(self, prompts: Sequence[Prompt]) -> None:
        await self._gateway.ask(prompts)
        await self._gateway.settle()

    async def _retrain(self, reason: str) -> None:
        run = await self._gateway.retrain(reason)
        if run.accepted:
            await self._gateway.serving(str(run.version), self._held.prompts[0])

    async def _look(self, phase: str) -> None:
        worse_tier = None if self._worse is None else self._worse[0]
        self._looks.append(await look_at(self._gateway, phase, self._held, worse_tier))
        self._say(self._looks[-1])
