"""Draws next tokens from logits, row by row, so that a request's tokens never depend on its neighbours.

On the CPU the native sampler draws all rows in one call; elsewhere, or without it, `reference_sampler` does. Both draw
the same tokens with the same log-probabilities.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from inference_core.errors import BadLogitsError
from inference_core.grammar.masks import TokenMasks
from inference_core.native import cpu
from inference_core.sampling import native_sampler
from inference_core.sampling.reference_sampler import Logits, distribution, sample_row, token_logprob, uniform
from inference_core.step_plan import SampledToken, SampleSpec

__all__ = ["distribution", "sample", "uniform"]


def sample(
    logits: torch.Tensor,
    specs: Sequence[SampleSpec],
    *,
    native: bool | None = None,
    masks: TokenMasks | None = None,
) -> list[SampledToken]:
    """Draw one token per row of `logits` [R, V] float32 (any device, read only but for `masks`); `specs` has length R.

    Order of application as in `SamplingParams`. `native` demands or forbids the native sampler; by default it serves
    where it can. `masks` are applied first, in place: what they forbid is -inf to everything but log-probabilities.
    Raises `BadLogitsError` naming the rows that hold NaN or +inf, or where every token is masked (-inf),
    and `InvalidRequestError` for a biased or stop token id outside the vocabulary.
    """
    if not specs:
        return []
    logits = logits.detach()
    rows = len(logits)
    if rows != len(specs):
        raise ValueError(f"{rows} rows of logits for {len(specs)} sample specs; give one spec per row")
    if masks is None:
        return _drawn(logits, specs, native)
    # Masks are made on the host; the rows of other devices that need it come here anyway.
    logits = logits.float().cpu()
    raw = mask_rows(logits.numpy(), masks, [row for row, spec in enumerate(specs) if spec.params.logprobs is not None])
    tokens = _drawn(logits, [_without_logprobs(s) if row in raw else s for row, s in enumerate(specs)], native)
    for row, unmasked in raw.items():
        token_id, count = tokens[row].token_id, specs[row].params.logprobs
        assert count is not None
        tokens[row] = SampledToken(token_id, token_logprob(unmasked, token_id, count))
    return tokens


def mask_rows(logits: Logits, masks: TokenMasks, keep: Sequence[int] = ()) -> dict[int, Logits]:
    """Set what `masks` forbid in `logits` [R, V] to -inf; the rows among `keep` as they were before."""
    kept: dict[int, Logits] = {}
    for row, mask in masks.wait().items():
        if row in keep:
            kept[row] = logits[row].copy()
        mask.apply(logits[row])
    return kept


def _without_logprobs(spec: SampleSpec) -> SampleSpec:
    """The same draw; log-probabilities of a masked row are not those of the model."""
    return msgspec.structs.replace(spec, params=msgspec.structs.replace(spec.params, logprobs=None))


def _drawn(logits: torch.Tensor, specs: Sequence[SampleSpec], native: bool | None) -> list[SampledToken]:
    if native if native is not None else (cpu.AVAILABLE and logits.device.type == "cpu"):
        tokens = native_sampler.sample_rows(logits, specs)
    else:
        tokens = _sample_rows(logits, specs)
    if None in tokens:
        raise BadLogitsError([row for row, token in enumerate(tokens) if token is None], logits.shape[1])
    return tokens  # type: ignore[return-value]


def _sample_rows(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[SampledToken | None]:
    """Greedy rows where the logits are, the others on the host, one by one."""
    best, finite = _best_of_rows(logits)
    tokens: list[SampledToken | None] = [
        SampledToken(token_id) if ok else None for token_id, ok in zip(best, finite, strict=True)
    ]
    careful = [row for row, spec in enumerate(specs) if finite[row] and not _is_plainly_greedy(spec)]
    for row, raw in zip(careful, _rows_on_host(logits, careful), strict=True):
        tokens[row] = sample_row(raw, specs[row])
    return tokens


def _best_of_rows(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """The greatest logit's first index per row (NaN counts as greatest), and whether it is finite."""
    if logits.device.type == "cpu":
        # NumPy's argmax is vectorised over a row and many times faster here than torch's on a CPU.
        host = logits.float().numpy()
        index = host.argmax(axis=-1)
        return index.tolist(), np.isfinite(host[np.arange(len(host)), index]).tolist()
    place = logits.argmax(dim=-1)
    return place.tolist(), logits.gather(1, place[:, None])[:, 0].isfinite().tolist()


def _rows_on_host(logits: torch.Tensor, rows: list[int]) -> list[Logits]:
    """The named rows as float32 arrays: views where the logits are there already, else one copy for all."""
    if not rows:
        return []
    if logits.device.type == "cpu":
        host = logits.float().numpy()
        return [host[row] for row in rows]
    return list(logits[rows].float().cpu().numpy())


def _is_plainly_greedy(spec: SampleSpec) -> bool:
    params = spec.params
    return (
        params.temperature == 0
        and params.logprobs is None
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and not params.presence_penalty
        and not params.frequency_penalty
        and spec.position >= params.min_tokens
    )
