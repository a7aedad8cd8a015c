"""Fixtures of the core's tests: every instruction set of this machine in turn."""

from collections.abc import Iterator

import pytest

from inference_core.native import cpu

INSTRUCTION_SETS: list[str] = cpu.extension().instruction_sets() if cpu.AVAILABLE else []


@pytest.fixture(params=INSTRUCTION_SETS or [pytest.param("none", marks=pytest.mark.skip(reason="kernels not built"))])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once per instruction set, and leaves the best one in place."""
    cpu.extension().use_instruction_set(request.param)
    yield request.param
    cpu.extension().use_instruction_set(INSTRUCTION_SETS[0])
