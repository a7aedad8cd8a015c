"""Two days of keys with small budgets and without `max_tokens`: few are refused before the budgets are spent."""

from pathlib import Path

import pytest

from tests.gateway.tenancy.budget_days import BUDGETS_USD, ENOUGH, Days, is_refused, two_days

pytestmark = pytest.mark.processes


async def test_keys_with_small_budgets_are_refused_once_they_are_spent(tmp_path: Path) -> None:
    days = await two_days(tmp_path)

    assert days.servers is not None
    assert days.servers.unlimited == 0
    assert len(days.log) > 300
    early = [days.early(key, day) for key in BUDGETS_USD for day in (1, 2)]
    asked, refused = map(sum, zip(*early, strict=True))
    assert refused <= 0.01 * asked, list(days.table())
    for key, usd in BUDGETS_USD.items():
        for day in (1, 2):
            assert ENOUGH * usd < days.spent_usd(key, day) <= usd, (key, day)
    assert days.over_usd <= 0
    assert days.servers.usd == pytest.approx(sum(one.cost_usd for one in days.log), rel=1e-6)
    assert days.refusals_counted == refusals_of(days)
    assert days.servers.cut < 0.05 * days.servers.answers


def refusals_of(days: Days) -> dict[str, int]:
    return {key: sum(is_refused(one) for one in days.log if one.key == key) for key in BUDGETS_USD}
