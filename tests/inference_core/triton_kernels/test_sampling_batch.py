"""A sequence's sample spec as rows of tables: every touched token once, the rest untouched."""

import math
from typing import Any

import pytest
import torch

from inference_core.device.sampling import (
    EditTables,
    is_penalised,
    row_bias,
    row_uses,
)
from inference_core.device.step_inputs import param_columns
from inference_core.errors import InvalidRequestError
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec


def spec(prompt: list[int], output: list[int], eos: tuple[int, ...] = (), **params: Any) -> SampleSpec:
    return SampleSpec(SamplingParams(**params), prompt, output, 3, len(output), eos)


def test_a_token_below_the_least_length_is_masked_whatever_its_bias() -> None:
    given = spec([1], [4], (7,), logit_bias={5: 2.0, 7: 1.0}, min_tokens=2, stop_token_ids=(8,))
    assert row_bias(given, 10) == {5: 2.0, 7: -math.inf, 8: -math.inf}
    given.position = 2
    assert row_bias(given, 10) == {5: 2.0, 7: 1.0}


def test_uses_count_the_output_and_mark_the_prompt_once() -> None:
    uses = row_uses(spec([1, 4, 4], []), [4, 5, 5], 10)
    assert uses.tolist() == [0, 1, 0, 0, 2 + 1, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_each_penalty_makes_the_law_depend_on_what_was_drawn(name: str) -> None:
    assert is_penalised(SamplingParams(**{name: 0.5}))
    assert not is_penalised(SamplingParams(logit_bias={1: 2.0}, min_tokens=3))


def test_a_row_forgets_the_biases_of_the_sequence_before() -> None:
    tables = EditTables.empty(2, 4, 10, torch.device("cpu"))
    tables.set_bias(1, {3: 1.0, 4: 2.0})
    tables.set_bias(1, {9: -math.inf})
    assert tables.num_biased.tolist() == [0, 1]
    assert (int(tables.token_ids[1, 0]), float(tables.bias[1, 0])) == (9, -math.inf)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"logit_bias": {10: 1.0}}, "logit_bias"),
        ({"min_tokens": 3, "stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_a_token_outside_the_vocabulary_is_named(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"in {param} is not in the vocabulary"):
        row_bias(spec([1], [2], **given), 10)


def test_seeds_are_kept_modulo_two_to_the_64() -> None:
    specs = [SampleSpec(SamplingParams(), [], [], seed, 0, ()) for seed in (-1, 2**64 - 1, 2**64 + 3, 2**63)]
    assert param_columns(specs)["seed"] == [-1, -1, 3, -(2**63)]
