"""Does routing pay: the three verdicts, their errors under continuous looking, and the constant."""

from math import log

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quality.comparison.routing_worth import (
    LEVEL,
    Bounded,
    FixedTier,
    Probes,
    constant_of,
    gains_of,
    in_words,
    mix_weights,
    routing_worth,
    sums_of_gains,
)
from quality.statistics import log_evidence

PRICES = np.array([1.0, 5.0, 30.0])


def probes(n: int, skill: float, seed: int = 0, good: tuple[float, float] = (0.6, 0.8)) -> Probes:
    """A router that knows the cheapest good tier of a share `skill` of the prompts, and draws for the others."""
    rng = np.random.default_rng(seed)
    draw = rng.random(n)
    no_worse = np.column_stack([draw < good[0], draw < good[1], np.ones(n)]).astype(float)
    chosen = np.where(rng.random(n) < skill, no_worse.argmax(axis=1), rng.integers(3, size=n))
    return Probes(
        no_worse, np.tile(PRICES, (n, 1)), no_worse[np.arange(n), chosen], PRICES[chosen], np.full(n, PRICES[-1])
    )


def verdict_after_each(
    gains: npt.NDArray[np.floating], worth: float, weight: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return whether routing is found to pay [n], and not to pay [n], by `gains` [n, tiers + 1] up to each probe."""
    sums = [sums_of_gains(column, weight) for column in gains.T]
    supposed = worth / sums[0].scale * np.arange(1, len(gains) + 1)
    above = [log_evidence(one.total, one.variance) > log(1 / LEVEL) for one in sums]
    below = [log_evidence(supposed - one.total, one.variance) > log(len(sums) / LEVEL) for one in sums]
    pays = np.all(above, axis=0)
    return pays, np.any(below, axis=0) & ~pays


def test_a_router_that_knows_the_cheapest_good_tier_pays() -> None:
    found = routing_worth(probes(600, 1.0), target=0.7, worth=0.01)

    assert found.verdict == "pays"
    assert found.over_fixed.low > 0
    assert found.over_mix.low > 0
    assert found.constant is None
    assert found.missing == 0


def test_a_router_that_draws_its_tier_does_not_pay_and_nothing_dearer_is_proposed() -> None:
    found = routing_worth(probes(3000, 0.0), target=0.7, worth=0.01)

    assert found.verdict == "does_not_pay"
    assert found.over_fixed.high < 0.01
    # Tier 1 meets too little, tier 3 costs more.
    assert found.constant is not None
    assert found.constant.tier == 2
    assert found.constant.usd <= found.usd


def test_few_probes_decide_nothing_and_say_how_many_are_missing() -> None:
    found = routing_worth(probes(30, 0.5), target=0.7, worth=0.01)

    assert found.verdict == "not_known_yet"
    assert found.missing > 0
    assert f"about {found.missing:,} more" in in_words(found)


@pytest.mark.parametrize(("n", "told"), [(3, "3 probes are too few for an estimate"), (300, "points [")])
def test_an_interval_that_says_nothing_is_not_shown(n: int, told: str) -> None:
    found = routing_worth(probes(n, 0.01), target=0.7, worth=0.01)

    assert found.verdict == "not_known_yet"
    assert told in in_words(found)
    wide = msgspec.structs.replace(found, over_mix=Bounded(value=2.115, low=-15.06, high=19.29))
    assert "points [" not in in_words(wide)
    assert f"too few for an estimate; about {found.missing:,} more decide it" in in_words(wide)


def test_no_probes_are_refused() -> None:
    with pytest.raises(ValueError, match="no probes"):
        routing_worth(probes(0, 1.0), target=0.7, worth=0.01)


def test_the_gain_over_the_best_fixed_tier_is_the_least_gain() -> None:
    found = routing_worth(probes(200, 0.9), target=0.7, worth=0.01)

    assert found.over_fixed.value == min(one.gain.value for one in found.tiers)
    assert found.best_tier == min(found.tiers, key=lambda one: one.gain.value).tier
    assert found.over_fixed.high == min(one.gain.high for one in found.tiers)


def test_a_lottery_that_is_exactly_as_good_is_rarely_found_to_pay_by_looking_after_every_probe() -> None:
    """The hardest case: two tiers of equal utility, and a router that draws between them."""
    rng, said, runs = np.random.default_rng(11), 0, 300
    for _ in range(runs):
        no_worse = np.column_stack([rng.random(800) < 0.9, np.ones(800)]).astype(float)
        chosen = rng.integers(2, size=800)
        # Tier 2 costs a tenth of utility more than nothing: just what tier 1 lacks.
        prices = np.array([1e-9, 1.0])
        drawn = Probes(
            no_worse, np.tile(prices, (800, 1)), no_worse[np.arange(800), chosen], prices[chosen], np.ones(800)
        )
        said += bool(verdict_after_each(gains_of(drawn, 0.1), 0.01, 0.1)[0].any())
    assert said <= runs * LEVEL + 3 * (runs * LEVEL) ** 0.5


def test_a_gain_of_just_the_worth_is_rarely_found_not_to_pay() -> None:
    rng, denied, runs = np.random.default_rng(12), 0, 300
    for _ in range(runs):
        no_worse = np.column_stack([rng.random(800) < 0.9, np.ones(800)]).astype(float)
        # Utilities 0.9 and 0.9: sending up where tier 1 is worse gains 0.1 less the cost of a tenth, times the share.
        up = (no_worse[:, 0] == 0) & (rng.random(800) < 0.01 / 0.09)
        swapped = np.where(up, 1, 0)
        prices = np.array([1e-9, 1.0])
        drawn = Probes(
            no_worse, np.tile(prices, (800, 1)), no_worse[np.arange(800), swapped], prices[swapped], np.ones(800)
        )
        denied += bool(verdict_after_each(gains_of(drawn, 0.1), 0.01, 0.1)[1].any())
    assert denied <= runs * LEVEL + 3 * (runs * LEVEL) ** 0.5


def test_the_verdict_after_the_last_probe_is_that_of_the_bounds() -> None:
    for n, skill in ((600, 1.0), (3000, 0.0), (30, 0.5)):
        given = probes(n, skill)
        pays, pays_not = verdict_after_each(gains_of(given, 0.3), 0.01, 0.3)
        found = routing_worth(given, target=0.7, worth=0.01)
        assert (found.verdict == "pays") == bool(pays[-1])
        assert (found.verdict == "does_not_pay") == bool(pays_not[-1])


@given(seed=st.integers(0, 1000), cut=st.integers(1, 59))
def test_the_weights_of_the_mix_depend_on_earlier_probes_alone(seed: int, cut: int) -> None:
    some, others = probes(60, 0.5, seed), probes(60, 0.1, seed + 1)
    mixed = Probes(*(np.concatenate([ours[:cut], theirs[cut:]]) for ours, theirs in zip(some, others, strict=True)))

    weights = mix_weights(mixed)

    assert weights[: cut + 1] == pytest.approx(mix_weights(some)[: cut + 1])
    assert weights.sum(axis=1) == pytest.approx(np.ones(60))
    assert (weights >= -1e-12).all()


def test_the_mix_costs_what_routing_does() -> None:
    given = probes(4000, 0.6)

    costs = (mix_weights(given) * given.cost).sum(axis=1)

    assert costs[-1] == pytest.approx(given.routed_cost.mean(), rel=0.02)


def test_without_a_gain_over_the_mix_the_missing_probes_fall_as_probes_arrive() -> None:
    # The same hundred probes over and over: means and variances stay.
    block = probes(100, 0.35, 4)
    missing = []
    for times in (1, 2, 3, 4):
        repeated = Probes(*(np.concatenate([part] * times) for part in block))
        found = routing_worth(repeated, target=0.7, worth=0.01)
        missing.append(found.missing if found.verdict == "not_known_yet" else 0)
    assert missing[0] > 0
    assert missing == sorted(missing, reverse=True)


shares = st.floats(0.0, 1.0)


@given(
    tiers=st.lists(st.tuples(shares, shares, st.floats(-0.5, 0.5), st.floats(0.0, 2.0)), min_size=1, max_size=5),
    usd=st.floats(0.0, 2.0),
    target=shares,
)
def test_a_constant_never_costs_more_than_routing_nor_meets_less_than_the_target(
    tiers: list[tuple[float, float, float, float]], usd: float, target: float
) -> None:
    fixed = [
        FixedTier(
            tier=number,
            gain=Bounded(value=high - 0.1, low=high - 0.2, high=high),
            no_worse=Bounded(value=max(a, b), low=min(a, b), high=1.0),
            usd=price,
        )
        for number, (a, b, high, price) in enumerate(tiers, start=1)
    ]

    found = constant_of(fixed, usd, target, 0.01)

    fitting = [one for one in fixed if one.usd <= usd and one.no_worse.low >= target and one.gain.high < 0.01]
    assert (found is None) == (not fitting)
    if found is not None:
        assert found in fitting


def test_the_sentence_names_the_constant_with_its_cost_and_quality() -> None:
    found = routing_worth(probes(3000, 0.0), target=0.7, worth=0.01)
    assert found.constant is not None

    proposed, acting, off = (in_words(found, knob) for knob in ("propose", "act", "off"))

    assert "Routing does not pay here" in off
    assert "Tier" not in off.split("probes.")[-1]
    assert f"Alone, tier 2 costs ${found.constant.usd:.6f} a request instead of ${found.usd:.6f}" in proposed
    assert "constant=act lets it answer" in proposed
    named = in_words(found, "propose", {1: "small", 2: "medium", 3: "large"})
    assert "above that of medium alone, the best fixed tier" in named
    assert "Alone, medium costs" in named
    assert acting.endswith("it answers.")


def test_where_no_tier_meets_the_target_at_routings_cost_none_is_proposed() -> None:
    found = routing_worth(probes(3000, 0.0), target=0.95, worth=0.01)

    assert found.verdict == "does_not_pay"
    assert found.constant is None
    assert "so none is proposed" in in_words(found)
