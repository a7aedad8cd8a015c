"""A study: runs of the scenarios with the parts of the loop that each is about, kept as files, so that it goes on."""

from collections.abc import Callable, Sequence
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
    """What the runs have in common; part of their file names by its hash where it is not the usual.

    `tier_1_share`: of the warm-up's requests, those that tier 1 gets; it sets lambda (SPEC RT-10: 60%).
    `false_alarm_every`: verified answers between two false alarms; 500 are some 200,000 requests at this budget.
    """

    teacher: str = ""
    tier_1_share: float = 0.6
    false_alarm_every: float = 500.0


def arms_of(scenario: Scenario) -> list[str]:
    """Domains that are new to the router are repaired and retrained for apart; else all parts work together."""
    return ["repair", "retraining"] if scenario.held_out else ["whole"]


def run_study(
    rows: Sequence[OutcomeRow],
    scenarios: Scenarios,
    names: Sequence[str],
    folder: Path,
    settings: StudySettings,
    *,
    runs: int,
    seed: int,
    progress: Progress = lambda step, share: None,
) -> list[RunResult]:
    """`runs` runs of each named scenario and arm, with seeds from `seed` on. What lies finished in `folder` stays."""
    results: list[RunResult] = []
    total = sum(len(arms_of(scenarios.named(name))) for name in names) * runs
    for name in names:
        scenario = scenarios.named(name)
        world: World | None = None
        for arm in arms_of(scenario):
            for number in range(seed, seed + runs):
                path = folder / "runs" / _file_name(settings, name, arm, number)
                if path.is_file():
                    results.append(msgspec.json.decode(path.read_bytes(), type=RunResult))
                    continue
                if world is None:
                    progress(f"{name}: the shipped artefact", len(results) / total)
                    world = build_world(
                        rows, scenarios.common, scenario, folder / "artefacts", teacher=settings.teacher
                    )
                progress(f"{name}, {arm}, seed {number}", len(results) / total)
                results.append(_run(world, scenario, scenarios, settings, arm, number))
                _keep(path, results[-1])
    progress("done", 1.0)
    return results


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


def _run(
    world: World, scenario: Scenario, scenarios: Scenarios, settings: StudySettings, arm: str, seed: int
) -> RunResult:
    loop = loop_settings(scenarios, settings, arm)
    if scenario.judge_error:
        # Twice in a run whatever the alarms say, so that the gate has something to be fooled by.
        loop = msgspec.structs.replace(loop, retrain_every=scenarios.common.requests_per_day * 3)
    return run(world, scenario, scenarios.common, loop, arm=arm, seed=seed, tier_1_share=settings.tier_1_share)


def _file_name(settings: StudySettings, name: str, arm: str, seed: int) -> str:
    varied = f"-{settings.tier_1_share:g}-{settings.false_alarm_every:g}{'-taught' if settings.teacher else ''}"
    return f"{name}-{arm}{varied}-{seed}.json"


def _keep(path: Path, result: RunResult) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(msgspec.json.encode(result))
    unfinished.replace(path)
