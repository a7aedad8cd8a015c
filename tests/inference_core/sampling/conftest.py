"""One way to write a sample spec in the sampler's tests."""

from collections.abc import Callable
from typing import Any

import pytest

from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec


def _spec(
    *,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    seed: int = 0,
    position: int | None = None,
    eos: tuple[int, ...] = (),
    **params: Any,
) -> SampleSpec:
    output = output or []
    return SampleSpec(
        params=SamplingParams(**params),
        prompt_token_ids=prompt or [],
        output_token_ids=output,
        seed=seed,
        position=len(output) if position is None else position,
        eos_token_ids=eos,
    )


@pytest.fixture(scope="session")
def spec() -> Callable[..., SampleSpec]:
    return _spec
