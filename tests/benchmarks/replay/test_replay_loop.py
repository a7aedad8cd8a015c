"""The loop on replayed answers in its short form: a real gateway learns from a cold start, a broken loop does not."""

import msgspec
import pytest

from benchmarks.replay.checks import Check, checks
from benchmarks.replay.demo import demo
from benchmarks.replay.deployment import Conditions
from benchmarks.replay.plans import own_plans
from benchmarks.replay.timeline import RETRAINED, Life, Plan, live

pytestmark = pytest.mark.processes

# The gate refuses about one of seven versions for too few labels, so that there are two.
LABELS, ROUNDS, FEW_LABELS = 150, 2, 80
# Request ids are random, and so is what is verified: about one life in twenty fails a check, all of these hardly.
LIVES = 4


def short(prompts: int, labels: int, rounds: int = 1) -> Plan:
    [plan] = own_plans(prompts, labels=labels, rounds=rounds, seed=0)
    return msgspec.structs.replace(plan, curve=False)


async def lived(
    prompts: int, conditions: Conditions, labels: int = FEW_LABELS, rounds: int = 1
) -> tuple[Life, dict[str, Check]]:
    life = await live(short(prompts, labels, rounds), conditions, until=RETRAINED)
    return life, {check.name: check for check in checks(life, rounds * labels)}


@pytest.mark.timeout(900)
async def test_a_gateway_learns_from_labels_of_its_own_traffic_to_route_prompts_that_it_never_saw() -> None:
    for _ in range(LIVES):
        _, found = await lived(1000, Conditions(faster=1e4), LABELS, ROUNDS)
        if all(check.passed for check in found.values()):
            return
    assert [check for check in found.values() if not check.passed] == []


async def test_shuffled_labels_fail_the_same_checks() -> None:
    _, found = await lived(400, Conditions(faster=1e4, labels_shuffled=True))
    assert found["answers were verified"].passed
    # One candidate in forty gets past the gate by chance; it is then the routing that is no better.
    assert not all(check.passed for check in found.values())


async def test_without_verification_nothing_is_learned_and_the_same_checks_fail() -> None:
    life, found = await lived(50, Conditions(faster=1e4, verification=False))
    assert life.looks[-1].tiers == life.looks[0].tiers
    assert [run.reason for run in life.retrainings] == ["no verified outcome to train on is stored"]
    failed = [name for name, check in found.items() if not check.passed]
    assert failed[:2] == ["answers were verified", "a retrained version was promoted"]


@pytest.mark.slow
async def test_the_demonstration_ends_in_a_success() -> None:
    said: list[str] = []
    assert await demo(said.append), "\n".join(said)
    assert any(line.startswith("SUCCESS") for line in said)
