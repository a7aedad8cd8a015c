"""Which pair of tiers serves a client's sessions, by work that tiers finished."""

import numpy as np
import pytest

from quality.comparison.session_pairs import session_verdicts, session_ways
from quality.estimates.session_work import Work


def piece(tier: int, usd: float, good: bool, again: Work | None = None, client: str = "codex") -> Work:
    return Work(client=client, tier=tier, usd=usd, good=good, again=again)


def sessions(helped: float, count: int = 400) -> list[Work]:
    """Tier 1 ends well in 60 of 100, tier 3 in 90 at ten times the dollars, and in `helped` of what tier 1 failed."""
    made = []
    for place in range(count):
        if place % 5 < 3:
            made.append(piece(1, 0.01, True))
        else:
            made.append(piece(1, 0.01, False, piece(3, 0.1, place % 100 < 100 * helped)))
        if place % 2:
            made.append(piece(3, 0.1, place % 20 < 18))
    return made


def test_a_tier_that_makes_good_what_the_cheaper_one_failed_pays() -> None:
    (verdict,) = session_verdicts(sessions(0.9))
    assert verdict.decision is not None
    assert (verdict.decision.verdict, verdict.decision.first, verdict.decision.second) == ("pays", "tier 1", "tier 3")
    assert verdict.sentence.startswith("codex: tier 1, and tier 3 after a bad end, ends well ")


def test_a_tier_that_fails_what_the_cheaper_one_failed_does_not_pay() -> None:
    (verdict,) = session_verdicts(sessions(0.05))
    assert verdict.decision is not None
    assert verdict.decision.verdict == "does_not_pay"
    assert "no pair of tiers is shown to beat the best mix of single tiers" in verdict.sentence


def test_of_little_work_the_number_is_said_by_client() -> None:
    few = [piece(1, 0.01, True)] * 3
    other = [piece(1, 0.01, True, client="")] * 2
    one, two = session_verdicts(other + few)
    assert (one.client, one.work, one.decision) == ("codex", 3, None)
    assert (two.client, two.work) == ("", 2)
    assert two.sentence.startswith("Other tools: not known yet")


def test_the_values_of_a_way_have_the_mean_and_the_variance_of_its_estimate() -> None:
    work = sessions(0.5)
    found = session_ways(work)
    assert found is not None
    _, single, pairs, order = found
    assert order == [(0, 1)]
    on_first = [one for one in work if one.tier == 1]
    share = np.mean([one.good for one in on_first])
    assert single.resolved[:, 0].mean() == pytest.approx(share)
    assert single.resolved[:, 0].var() / len(work) == pytest.approx(share * (1 - share) / len(on_first))
    again = [one.again for one in on_first if one.again is not None]
    helped = (sum(one.good for one in again) + 1) / (len(again) + 2)
    assert pairs.resolved.mean() == pytest.approx(share + (1 - share) * helped, abs=0.01)
    assert pairs.usd.mean() == pytest.approx(0.01 + (1 - share) * 0.1)
