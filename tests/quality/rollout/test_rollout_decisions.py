"""What a rollout does next, at the very bounds, and the rows of versions as their states change."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.artefact import default_artefact, load_manifest
from migrations.tables.quality import classifier_versions
from quality.comparison.live_arms import ArmAnswers, LiveComparison
from quality.comparison.paired_outcomes import Paired
from quality.rollout.rollout import Evidence, Rollout, RolloutSettings, decide_rollout
from quality.rollout.versions import ClassifierVersions
from tests.quality.loop_world import rows

STARTED = 1000.0
DAYS = 28 * 86_400
CANARY = Rollout(
    rollout_id="r", version="new", incumbent="old", stage="canary", share=0.1, settings=RolloutSettings(),
    evidence=None, created_at=STARTED,
)  # fmt: skip
WATCH = msgspec.structs.replace(CANARY, stage="watch")
AT_ONCE = msgspec.structs.replace(CANARY, share=0.0)
BY_HAND = msgspec.structs.replace(CANARY, settings=RolloutSettings(promotes=False))
SEEN = "{} probes (gain -0.0100, worse +0.0200, cost -0.0300)"
LIVE = {"new": ArmAnswers(answers=20, worse=0.25), "old": ArmAnswers(answers=80, worse=0.125)}


@pytest.mark.parametrize(
    ("rollout", "paired", "live_harm", "after", "act", "reason"),
    [
        # Harm on probes: half of the level of 5% for each kind of evidence, and 1% once promoted.
        (CANARY, {"harm": 40.0}, 1.0, 0, "roll back", f"worse than old on {SEEN.format(7)}; evidence 40"),
        (CANARY, {"harm": 39.9}, 1.0, 0, "go on", f"not enough evidence yet; {SEEN.format(7)}"),
        (WATCH, {"harm": 100.0}, 1.0, 0, "roll back", f"worse than old on {SEEN.format(7)}; evidence 100"),
        (WATCH, {"harm": 99.9}, 1.0, 0, "go on", f"no evidence of harm on {SEEN.format(7)}"),
        (AT_ONCE, {"harm": 40.0}, 1.0, 0, "roll back", f"worse than old on {SEEN.format(7)}; evidence 40"),
        # A watch ends after 500 probes, whatever else is known.
        (WATCH, {"probes": 499, "harmless": 99.0}, 99.0, DAYS, "go on", f"no evidence of harm on {SEEN.format(499)}"),
        (WATCH, {"probes": 500}, 1.0, 0, "keep", f"no evidence of harm on {SEEN.format(500)}"),
        (AT_ONCE, {}, 99.0, 0, "promote", "promoted at once; no share of the requests is set for canaries"),
        # Harm on served answers, of an operator's trial too.
        (CANARY, {}, 40.0, 0, "roll back",
         "25.0% of 20 verified answers were worse, 12.5% of 80 of old's; evidence 40"),
        (BY_HAND, {}, 40.0, 0, "roll back",
         "25.0% of 20 verified answers were worse, 12.5% of 80 of old's; evidence 40"),
        (CANARY, {}, 39.9, 0, "go on", f"not enough evidence yet; {SEEN.format(7)}"),
        (BY_HAND, {"probes": 900, "harmless": 99.0}, 1.0, DAYS, "go on", f"an operator's trial; {SEEN.format(900)}"),
        # Harmless, patient or late.
        (CANARY, {"harmless": 20.0}, 1.0, 0, "promote", f"loses less than 0.01 on {SEEN.format(7)}; evidence 20"),
        (CANARY, {"harmless": 19.9}, 1.0, 0, "go on", f"not enough evidence yet; {SEEN.format(7)}"),
        (CANARY, {"probes": 100}, 1.0, DAYS, "promote", f"no evidence of harm on {SEEN.format(100)}"),
        (CANARY, {"probes": 99}, 1.0, 0, "go on", f"not enough evidence yet; {SEEN.format(99)}"),
        (CANARY, {}, 1.0, DAYS, "end", f"no evidence in 28 days: {SEEN.format(7)}, 20 verified answers"),
        (CANARY, {}, 1.0, DAYS - 1, "go on", f"not enough evidence yet; {SEEN.format(7)}"),
    ],
)  # fmt: skip
def test_each_bound_is_reached_exactly(
    rollout: Rollout, paired: dict[str, Any], live_harm: float, after: float, act: str, reason: str
) -> None:
    found = Evidence(
        paired=Paired(**{"probes": 7, "gain": -0.01, "worse": 0.02, "cost": -0.03} | paired),
        live=LiveComparison(harm=live_harm, **LIVE),
    )
    said = decide_rollout(rollout, found, STARTED + after)
    assert (said.act, said.reason) == (act, reason)
    broken = decide_rollout(rollout, msgspec.structs.replace(found, broken="cut short"), STARTED)
    assert (broken.act, broken.reason) == ("roll back", "cut short")


def test_the_usual_settings_of_a_rollout() -> None:
    assert msgspec.structs.asdict(RolloutSettings()) == {
        "share": 0.1, "stop_level": 0.05, "rollback_level": 0.01, "promote_level": 0.05, "margin": 0.01,
        "live_margin": 0.05, "patience": 100, "watch_probes": 500, "days": 28.0, "promotes": True, "prior": [],
        "serving": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"share": 0.0}, {"share": -0.1}), ({"share": 0.99}, {"share": 1.0}), ({"days": 0.25}, {"days": 0.0}),
        ({"patience": 1}, {"patience": 0}), ({"watch_probes": 1}, {"watch_probes": 0}),
        *(({name: 0.01}, {name: 0.0}) for name in ("stop_level", "rollback_level", "promote_level", "margin")),
        *(({name: 0.99}, {name: 1.0}) for name in ("stop_level", "rollback_level", "promote_level", "live_margin")),
    ],
)  # fmt: skip
def test_settings_end_where_they_have_no_meaning(good: dict[str, Any], bad: dict[str, Any]) -> None:
    ((name, value),) = bad.items()
    RolloutSettings(**good)
    with pytest.raises(ValueError, match=f"{name} is {value}; it must"):
        RolloutSettings(**bad)


async def test_one_version_is_promoted_at_a_time_and_each_state_has_its_reason(engine: AsyncEngine) -> None:
    versions = ClassifierVersions(engine)
    manifest = msgspec.structs.replace(load_manifest(default_artefact()), version="v1", parent="v0")

    async def became(version: str, status: Any, now: float, **more: Any) -> None:
        async with engine.begin() as connection:
            await versions.became(connection, version, Path("/at") / version, status, f"is {status}", now, **more)

    async def stored(*names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in await rows(engine, classifier_versions)]

    await versions.ensure(manifest, Path("/at/v1"), 1.0)
    first = ("v1", "/at/v1", "promoted", "was serving when first seen", "v0", 1.0, 1.0, None)
    names = ("version", "path", "status", "reason", "parent", "created_at", "promoted_at", "retired_at")
    assert await stored(*names) == [first]
    assert await stored("metrics") == [({},)]
    await versions.ensure(manifest, Path("/elsewhere"), 2.0)
    assert await stored(*names) == [first], "it is known"

    await versions.trained("v2", Path("/at/v2"), "v1", 3.0)
    await versions.trained("v2", Path("/at/v3"), "v0", 4.0)
    candidate = ("v2", "/at/v2", "candidate", "trained, to be decided on", "v1", 3.0, None, None)
    assert await stored(*names) == [first, candidate]
    await became("v2", "promoted", 5.0, metrics={"gain": 1.0})
    assert await stored("version", "status", "promoted_at", "retired_at") == [
        ("v1", "retired", 1.0, 5.0), ("v2", "promoted", 5.0, None)
    ]  # fmt: skip
    assert await stored("parent") == [("v0",), ("v1",)]
    assert (await stored("metrics"))[1] == ({"gain": 1.0},)

    async with engine.begin() as connection:
        assert await versions.why_rolled_back(connection, "v2") is None
        await versions.first_seen(connection, "v2", Path("/at/v2"), 6.0)
        await versions.first_seen(connection, "v3", Path("/at/v3"), 6.0)
    assert await stored("version", "status", "retired_at") == [
        ("v1", "retired", 5.0), ("v2", "retired", 6.0), ("v3", "promoted", None)
    ]  # fmt: skip
    await became("v2", "rolled_back", 7.0)
    await became("v3", "refused", 8.0)
    assert await stored("version", "status", "retired_at") == [
        ("v1", "retired", 5.0), ("v2", "rolled_back", 7.0), ("v3", "refused", None)
    ]  # fmt: skip
    async with engine.begin() as connection:
        assert await versions.why_rolled_back(connection, "v2") == "is rolled_back"
        assert await versions.why_rolled_back(connection, "v3") is None
    await versions.ensure(manifest, Path("/at/v1"), 9.0)
    assert (await stored(*names))[0] == (
        "v1", "/at/v1", "promoted", "serves though it was retired", "v0", 1.0, 9.0, None
    )  # fmt: skip
