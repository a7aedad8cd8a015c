"""The model of a seal is known for a while, by digests, and it alone reads what it sealed."""

from tests.support.clock import Clock
from tiers.conversation import Opaque, Turn
from tiers.dialects.seal_registry import SealRegistry


def test_a_seal_is_its_first_models() -> None:
    seals = SealRegistry()
    seals.note("seal", "anthropic/a")
    seals.note("seal", "anthropic/b")
    assert seals.may_read("seal", "anthropic/a", is_only=False)
    assert not seals.may_read("seal", "anthropic/b", is_only=True)


def test_an_unknown_seal_is_read_by_an_only_model() -> None:
    seals = SealRegistry()
    assert seals.may_read("seal", "anthropic/a", is_only=True)
    assert not seals.may_read("seal", "anthropic/a", is_only=False)


def test_seals_are_forgotten_by_number_and_by_time() -> None:
    clock = Clock(0.0)
    seals = SealRegistry(most=2, seconds=10, clock=clock)
    for seal in ("one", "two", "three"):
        seals.note(seal, "m")
    assert (len(seals), seals.may_read("one", "m", is_only=False)) == (2, False)
    assert seals.may_read("three", "m", is_only=False)
    clock.now = 11
    assert not seals.may_read("three", "m", is_only=False)


def test_what_nothing_seals_stays() -> None:
    said = [Opaque("messages", b"{}", "thinking", "seal"), Opaque("messages", b"[]", "text")]
    read = SealRegistry()._readable(Turn.of("assistant", opaque=said), "messages", "m", is_only=False)
    assert read.opaque == (said[1],)
