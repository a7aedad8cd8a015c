"""What a step's draws depend on besides the logits, as flat arrays that a device can read.

A row of logits is edited at few places: biased, penalised and masked token ids. They are named once per row, so that
edits never meet, and flattened; the rest is a handful of numbers per row.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference_core.errors import InvalidRequestError
from inference_core.step_plan import SampleSpec

_MASK = (1 << 64) - 1
_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Edits [E] of all rows one after another; row r's are those from `start[r]` to `start[r + 1]`, ids distinct.

    `start` int32 [R + 1], `token_ids` int32, `bias` float32 (-inf masks the token), `uses` int32: how often the token
    is in the output, -1 where it is not even in the prompt. `repetition`, `presence`, `frequency`: float32 [R].
    """

    start: torch.Tensor
    token_ids: torch.Tensor
    bias: torch.Tensor
    uses: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True, slots=True)
class DrawLaws:
    """Per row of logits [R]: how its edited logits become a law, and which point of it is drawn.

    `temperature` (0 is greedy), `top_p` and `min_p` float64, `top_k` int32 (0 for all), `seed` and `position` int64.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor


def draw_laws(specs: Sequence[SampleSpec]) -> DrawLaws:
    """On the CPU; a runner copies them to its buffers."""
    params = [spec.params for spec in specs]
    return DrawLaws(
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float64),
        top_k=torch.tensor([min(max(p.top_k, 0), _INT32) for p in params], dtype=torch.int32),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float64),
        seed=torch.tensor([_as_int64(spec.seed) for spec in specs], dtype=torch.int64),
        position=torch.tensor([spec.position for spec in specs], dtype=torch.int64),
    )


def logit_edits(specs: Sequence[SampleSpec], vocabulary: int) -> LogitEdits | None:
    """On the CPU; None where no row is edited.

    Raises InvalidRequestError for a biased, stop or earlier token id outside the vocabulary.
    """
    rows = [_row_edits(spec, vocabulary) for spec in specs]
    if not any(rows):
        return None
    ids = [token_id for row in rows for token_id in row]
    edits = [edit for row in rows for edit in row.values()]
    params = [spec.params for spec in specs]

    def floats(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return LogitEdits(
        start=torch.from_numpy(np.cumsum([0, *map(len, rows)]).astype(np.int32)),
        token_ids=torch.tensor(ids, dtype=torch.int32),
        bias=floats([bias for bias, _ in edits]),
        uses=torch.tensor([uses for _, uses in edits], dtype=torch.int32),
        repetition=floats([p.repetition_penalty for p in params]),
        presence=floats([p.presence_penalty for p in params]),
        frequency=floats([p.frequency_penalty for p in params]),
    )


def _row_edits(spec: SampleSpec, vocabulary: int) -> dict[int, tuple[float, int]]:
    """Token id -> (bias, uses) wherever the row is touched."""
    params = spec.params
    bias, uses = dict(params.logit_bias), Counter[int]()
    _check(bias, vocabulary, "logit_bias")
    seen: set[int] = set()
    if params.repetition_penalty != 1.0:
        seen.update(spec.prompt_token_ids)
        _check(seen, vocabulary, "prompt_token_ids")
    if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
        uses.update(spec.output_token_ids)
        _check(uses, vocabulary, "output_token_ids")
    if spec.position < params.min_tokens:
        _check(spec.eos_token_ids, vocabulary, "eos_token_ids")
        _check(params.stop_token_ids, vocabulary, "stop_token_ids")
        bias |= dict.fromkeys((*spec.eos_token_ids, *params.stop_token_ids), -math.inf)
    touched = bias.keys() | seen | uses.keys()
    return {i: (bias.get(i, 0.0), uses.get(i, 0 if i in seen else -1)) for i in touched}


def _check(ids: Sequence[int] | set[int] | dict[int, float] | Counter[int], vocabulary: int, param: str) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocabulary:
            raise InvalidRequestError(
                f"token id {token_id} in {param} is not in the vocabulary (0..{vocabulary - 1})", param
            )


def _as_int64(seed: int) -> int:
    seed &= _MASK
    return seed - (1 << 64) if seed >> 63 else seed
