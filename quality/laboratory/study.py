"""A study: runs of the scenarios with the parts of the loop that each is about, kept as files, so that it goes on."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from classifier.training.dataset import OutcomeRow
from quality.laboratory.loop import LoopSettings
from quality.laboratory.run import RunResult, run
from quality.laboratory.scenario import Scenario, Scenarios
from quality.laboratory.world import World, build_world
from quality.sampling import SamplingSettings
from quality.shift_detector import ShiftSettings

Progress = Callable[[str, float], None]

# Which parts are at work: retraining, immediate repair.
ARMS = {"whole": (True, True), "retraining": (True, False), "repair": (False, True)}


class StudySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs have in common, part of their file names.

    `mean_cost`: of a warm-up request, in units of tier 1's price; it sets lambda. Usually what 60, 20, 15 and 5% of the
    requests at the four tiers cost (SPEC RT-10). `cheap_mean_cost`: the same before domains come that are new; usually
    so little that tier 1 has about 60% of the requests, for that it fails on the domain is what such scenarios are
    about. `false_alarm_every`: verified answers between two false alarms.
    """

    teacher: str = ""
    mean_cost: float = 4.1
    cheap_mean_cost: float = 2.3
    false_alarm_every: float = ShiftSettings().false_alarm_every

    def mean_cost_of(self, scenario: Scenario) -> float:
        """What a request of the warm-up costs there."""
        return self.cheap_mean_cost if scenario.held_out else self.mean_cost


def arms_of(scenario: Scenario) -> list[str]:
    """Domains that are new to the router are repaired and retrained for apart; else all parts work together."""
    return ["repair", "retraining"] if scenario.held_out else ["whole"]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One run of scenario `name` with some parts of the loop at work; in one world, it alone decides the result."""

    scenarios: Scenarios
    name: str
    settings: StudySettings
    arm: str
    seed: int

    def run(self, world: World) -> RunResult:
        """Carry it out here."""
        scenario, common = self.scenarios.named(self.name), self.scenarios.common
        loop = loop_settings(self.scenarios, self.settings, self.arm)
        if scenario.judge_error:
            # Twice in a run whatever the alarms say, so that the gate has something to be fooled by.
            loop = msgspec.structs.replace(loop, retrain_every=common.requests_per_day * 3)
        mean_cost = self.settings.mean_cost_of(scenario)
        return run(world, scenario, common, loop, arm=self.arm, seed=self.seed, mean_cost=mean_cost)


RunAll = Callable[[World, Sequence[Assignment]], Iterable[RunResult]]
"""Carries out runs in one world, in any order; results as they come."""


def in_turn(world: World, assignments: Sequence[Assignment]) -> Iterable[RunResult]:
    """One after another in this process."""
    return (assignment.run(world) for assignment in assignments)


def run_study(
    rows: Sequence[OutcomeRow],
    scenarios: Scenarios,
    names: Sequence[str],
    folder: Path,
    settings: StudySettings,
    *,
    runs: int,
    seed: int,
    noisy_runs: int | None = None,
    progress: Progress = lambda step, share: None,
    run_all: RunAll = in_turn,
) -> list[RunResult]:
    """`runs` runs of each named scenario and arm, with seeds from `seed` on; `noisy_runs` of those whose judge errs,
    where what must hardly ever happen takes more of them to show. What lies finished in `folder` stays."""
    results: dict[tuple[str, str, int], RunResult] = {}
    counts = {name: noisy_runs or runs if scenarios.named(name).judge_error else runs for name in names}
    wanted = [
        (name, arm, number)
        for name in names
        for arm in arms_of(scenarios.named(name))
        for number in range(seed, seed + counts[name])
    ]
    for name in names:
        scenario = scenarios.named(name)
        missing: list[Assignment] = []
        for _, arm, number in (key for key in wanted if key[0] == name):
            path = _path(folder, settings, scenario, arm, number)
            if path.is_file():
                results[name, arm, number] = msgspec.json.decode(path.read_bytes(), type=RunResult)
            else:
                missing.append(Assignment(scenarios=scenarios, name=name, settings=settings, arm=arm, seed=number))
        if not missing:
            continue
        progress(f"{name}: the shipped artefact", len(results) / len(wanted))
        world = build_world(rows, scenarios.common, scenario, folder / "artefacts", teacher=settings.teacher)
        for result in run_all(world, missing):
            _keep(_path(folder, settings, scenario, result.arm, result.seed), result)
            results[name, result.arm, result.seed] = result
            progress(f"{name}, {result.arm}, seed {result.seed}", len(results) / len(wanted))
    progress("done", 1.0)
    return [results[key] for key in wanted]


def loop_settings(scenarios: Scenarios, settings: StudySettings, arm: str) -> LoopSettings:
    """The product's own knobs but for the scenarios' rates and budget."""
    common, (retraining, repair) = scenarios.common, ARMS[arm]
    cheap, dear = common.sample_rate, common.sample_rate / 5
    return LoopSettings(
        sampling=SamplingSettings(rates=(cheap, cheap, dear, dear), budget_share=common.verification_budget),
        shift=ShiftSettings(false_alarm_every=settings.false_alarm_every),
        retraining=retraining,
        repair=repair,
        requests_per_day=common.requests_per_day,
    )


def _path(folder: Path, settings: StudySettings, scenario: Scenario, arm: str, seed: int) -> Path:
    varied = (
        f"{settings.mean_cost_of(scenario):g}-{settings.false_alarm_every:g}{'-taught' if settings.teacher else ''}"
    )
    return folder / "runs" / f"{scenario.name}-{arm}-{varied}-{seed}.json"


def _keep(path: Path, result: RunResult) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(msgspec.json.encode(result))
    unfinished.replace(path)
