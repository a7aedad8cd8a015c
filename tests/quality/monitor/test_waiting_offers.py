"""What waits for the monitor's decision: in order, bounded in number and bytes, with the calls that failed."""

import msgspec
import pytest

from quality.monitor import worker
from quality.monitor.worker import FailedCall, Offer, Offers
from quality.verification.job import Exchange
from tests.quality.loop_world import record
from tiers.conversation import Call


def offer(request_id: str, *, size: int = 0, calls: tuple[str, ...] = (), key_id: str | None = "alice") -> Offer:
    made = tuple(Call(id=one, name="f", arguments="") for one in calls)
    served = msgspec.structs.replace(record(request_id), key_id=key_id)
    return Offer(served, turn=Exchange(messages=(), text="x" * size, calls=made) if size or calls else None)


def taken(waiting: Offers) -> list[str]:
    names = []
    while (first := waiting.first()) is not None:
        names.append(f"failed {first.request_id}" if isinstance(first, FailedCall) else first.record.request_id)
        waiting.done()
    return names


def test_offers_leave_in_the_order_in_which_they_came_and_beyond_their_number_none_is_let_in() -> None:
    waiting = Offers(2)
    assert [waiting.add(offer(name)) for name in ("a", "b", "c")] == [True, True, False]
    assert len(waiting) == 2
    assert waiting.first() is waiting.first()
    assert taken(waiting) == ["a", "b"]
    assert (len(waiting), waiting.first()) == (0, None)
    assert waiting.add(offer("d"))


def test_their_bytes_are_bounded_but_one_of_any_size_may_wait_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_BYTES", 10)
    waiting = Offers(9)
    assert waiting.add(offer("text alone"))
    assert [waiting.add(offer(name, size=size)) for name, size in (("a", 6), ("b", 4), ("c", 1))] == [True, True, False]
    waiting.done()
    waiting.done()
    assert [waiting.add(offer(name, size=size)) for name, size in (("d", 6), ("e", 1))] == [True, False]
    assert taken(waiting) == ["b", "d"]
    assert waiting.add(offer("large", size=99))
    assert not waiting.add(offer("f", size=1))
    waiting.clear()
    assert (len(waiting), waiting.first()) == (0, None)
    assert waiting.add(offer("again", size=99))


def test_a_call_that_failed_is_noted_once_after_the_answer_that_made_it_and_for_its_own_key() -> None:
    waiting = Offers(9)
    waiting.add(offer("a", calls=("1", "2")))
    waiting.calls_failed("bob", ["1"])
    waiting.calls_failed("alice", ["2", "unknown"])
    waiting.calls_failed("alice", ["2"])
    assert taken(waiting) == ["a", "failed a"]
    waiting.calls_failed("alice", ["1"])
    assert taken(waiting) == ["failed a"], "it was decided on already"


def test_the_newest_calls_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_MOST_CALLS", 2)
    waiting = Offers(9)
    waiting.add(offer("a", calls=("1", "2")))
    waiting.add(offer("b", calls=("3",)))
    waiting.calls_failed("alice", ["1", "2", "3"])
    assert taken(waiting) == ["a", "b", "failed a", "failed b"]


def test_a_failed_call_takes_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_BYTES", 10)
    waiting = Offers(9)
    waiting.add(offer("a", calls=("1",)))
    waiting.calls_failed("alice", ["1"])
    assert taken(waiting) == ["a", "failed a"]
    assert [waiting.add(offer(name, size=size)) for name, size in (("b", 10), ("c", 1))] == [True, False]
