"""Units are assigned to the arms of an experiment by their names alone (SPEC QM-11)."""

import msgspec
import pytest

from classifier.policy.experiment_split import Arm, Split

IDS = [f"chatcmpl-{number}" for number in range(4000)]


def split(experiment_id: str = "one", share: float = 0.2) -> Split:
    return Split(experiment_id=experiment_id, share=share, a=Arm(tier=1), b=Arm(tier=3))


def test_arms_are_halves_of_the_share_and_the_same_every_time() -> None:
    arms = [split().arm_of(one) for one in IDS]

    assert arms == [split().arm_of(one) for one in IDS]
    assert all(0.08 < arms.count(arm) / len(arms) < 0.12 for arm in ("a", "b"))


def test_two_experiments_split_independently() -> None:
    first, second = ([one for one in IDS if split(name).arm_of(one)] for name in ("one", "two"))

    assert 0.1 < len(set(first) & set(second)) / len(first) < 0.3


def test_all_requests_may_take_part() -> None:
    assert None not in {split(share=1.0).arm_of(one) for one in IDS}


def test_arms_without_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="a version or a tier"):
        Arm()
    with pytest.raises(ValueError, match="they must differ"):
        Split(experiment_id="x", share=0.1, a=Arm(tier=1), b=Arm(tier=1))
    with pytest.raises(ValueError, match="share is 0"):
        split(share=0.0)


def test_a_pseudonym_names_its_unit_in_one_experiment_only() -> None:
    one = {split("one").pseudonym(name) for name in IDS}

    assert len(one) == len(IDS)
    assert one.isdisjoint(split("two").pseudonym(name) for name in IDS)
    assert split("one").pseudonym("ann") == "55d0e4209ed418d8", "the same in every process"


def test_a_split_that_was_stored_before_there_were_units_goes_on_by_request() -> None:
    stored = {"experiment_id": "x", "share": 0.5, "a": {"tier": 1}, "b": {"tier": 2}}

    assert msgspec.convert(stored, Split).by == "request"


def test_an_arm_is_named_shown_and_listed_by_what_it_routes_to() -> None:
    versions = Split(experiment_id="x", share=0.5, a=Arm(version="v1"), b=Arm(tier=2))

    assert (versions.arm("a"), versions.arm("b")) == (Arm(version="v1"), Arm(tier=2))
    assert (str(versions.a), str(versions.b)) == ("version v1", "tier 2")
    assert (versions.tiers, split().tiers) == ([2], [1, 3])
    with pytest.raises(ValueError, match="a version or a tier"):
        Arm(version="v1", tier=2)
    with pytest.raises(ValueError, match=r"share is 1\.1"):
        split(share=1.1)


def test_the_lower_half_of_the_share_is_the_first_arms() -> None:
    half = split(share=0.5)
    for name in IDS[:200]:
        draw = int(half.pseudonym(name), 16) / 2**64
        assert half.arm_of(name) == ("a" if draw < 0.25 else "b" if draw < 0.5 else None)
