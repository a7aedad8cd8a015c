"""Who made which seal is known for a while, by digests, and only its maker reads what it seals."""

from tests.support.clock import Clock
from tiers.conversation import Opaque, Turn
from tiers.dialects.reasoning_makers import ReasoningMakers


def test_a_seal_is_its_first_makers() -> None:
    makers = ReasoningMakers()
    makers.note("seal", "anthropic/a")
    makers.note("seal", "anthropic/b")
    assert makers.may_read("seal", "anthropic/a", is_only=False)
    assert not makers.may_read("seal", "anthropic/b", is_only=True)


def test_an_unknown_seal_is_read_by_an_only_maker() -> None:
    makers = ReasoningMakers()
    assert makers.may_read("seal", "anthropic/a", is_only=True)
    assert not makers.may_read("seal", "anthropic/a", is_only=False)


def test_seals_are_forgotten_by_number_and_by_time() -> None:
    clock = Clock(0.0)
    makers = ReasoningMakers(most=2, seconds=10, clock=clock)
    for seal in ("one", "two", "three"):
        makers.note(seal, "m")
    assert (len(makers), makers.may_read("one", "m", is_only=False)) == (2, False)
    assert makers.may_read("three", "m", is_only=False)
    clock.now = 11
    assert not makers.may_read("three", "m", is_only=False)


def test_what_nothing_seals_stays() -> None:
    said = [Opaque("messages", b"{}", "thinking", "seal"), Opaque("messages", b"[]", "text")]
    read = ReasoningMakers()._readable(Turn.of("assistant", opaque=said), "messages", "m", is_only=False)
    assert read.opaque == (said[1],)
