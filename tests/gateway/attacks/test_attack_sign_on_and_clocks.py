"""What sign-in providers answer lets no stranger in, and a clock that jumps gives no budget, limit or key again."""

import pytest

from tests.gateway.attacks.short_run import found_by_attacks

pytestmark = pytest.mark.processes


def test_answers_of_providers_and_jumps_of_the_clock_find_nothing() -> None:
    assert found_by_attacks("sign-on", "clock", inputs=80) == ""
