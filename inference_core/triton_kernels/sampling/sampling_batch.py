"""What a step's draws depend on besides the logits, as flat arrays that a device can read.

A row of logits is edited at few places by biases and masks, which are named, and at more by penalties, for which a
table counts what is in prompt and output; the rest is a handful of numbers per row.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.errors import InvalidRequestError
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampleSpec
from inference_core.triton_kernels.sampling.draw_params import PARAM_FIELDS, param_columns


@dataclass(frozen=True, slots=True)
class EditTables:
    """What edits the logits of up to N sequences, a row each.

    `token_ids` int32 and `bias` float32 [N, K]: of each row the first `num_biased` int32 [N] count, with distinct ids;
    a bias of -inf masks its token. `uses` int32 [N, V]: twice how often a token is in the output, plus one if it is in
    the prompt.
    """

    token_ids: torch.Tensor
    bias: torch.Tensor
    num_biased: torch.Tensor
    uses: torch.Tensor

    @classmethod
    def empty(cls, rows: int, most_biased: int, vocabulary: int, device: torch.device) -> "EditTables":
        """N and K are `rows` and `most_biased`; nothing is edited."""
        return cls(
            torch.zeros(rows, most_biased, dtype=torch.int32, device=device),
            torch.zeros(rows, most_biased, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, vocabulary, dtype=torch.int32, device=device),
        )

    def set_bias(self, row: int, bias: dict[int, float]) -> None:
        """A row's biases from now on."""
        # From pageable memory, which is staged before these calls return: they wait for no step under way.
        count = len(bias)
        self.token_ids[row, :count].copy_(torch.tensor(list(bias), dtype=torch.int32), non_blocking=True)
        self.bias[row, :count].copy_(torch.tensor(list(bias.values()), dtype=torch.float32), non_blocking=True)
        self.num_biased[row].fill_(count)

    def set_uses(self, row: int, uses: NDArray[np.int32]) -> None:
        """A row's counts [V]."""
        self.uses[row].copy_(torch.from_numpy(uses), non_blocking=True)


@dataclass(frozen=True, slots=True)
class DrawParams:
    """Per row of logits [R]: how its edited logits become a law, and which point of it is drawn.

    `temperature` (0 is greedy), `top_p` and `min_p` float64, `top_k` int32 (0 for all), `seed` and `position` int64.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor


def draw_params(specs: Sequence[SampleSpec]) -> DrawParams:
    """On the CPU; a runner copies them to its buffers."""
    columns = param_columns(specs)
    return DrawParams(*(torch.from_numpy(np.array(columns[name], dtype)) for name, dtype in PARAM_FIELDS))


def is_penalised(params: SamplingParams) -> bool:
    """Whether what was drawn before changes the law."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def row_bias(spec: SampleSpec, vocabulary: int) -> dict[int, float]:
    """What is added to which logits before they are penalised; -inf where the token may not be drawn.

    Raises InvalidRequestError for a biased or stop token id outside the vocabulary.
    """
    params = spec.params
    bias = dict(params.logit_bias)
    _check(bias, vocabulary, "logit_bias")
    if spec.position < params.min_tokens:
        _check(spec.eos_token_ids, vocabulary, "eos_token_ids")
        _check(params.stop_token_ids, vocabulary, "stop_token_ids")
        bias |= dict.fromkeys((*spec.eos_token_ids, *params.stop_token_ids), -math.inf)
    return bias


def row_uses(spec: SampleSpec, outputs: Sequence[int], vocabulary: int) -> NDArray[np.int32]:
    """A row of `EditTables.uses` with these `outputs`. Raises InvalidRequestError for an id outside the vocabulary."""
    _check(spec.prompt_token_ids, vocabulary, "prompt_token_ids")
    _check(outputs, vocabulary, "output_token_ids")
    uses = 2 * np.bincount(np.array(outputs, np.int64), minlength=vocabulary).astype(np.int32)
    uses[spec.prompt_token_ids] += 1
    return uses


def _check(ids: Collection[int], vocabulary: int, param: str) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocabulary:
            raise InvalidRequestError(
                f"token id {token_id} in {param} is not in the vocabulary (0..{vocabulary - 1})", param
            )
