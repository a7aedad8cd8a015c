"""The inputs of a step's draws besides the logits, as flat arrays for the device.

Biases and masks edit few logits of a row and are stored as lists of token ids; penalties edit many, so a table counts
the tokens of prompt and output. The remaining parameters are a few numbers per row (`draw_params`).
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


@dataclass(frozen=True, slots=True)
class EditTables:
    """The logit edits of up to N sequences, one row each.

    `token_ids` int32 and `bias` float32 [N, K]: the first `num_biased` int32 [N] entries of each row are used, with
    distinct ids; a bias of -inf masks its token. `uses` int32 [N, V]: twice a token's count in the output, plus one if
    it is in the prompt.
    """

    token_ids: torch.Tensor
    bias: torch.Tensor
    num_biased: torch.Tensor
    uses: torch.Tensor

    @classmethod
    def empty(cls, rows: int, most_biased: int, vocabulary: int, device: torch.device) -> "EditTables":
        """Tables without edits; N is `rows`, K is `most_biased`."""
        return cls(
            torch.zeros(rows, most_biased, dtype=torch.int32, device=device),
            torch.zeros(rows, most_biased, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, vocabulary, dtype=torch.int32, device=device),
        )

    def set_bias(self, row: int, bias: dict[int, float]) -> None:
        """Set the biases of a row."""
        # Copies from pageable memory are staged before these calls return, so they do not wait for a running step.
        count = len(bias)
        self.token_ids[row, :count].copy_(torch.tensor(list(bias), dtype=torch.int32), non_blocking=True)
        self.bias[row, :count].copy_(torch.tensor(list(bias.values()), dtype=torch.float32), non_blocking=True)
        self.num_biased[row].fill_(count)

    def set_uses(self, row: int, uses: NDArray[np.int32]) -> None:
        """Set the counts [V] of a row."""
        self.uses[row].copy_(torch.from_numpy(uses), non_blocking=True)


def is_penalised(params: SamplingParams) -> bool:
    """Whether earlier tokens change the distribution."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def row_bias(spec: SampleSpec, vocabulary: int) -> dict[int, float]:
    """The bias by token id, added before penalties; -inf for tokens that must not be drawn.

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
