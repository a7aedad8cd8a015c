"""Draws the tokens of a step that verifies drafts, so that answers have the model's own distribution.

Two ways, both exact (SPEC SD-02). *Repeatable*: the model draws for every drafted position as it would have drawn
without drafts, with the position's own random number, and continues while that equals the draft. So the answer is the
same, token by token, as without drafts. A deterministic draft is accepted with the model's probability of it, which is
optimal; a draft model that draws with the same random numbers agrees more often the closer its distribution is (Daliri,
Musco and Suresh, "Coupling without communication and drafter-invariant speculative decoding", 2024). *Rejection*: a
draft from the law q is accepted with min(1, p / q) and otherwise replaced by a draw from the residual max(0, p - q),
normalised (Leviathan, Kalman and Matias, 2023), which accepts more of what a draft model draws at high temperatures,
but the answer to a seed then depends on the drafts.
"""

import msgspec
import numpy as np
import torch

from inference_core.grammar.masks import TokenMasks
from inference_core.sampling.reference_sampler import Logits, distribution, token_logprob, uniform
from inference_core.sampling.sampler import sample
from inference_core.step_plan import DraftLaw, SampledToken, SampleSpec, ScheduledSequence

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
    """Return the new tokens of each sequence, accepted drafts and one more, from the `verification_rows` of `logits`
    float32 [rows, vocabulary]; `masks` are of these rows, none of which has draft laws. Raises as `sampler.sample`
    does."""
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
    """Draw a draft token for each sequence from its row of `logits` float32 [rows, vocabulary]; return it with its
    law."""
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
    """Verify drafts by rejection sampling; `drawn` are the rows' own draws, of which the last follows full
    acceptance."""
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
