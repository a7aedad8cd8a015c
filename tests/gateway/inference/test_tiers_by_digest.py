"""Tiers by digest: exact among few, fair among many, in memory that is taken once."""

import hashlib
import tracemalloc

from gateway.inference.conversations import DIGEST_BYTES, TIERS_KEPT, TiersByDigest

LONG_AGO = 0.0


def digest(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=DIGEST_BYTES).digest()


def test_what_was_noted_last_is_found_and_only_the_newest_tiers() -> None:
    table = TiersByDigest(1000)
    table.note(1.0, digest(1), (4,))
    table.note(2.0, digest(1), (4, 2))
    table.note(3.0, digest(2), tuple(range(1, TIERS_KEPT + 3)))
    assert table.since(LONG_AGO, digest(1)) == (4, 2)
    assert table.since(LONG_AGO, digest(2)) == tuple(range(3, TIERS_KEPT + 3))
    assert table.since(LONG_AGO, digest(3)) == ()
    table.note(4.0, digest(2), (3,))
    assert table.since(LONG_AGO, digest(2)) == (3,), "nothing of what was longer before"
    assert table.noted_since(LONG_AGO) == 2


def test_what_was_noted_before_the_moment_is_not_found() -> None:
    table = TiersByDigest(1000)
    table.note(5.0, digest(1), (1,))
    table.note(7.0, digest(2), (2,))
    assert [table.since(7.0, digest(i)) for i in (1, 2)] == [(), (2,)]
    assert [table.noted_since(moment) for moment in (5.0, 7.0, 7.5)] == [2, 1, 0]


def test_the_longest_unnoted_makes_room_not_the_first_noted() -> None:
    table = TiersByDigest(3)
    for now, number in enumerate((1, 2, 3, 1, 4), start=1):
        table.note(float(now), digest(number), (number,))
    assert [table.since(LONG_AGO, digest(i)) for i in (1, 2, 3, 4)] == [(1,), (), (3,), (4,)]
    assert table.noted_since(LONG_AGO) == 3


def test_of_many_the_newest_are_all_there_and_the_long_gone_are_not() -> None:
    most = 4096
    table = TiersByDigest(most)
    for number in range(4 * most):
        table.note(float(number), digest(number), (1 + number % 4,))
    newest = range(4 * most - most // 4, 4 * most)
    assert all(table.since(LONG_AGO, digest(number)) == (1 + number % 4,) for number in newest)
    assert not any(table.since(LONG_AGO, digest(number)) for number in range(most))
    assert table.noted_since(LONG_AGO) == most, "every place is used"


def test_it_takes_its_memory_once() -> None:
    most = 4096
    digests = [digest(number) for number in range(5 * most)]
    tracemalloc.start()
    try:
        table = TiersByDigest(most)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for now, one in enumerate(digests):
            table.note(float(now), one, (1, 2, 3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < 34 * most
    assert peak - taken < most, "not a byte for each"
