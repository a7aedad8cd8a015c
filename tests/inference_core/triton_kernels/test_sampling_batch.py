"""A step's sample specs as flat arrays: every touched token once per row, the rest untouched."""

import math
from typing import Any

import pytest

from inference_core.errors import InvalidRequestError
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec
from inference_core.triton_kernels.sampling_batch import draw_laws, logit_edits


def spec(prompt: list[int], output: list[int], eos: tuple[int, ...] = (), **params: Any) -> SampleSpec:
    return SampleSpec(SamplingParams(**params), prompt, output, 3, len(output), eos)


def test_rows_that_nothing_edits_need_no_arrays() -> None:
    assert logit_edits([spec([1, 2], [3]), spec([1], [], temperature=0, top_k=4)], 10) is None


def test_every_touched_token_is_named_once_with_all_that_touches_it() -> None:
    edits = logit_edits(
        [
            spec([1], [2]),
            spec([1, 4, 4], [4, 5, 5], (7,), repetition_penalty=1.5, logit_bias={5: 2.0, 6: 1.0}, min_tokens=9),
        ],
        10,
    )
    assert edits is not None
    assert edits.start.tolist() == [0, 0, 5]
    named = zip(edits.token_ids.tolist(), edits.bias.tolist(), edits.uses.tolist(), strict=True)
    assert sorted(named) == [(1, 0.0, 0), (4, 0.0, 1), (5, 2.0, 2), (6, 1.0, -1), (7, -math.inf, -1)]


def test_penalties_on_the_output_do_not_touch_the_prompt() -> None:
    edits = logit_edits([spec([1, 2, 3], [8], presence_penalty=1.0)], 10)
    assert edits is not None
    assert edits.token_ids.tolist() == [8]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"logit_bias": {10: 1.0}}, "logit_bias"),
        ({"min_tokens": 3, "stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_a_token_outside_the_vocabulary_is_named(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"in {param} is not in the vocabulary"):
        logit_edits([spec([1], [2], **given)], 10)


def test_seeds_are_kept_modulo_two_to_the_64() -> None:
    specs = [SampleSpec(SamplingParams(), [], [], seed, 0, ()) for seed in (-1, 2**64 - 1, 2**64 + 3, 2**63)]
    assert draw_laws(specs).seed.tolist() == [-1, -1, 3, -(2**63)]
