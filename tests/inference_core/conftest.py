"""What the core's tests share: every instruction set of this machine in turn."""

from collections.abc import Iterator

import pytest

from inference_core.native import cpu

INSTRUCTION_SETS: list[str] = cpu.extension().instruction_sets() if cpu.AVAILABLE else []
PROMPT_KERNELS = ["amx-emulated", *(name for name in INSTRUCTION_SETS if name == "amx")] if cpu.AVAILABLE else []
SPAN_KERNELS = [name for name in INSTRUCTION_SETS if name in ("avx512", "avx512-bf16", "i8mm", "i8mm-bf16")]
ATTENTION_KERNELS = [*PROMPT_KERNELS, *(name for name in SPAN_KERNELS if name.endswith("-bf16"))]


@pytest.fixture(params=INSTRUCTION_SETS or [pytest.param("none", marks=pytest.mark.skip(reason="kernels not built"))])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once per instruction set, and leaves the best one in place."""
    cpu.extension().use_instruction_set(request.param)
    yield request.param
    cpu.extension().use_instruction_set(INSTRUCTION_SETS[0])


@pytest.fixture(params=PROMPT_KERNELS or [pytest.param("none", marks=pytest.mark.skip(reason="kernels not built"))])
def prompt_kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test with emulated tiles, and with real ones where this machine has them; then leaves the best kernels
    in place."""
    cpu.extension().use_instruction_set(request.param)
    yield request.param
    cpu.extension().use_instruction_set(INSTRUCTION_SETS[0])


@pytest.fixture(
    params=SPAN_KERNELS or [pytest.param("none", marks=pytest.mark.skip(reason="neither AVX-512 VNNI nor I8MM"))]
)
def span_kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test with the kernels that multiply prompts in spans; then leaves the best ones in place."""
    cpu.extension().use_instruction_set(request.param)
    yield request.param
    cpu.extension().use_instruction_set(INSTRUCTION_SETS[0])


@pytest.fixture(params=ATTENTION_KERNELS or [pytest.param("none", marks=pytest.mark.skip(reason="kernels not built"))])
def attention_kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """As `prompt_kernels`, and with dot products of bfloat16 where this machine has them."""
    cpu.extension().use_instruction_set(request.param)
    yield request.param
    cpu.extension().use_instruction_set(INSTRUCTION_SETS[0])
