"""Contiguous allocation: first fit, no address twice, and holes that join."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from benchmarks.core.contiguous_cache import ContiguousArena
from tests.examples import examples

CAPACITY = 40


class ContiguousAllocation(RuleBasedStateMachine):
    """Against a map of single addresses."""

    def __init__(self):
        super().__init__()
        self.arena = ContiguousArena(CAPACITY)
        self.cells = [None] * CAPACITY
        self.count = 0

    @rule(tokens=st.integers(1, CAPACITY))
    def reserve(self, tokens):
        fits = [at for at in range(CAPACITY - tokens + 1) if not any(self.cells[at : at + tokens])]
        owner = f"r{self.count}"
        self.count += 1
        assert self.arena.reserve(owner, tokens) == (fits[0] if fits else None)
        if fits:
            self.cells[fits[0] : fits[0] + tokens] = [owner] * tokens

    @precondition(lambda self: any(self.cells))
    @rule(data=st.data())
    def release(self, data):
        owner = data.draw(st.sampled_from(sorted({cell for cell in self.cells if cell})))
        self.arena.release(owner)
        self.cells = [None if cell == owner else cell for cell in self.cells]

    @invariant()
    def sizes_are_those_of_the_map(self):
        self.arena.check_integrity()
        assert self.arena.free == sum(cell is None for cell in self.cells)


TestContiguousAllocation = ContiguousAllocation.TestCase
TestContiguousAllocation.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_a_request_that_fits_in_all_free_memory_but_in_no_hole_is_refused():
    arena = ContiguousArena(30)
    for owner in "abc":
        arena.reserve(owner, 10)
    arena.release("a")
    arena.release("c")

    assert arena.free == 20
    assert arena.reserve("d", 11) is None


def test_an_owner_cannot_reserve_twice_nor_release_what_it_has_not():
    arena = ContiguousArena(10)
    arena.reserve("a", 1)

    with pytest.raises(ValueError, match="'a' asks for 2 tokens"):
        arena.reserve("a", 2)
    with pytest.raises(KeyError):
        arena.release("b")
