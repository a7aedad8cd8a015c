"""Draws next tokens from logits, row by row, so that a request's tokens never depend on its neighbours.

On the CPU the native sampler draws all rows in one call; elsewhere, or without it, `reference_sampler` does. Both draw
the same tokens with the same log-probabilities.

Answers of steps that verify drafts have the model's own distribution. Two ways, both exact (SPEC SD-02).
*Repeatable*: the model draws for every drafted position as it would have drawn without drafts, with the position's own
random number, and continues while that equals the draft. So the answer is the same, token by token, as without drafts.
A deterministic draft is accepted with the model's probability of it, which is optimal; a draft model that draws with
the same random numbers agrees more often the closer its distribution is (Daliri, Musco and Suresh, "Coupling without
communication and drafter-invariant speculative decoding", 2024). *Rejection*: a draft from the law q is accepted with
min(1, p / q) and otherwise replaced by a draw from the residual max(0, p - q), normalised (Leviathan, Kalman and
Matias, 2023), which accepts more of what a draft model draws at high temperatures, but the answer to a seed then
depends on the drafts.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from inference_core.errors import BadLogitsError
from inference_core.grammar.workers import TokenMasks
from inference_core.native import cpu
from inference_core.native.cpu import extension
from inference_core.protocol import TokenLogprob
from inference_core.sampling.reference_sampler import Logits, distribution, sample_row, token_logprob, uniform
from inference_core.step_plan import DraftLaw, SampledToken, SampleSpec, ScheduledSequence


def sample_rows(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[SampledToken | None]:
    """One token per row of logits [R, V], as `reference_sampler.sample_row` draws it; None where none can be drawn.

    Raises `InvalidRequestError` for a biased, stop or earlier token id outside the vocabulary.
    """
    rows = logits.detach().to("cpu", torch.float32)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    drawn = extension().sample_rows(rows.data_ptr(), rows.stride(0), rows.shape[1], list(specs))
    return [token if token is None else sampled_token(token) for token in drawn]


NativeDraw = int | tuple[int, float, list[tuple[int, float]]]


def sampled_token(drawn: NativeDraw) -> SampledToken:
    """Return what the native sampler drew: a token, or one with its log-probability and the most likely ones."""
    return SampledToken(drawn) if isinstance(drawn, int) else SampledToken(drawn[0], TokenLogprob(*drawn))


def sample(
    logits: torch.Tensor, specs: Sequence[SampleSpec], *, native: bool | None = None, masks: TokenMasks | None = None
) -> list[SampledToken]:
    """Draw one token per row of `logits` [R, V] float32 (any device, read only but for `masks`); `specs` has length R.

    Order of application as in `SamplingParams`. `native` requires or forbids the native sampler; by default it is used
    if possible. `masks` are applied first, in place: forbidden tokens are -inf to everything but log-probabilities.
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
    # Masks are made on the host, where masked rows of other devices are copied.
    logits = logits.float().cpu()
    raw = mask_rows(logits.numpy(), masks, [row for row, spec in enumerate(specs) if spec.params.logprobs is not None])
    tokens = _drawn(logits, [_without_logprobs(s) if row in raw else s for row, s in enumerate(specs)], native)
    for row, unmasked in raw.items():
        token_id, count = tokens[row].token_id, specs[row].params.logprobs
        assert count is not None
        tokens[row] = SampledToken(token_id, token_logprob(unmasked, token_id, count))
    return tokens


def mask_rows(logits: Logits, masks: TokenMasks, keep: Sequence[int] = ()) -> dict[int, Logits]:
    """Set the tokens that `masks` forbid in `logits` [R, V] to -inf; return the unmasked rows of `keep`."""
    kept: dict[int, Logits] = {}
    for row, mask in masks.wait().items():
        if row in keep:
            kept[row] = logits[row].copy()
        mask.apply(logits[row])
    return kept


def _without_logprobs(spec: SampleSpec) -> SampleSpec:
    """Return the spec without log-probabilities, which a masked row would falsify."""
    return msgspec.structs.replace(spec, params=msgspec.structs.replace(spec.params, logprobs=None))


def _drawn(logits: torch.Tensor, specs: Sequence[SampleSpec], native: bool | None) -> list[SampledToken]:
    if native if native is not None else (cpu.AVAILABLE and logits.device.type == "cpu"):
        tokens = sample_rows(logits, specs)
    else:
        tokens = _sample_rows(logits, specs)
    if None in tokens:
        raise BadLogitsError([row for row, token in enumerate(tokens) if token is None], logits.shape[1])
    return tokens  # type: ignore[return-value]


def _sample_rows(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[SampledToken | None]:
    """Draw greedy rows on the logits' device, the others on the host one by one."""
    best, finite = _best_of_rows(logits)
    tokens: list[SampledToken | None] = [
        SampledToken(token_id) if ok else None for token_id, ok in zip(best, finite, strict=True)
    ]
    careful = [row for row, spec in enumerate(specs) if finite[row] and not _is_plainly_greedy(spec)]
    for row, raw in zip(careful, _rows_on_host(logits, careful), strict=True):
        tokens[row] = sample_row(raw, specs[row])
    return tokens


def _best_of_rows(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """Return the first index of the greatest logit per row (NaN counts as greatest), and whether it is finite."""
    if logits.device.type == "cpu":
        # NumPy's argmax is vectorised over a row and many times faster here than torch's on a CPU.
        host = logits.float().numpy()
        index = host.argmax(axis=-1)
        return index.tolist(), np.isfinite(host[np.arange(len(host)), index]).tolist()
    best = logits.argmax(dim=-1)
    return best.tolist(), logits.gather(1, best[:, None])[:, 0].isfinite().tolist()


def _rows_on_host(logits: torch.Tensor, rows: list[int]) -> list[Logits]:
    """Return the named rows as float32 arrays: views on the CPU, else one copy for all."""
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


# Streams of random numbers apart from the one that tokens are drawn with.
_ACCEPTING = 0x6A09E667F3BCC908
_DRAFTING = 0x3C6EF372FE94F82B


def verification_rows(sequences: list[ScheduledSequence]) -> list[int] | None:
    """Return the rows, counting the tokens of all sequences, whose logits a step draws from; None without drafts, for
    the last row of each sequence that samples."""
    if not any(s.num_drafts for s in sequences):
        return None
    rows: list[int] = []
    end = 0
    for sequence in sequences:
        end += len(sequence.token_ids)
        if sequence.sample is not None:
            rows += range(end - sequence.num_drafts - 1, end)
    return rows


def draw(
    logits: torch.Tensor, sequences: list[ScheduledSequence], masks: TokenMasks | None = None
) -> list[list[SampledToken]]:
    """Return the new tokens of each sequence, accepted drafts + 1, from the `verification_rows` of `logits` float32
    [rows, vocabulary]; `masks` are of these rows, none of which has draft laws. Raises as `sampler.sample` does."""
    specs = [spec for s in sequences if s.sample is not None for spec in row_specs(s)]
    drawn = sample(logits, specs, masks=masks)
    results: list[list[SampledToken]] = []
    row = 0
    for sequence in sequences:
        if sequence.sample is None:
            results.append([])
            continue
        rows, row = slice(row, row + sequence.num_drafts + 1), row + sequence.num_drafts + 1
        if sequence.num_drafts and sequence.draft_laws is not None:
            results.append(_accept_or_replace(logits[rows].float().cpu().numpy(), drawn[rows], sequence))
        else:
            results.append(while_equal(sequence.drafts, drawn[rows]))
    return results


def row_specs(sequence: ScheduledSequence) -> list[SampleSpec]:
    """Return the sample specs after each number of accepted drafts."""
    spec = sequence.sample
    assert spec is not None
    if not sequence.num_drafts:
        return [spec]
    specs = [spec]
    remembers = _remembers(spec)
    drafts = sequence.drafts
    for count in range(1, len(drafts) + 1):
        outputs = spec.output_token_ids + drafts[:count] if remembers else spec.output_token_ids
        specs.append(msgspec.structs.replace(spec, position=spec.position + count, output_token_ids=outputs))
    return specs


def draw_draft(law: DraftLaw, spec: SampleSpec) -> int:
    """Draw a token from the law [vocabulary] with a random number that nothing else uses."""
    return _inverse(law, uniform(spec.seed ^ _DRAFTING, spec.position))


def drafts_from(logits: Logits, sequences: list[ScheduledSequence]) -> list[tuple[int, DraftLaw]]:
    """Draw a draft token per sequence from its row of `logits` float32 [rows, vocabulary]; return it with its law."""
    drafts = []
    for raw, sequence in zip(logits, sequences, strict=True):
        assert sequence.sample is not None
        law = distribution(raw, sequence.sample)
        drafts.append((draw_draft(law, sequence.sample), law))
    return drafts


def while_equal(drafts: list[int], drawn: list[SampledToken]) -> list[SampledToken]:
    """Return the prefix of `drawn` (one token per draft and one more) up to the first that differs from its draft."""
    for count, draft in enumerate(drafts):
        if drawn[count].token_id != draft:
            return drawn[: count + 1]
    return drawn


def _accept_or_replace(rows: Logits, drawn: list[SampledToken], sequence: ScheduledSequence) -> list[SampledToken]:
    """Verify drafts by rejection sampling; `drawn`: the rows' own draws, the last of which follows full acceptance."""
    tokens: list[SampledToken] = []
    specs, laws = row_specs(sequence), sequence.draft_laws
    assert laws is not None
    for raw, spec, draft, q in zip(rows, specs, sequence.drafts, laws, strict=False):
        p = distribution(raw, spec)
        if uniform(spec.seed ^ _ACCEPTING, spec.position) * q[draft] < p[draft]:
            tokens.append(_sampled(raw, draft, spec))
            continue
        token = _inverse(residual(p, q), uniform(spec.seed, spec.position))
        return [*tokens, _sampled(raw, token, spec)]
    return [*tokens, drawn[-1]]


def residual(p: DraftLaw, q: DraftLaw) -> DraftLaw:
    """Return the residual law [vocabulary] after a draft from `q` was rejected: max(0, p - q), not normalised."""
    return np.maximum(p - q, 0.0)


def _inverse(law: DraftLaw, u: float) -> int:
    """Return the token at `u` in [0, 1) of the cumulative law; a token of probability 0 is never drawn."""
    reached = np.cumsum(law)
    return int(np.searchsorted(reached, u * reached[-1], side="right"))


def _sampled(raw: Logits, token_id: int, spec: SampleSpec) -> SampledToken:
    wanted = spec.params.logprobs
    return SampledToken(token_id, None if wanted is None else token_logprob(raw, token_id, wanted))


def _remembers(spec: SampleSpec) -> bool:
    params = spec.params
    return params.repetition_penalty != 1.0 or bool(params.presence_penalty or params.frequency_penalty)
