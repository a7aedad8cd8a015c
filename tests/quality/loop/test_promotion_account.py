"""Promotions stop when they have added their share of the day's serving cost, and go on when that is long ago."""

import pytest

from quality.promotion_account import PromotionAccount

HOUR = 3600.0


def test_nothing_may_be_added_before_anything_was_served() -> None:
    assert not PromotionAccount().admits(0.1, 0.0)


def test_promotions_are_admitted_until_their_share_is_spent() -> None:
    account = PromotionAccount()
    for request in range(100):
        account.book(1.0, 5.0 if account.admits(0.1, HOUR) else 0.0, HOUR + request)
    # One promotion is admitted while the share is not spent yet: it may pass it by itself, and no more follows.
    assert 10.0 <= account.extra_usd <= 0.1 * account.serving_usd + 5.0
    assert not account.admits(0.1, 2 * HOUR)
    assert account.admits(0.3, 2 * HOUR)
    assert not account.admits(0.0, 2 * HOUR)


def test_a_day_later_it_counts_no_more() -> None:
    account = PromotionAccount()
    account.book(10.0, 5.0, HOUR)
    account.book(10.0, 0.0, 20 * HOUR)
    assert not account.admits(0.1, 24 * HOUR)
    assert account.admits(0.1, 25.5 * HOUR)
    assert (account.serving_usd, account.extra_usd) == pytest.approx((10.0, 0.0))
