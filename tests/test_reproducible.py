"""Two runs of the test suite draw the same numbers, unless others are requested."""

import os
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples


def drawn() -> list[int]:
    """The examples of a property test."""
    found: list[int] = []

    @given(st.integers())
    def note(number: int) -> None:
        found.append(number)

    note()
    return found


@pytest.mark.skipif("HYPOTHESIS_PROFILE" in os.environ, reason="a profile that draws others each time was asked for")
def test_property_tests_draw_the_same_examples_each_time() -> None:
    assert drawn() == drawn()
    assert examples(25) == 25


@pytest.fixture(scope="module")
def shared() -> float:
    return random.random()


def test_the_shared_generator_is_seeded_by_the_tests_name_before_its_fixtures_are_made(
    request: pytest.FixtureRequest, shared: float
) -> None:
    expected = random.Random(zlib.crc32(request.node.nodeid.encode()))
    assert [shared, random.random()] == [expected.random(), expected.random()]
