"""The loop on replayed answers in its short form: a real gateway learns from a cold start, a broken loop does not."""

import msgspec
import pytest

from benchmarks.replay.checks import Check, checks
from benchmarks.replay.demo import demo
from benchmarks.replay.deployment import Conditions
from benchmarks.replay.plans import own_plans
from benchmarks.replay.timeline import RETRAINED, Life, Plan, live

pytestmark = pytest.mark.processes

# With half of them the healthy loop fails a check by chance now and then.
LABELS, FEW_LABELS = 150, 80


def short(prompts: int, labels: int) -> Plan:
    [plan] = own_plans(prompts, labels=labels, rounds=1, seed=0)
    return msgspec.structs.replace(plan, curve=False)


async def lived(prompts: int, conditions: Conditions, labels: int = FEW_LABELS) -> tuple[Life, dict[str, Check]]:
    life = await live(short(prompts, labels), conditions, until=RETRAINED)
    return life, {check.name: check for check in checks(life, labels)}


async def test_a_gateway_learns_from_labels_of_its_own_traffic_to_route_prompts_that_it_never_saw() -> None:
    """Request ids are random, and so is what is verified: about one run in twenty fails a check, both of two hardly."""
    for _ in range(2):
        _, found = await lived(450, Conditions(faster=1e4), LABELS)
        if all(check.passed for check in found.values()):
            return
    assert [check for check in found.values() if not check.passed] == []


async def test_shuffled_labels_fail_the_same_checks() -> None:
    _, found = await lived(240, Conditions(faster=1e4, labels_shuffled=True))
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
