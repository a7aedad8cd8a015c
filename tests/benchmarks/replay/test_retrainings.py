"""Repeated retrainings on drawn labels: labels that tell something are promoted, shuffled ones are not."""

import pytest

from benchmarks.replay.own_prompts import own_prompts
from benchmarks.replay.retrainings import Drawn, drawn_lines, retrained


@pytest.mark.processes
async def test_labels_of_prompts_that_differ_are_promoted_and_the_oracle_sees_their_gain() -> None:
    drawn = await retrained(own_prompts(700, seed=0), 3, 300, 0.08)
    # The gate may miss a gain by chance, as labels are few and some of them wrong.
    assert any(one.promoted for one in drawn)
    assert all(one.has_gain for one in drawn)
    assert len({one.over_rates for one in drawn}) == 3


@pytest.mark.processes
async def test_labels_of_other_prompts_are_refused_and_the_oracle_sees_no_gain() -> None:
    drawn = await retrained(own_prompts(700, seed=0), 2, 300, 0.08, shuffled=True)
    assert [(one.promoted, one.has_gain) for one in drawn] == [(False, False)] * 2


def test_promotions_are_counted_apart_by_what_the_oracle_says() -> None:
    said = drawn_lines([Drawn(True, True, 4.0, 2.0), Drawn(False, True, 4.0, 1.0), Drawn(True, False, 3.0, -1.0)])
    assert "promoted 2 of 3: 66.7%" in said
    assert "a gain: 1 promoted, 1 refused; error below the incumbent's +4.00, the rates' +1.50" in said
    assert "no gain: 1 promoted, 0 refused; error below the incumbent's +3.00, the rates' -1.00" in said
